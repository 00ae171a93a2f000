"""Every format keeps its promise: what is written and read again equals what the format says it keeps."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from deixis.corpus import Corpus, open_corpus, write_corpus
from deixis.corpus.formats import FORMATS, get_format
from deixis.corpus.opening import detect_format
from deixis.corpus.tree import open_tree
from deixis.errors import DeixisError

from .strategies import corpora, odd_corpora

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("format", FORMATS)
@SETTINGS
@given(corpus=corpora())
def test_written_and_read_again_a_corpus_is_equal(format: str, corpus: Corpus) -> None:
    kept = get_format(format).keep(corpus)
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(corpus, folder, format=format)
        again = open_corpus(folder, format=format, cache=False)
        assert again == kept
        assert again.fingerprint == kept.fingerprint
        assert get_format(format).keep(kept) == kept


@pytest.mark.parametrize("format", FORMATS)
@settings(SETTINGS, max_examples=30)
@given(corpus=odd_corpora())
def test_what_other_sources_give_is_kept_as_promised_too(format: str, corpus: Corpus) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            kept = get_format(format).keep(corpus)
            write_corpus(corpus, folder, format=format)
        except DeixisError:
            return  # A format may refuse what it cannot write (two images of one name), but not lose it in silence.
        assert open_corpus(folder, format=format, cache=False) == kept
        assert get_format(format).keep(kept) == kept


@pytest.mark.parametrize("format", FORMATS)
@SETTINGS
@given(corpus=corpora().filter(lambda corpus: any(image.captions for image in corpus)))
def test_the_format_is_found_by_itself_in_folder_and_zip(format: str, corpus: Corpus) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, archive = Path(name, "folder"), Path(name, "archive.zip")
        write_corpus(corpus, folder, format=format)
        with zipfile.ZipFile(archive, "w") as out:
            for file in sorted(folder.rglob("*")):
                if file.is_file():
                    out.write(file, file.relative_to(folder))
        assert detect_format(open_tree(folder)) == format
        assert open_corpus(folder, cache=False) == open_corpus(archive, cache=False)
