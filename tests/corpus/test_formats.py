"""Every format keeps its promise: what is written and read again equals what the format says it keeps."""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from deixis.corpus import Corpus, leak_guard, make_caption, make_image, open_corpus, write_corpus
from deixis.corpus.formats import FORMATS, get_format
from deixis.corpus.opening import detect_format
from deixis.corpus.tree import open_tree
from deixis.errors import DeixisError

from .strategies import corpora, odd_corpora

SETTINGS = settings(max_examples=60, suppress_health_check=list(HealthCheck))


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
@given(corpus=corpora())
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


@pytest.mark.parametrize("format", FORMATS)
def test_a_corpus_without_images_is_found_by_itself_too(format: str, tmp_path: Path) -> None:
    write_corpus(Corpus([]), tmp_path, format=format)
    assert detect_format(open_tree(tmp_path)) == format
    assert open_corpus(tmp_path) == Corpus([])


PHOTO, COCO = "2345678901", "000000000074"
#: Wherever an image may carry its photo's id.
NAMED = (
    {"id": PHOTO},
    {"id": PHOTO, "file": "a.jpg"},
    {"id": PHOTO, "file": "a.jpg", "source_id": "77"},
    {"id": f"{PHOTO}_0a1b", "file": f"{PHOTO}_0a1b.jpg"},
    {"id": "1", "file": f"{PHOTO}/b.jpg"},
    {"id": "1", "file": f"{PHOTO}/../b.jpg"},
    {"id": "1", "file": f"https://example.org/{PHOTO}/a/b.jpg"},
    {"id": "391895", "file": "000000391895.jpg", "source_id": PHOTO},
    {"id": "391895", "source_id": f"https://www.flickr.com/photos/u/{PHOTO}/sizes/l"},
    {"id": "1", "source_id": f"12345678\t{PHOTO}"},
    {"id": "74", "file": f"{COCO}.jpg"},
    {"id": f"COCO_train2014_{COCO}", "file": "a/b.jpg"},
    {"id": "1", "file": f"images/COCO_train2014_{COCO}.jpg", "source_id": "12345678"},
)


@pytest.mark.parametrize("names", NAMED, ids=str)
@pytest.mark.parametrize("format", FORMATS)
def test_a_held_out_photo_is_known_after_any_conversion(
    format: str, names: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leak_guard, "_held_out", lambda: frozenset(leak_guard.hash_photo_ids([PHOTO, COCO])))
    corpus = Corpus([make_image(split="train", captions=[make_caption("a dog")], **names)])
    try:
        write_corpus(corpus, tmp_path, format=format)
    except DeixisError:
        return  # What cannot be written cannot leak.
    (again,) = open_corpus(tmp_path, cache=False)
    assert leak_guard.is_held_out(again)
    assert corpus.with_images([again]) == get_format(format).keep(corpus)


def test_a_kill_while_a_folder_is_written_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = make_image("1", captions=[make_caption("a dog")])
    renames = []

    def killed(source: Path, target: Path) -> None:
        renames.append(Path(target).name)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_corpus(Corpus([image]), tmp_path, format="flickr30k-entities")
    assert renames == ["1.txt"]
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]
