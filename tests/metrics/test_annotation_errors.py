"""The error analysis of the Entities paper: which mentions and chains differ from a reference."""

from __future__ import annotations

import pytest

from deixis.corpus import Corpus, Image
from deixis.corpus.records import Caption, Chain, Phrase
from deixis.errors import DeixisError
from deixis.metrics.annotation_errors import annotation_errors


def image(name: str, *phrases: tuple[Phrase, ...], texts: tuple[str, ...] = ("a man walks a dog", "a man")) -> Image:
    captions = tuple(Caption(text, phrases=own) for text, own in zip(texts, phrases, strict=True))
    chains = tuple(Chain(chain) for chain in sorted({phrase.chain for own in phrases for phrase in own} - {"0"}))
    return Image(name, captions=captions, chains=chains)


MAN, DOG, SAME = Phrase(0, 2, chain="1"), Phrase(3, 5, chain="2"), Phrase(0, 2, chain="1")


def test_equal_annotations_have_no_errors_whatever_chains_are_called() -> None:
    reference = Corpus([image("a", (MAN, DOG), (SAME,))])
    renamed = Corpus([image("a", (Phrase(0, 2, chain="7"), Phrase(3, 5, chain="8")), (Phrase(0, 2, chain="7"),))])
    found = annotation_errors(renamed, reference)
    assert (found.images, found.mentions, found.chains, found.images_with_errors) == (1, 3, 2, 0)
    assert found.shares() == {"chunking_errors": 0, "coreference_errors": 0, "images_with_errors": 0}


def test_each_kind_of_error_is_counted_by_itself() -> None:
    reference = Corpus([image(name, (MAN, DOG), (SAME,)) for name in "abcd"])
    cut_off = image("a", (MAN, Phrase(4, 5, chain="2")), (SAME,))
    split = image("b", (MAN, DOG), (Phrase(0, 2, chain="3"),))
    missing = image("c", (MAN,), (SAME,))
    found = annotation_errors(Corpus([cut_off, split, missing, reference["d"]]), reference)
    # "dog" without its article is one wrong mention and leaves one missing.
    assert (found.mentions, found.wrong_mentions, found.missing_mentions) == (11, 1, 2)
    assert (found.chains, found.wrong_chains, found.images_with_errors) == (7, 2, 3)
    assert found.shares()["images_with_errors"] == 75


def test_other_captions_and_other_images_are_refused() -> None:
    reference = Corpus([image("a", (MAN,), ())])
    with pytest.raises(DeixisError, match="no image in common"):
        annotation_errors(Corpus([image("b", (MAN,), ())]), reference)
    with pytest.raises(DeixisError, match="image a has other captions"):
        annotation_errors(Corpus([image("a", (MAN,), (), texts=("a man", "a cat"))]), reference)
