"""Phrases from a bank: detailed before general where they suit alike, near-duplicates once, regions that differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deixis.adapters.phrase_bank import chosen, retrieved_captions, retrieved_regions, telling_words
from deixis.errors import CannotError
from deixis.model import ImageFeatures, Localized, Model

BANK = [
    tuple(text.split())
    for text in (
        "a cat",
        "a white and gray cat with a striped tail",
        "the white and gray cat with striped tails",
        "a red car",
        "the",
        "a dog",
        *("blue sky", "green grass", "old house", "big tree", "tall man"),
    )
]


def _texts(found: Any) -> list[str]:
    return [" ".join(tokens) for tokens, _ in found]


def test_detail_goes_before_a_slightly_better_score_and_what_says_the_same_is_said_once() -> None:
    scores = np.array([0.90, 0.88, 0.89, 0.1, 0.95, *[0.0] * 6])
    assert _texts(chosen(BANK, scores, 3)) == [
        "the white and gray cat with striped tails",
        "a cat",
        "a red car",
    ]
    # Far behind the best, detail does not help.
    scores[1:3] = 0.3
    assert _texts(chosen(BANK, scores, 2)) == ["a cat", "a white and gray cat with a striped tail"]


def test_any_number_of_phrases_can_be_asked_for() -> None:
    scores = np.linspace(0, 1, len(BANK))
    assert len(chosen(BANK, scores, 50)) == 9
    assert _texts(chosen(BANK[:1], scores[:1], 2)) == ["a cat"]
    assert telling_words(("of", "the", "...")) == frozenset()


class Table(Model):
    """Localizes by a table, phrases × regions, and embeds pictures as the first axis."""

    def __init__(self, scores: Any) -> None:
        self.scores = np.asarray(scores)

    def localize(self, image: ImageFeatures, phrases: Any) -> Localized:
        assert image.boxes is not None
        return Localized(image.boxes, self.scores)

    def embed_images(self, images: Any) -> Any:
        return np.tile([1.0, 0.0], (len(images), 1))

    def embed_texts(self, texts: Any) -> Any:
        return np.array([[1.0, 0.0] if "car" in text else [0.0, 1.0] for text in texts])


def _image(boxes: Any) -> ImageFeatures:
    own = np.array(boxes, np.float32).reshape(-1, 4)
    return ImageFeatures(np.zeros(2), np.zeros((len(own), 2)), own, (100, 100))


def test_of_regions_that_overlap_the_better_described_is_kept() -> None:
    image = _image([[0, 0, 50, 50], [2, 2, 50, 50], [60, 60, 90, 90]])
    scores = np.zeros((len(BANK), 3))
    scores[0] = [0.5, 0.9, 0.0]
    scores[3] = [0.0, 0.0, 0.7]
    found = retrieved_regions(Table(scores), image, BANK, 1, 5)
    assert [(each.box, each.text, each.score, each.by) for (each,) in found] == [
        ((2.0, 2.0, 50.0, 50.0), "a cat", 0.9, "retrieval"),
        ((60.0, 60.0, 90.0, 90.0), "a red car", 0.7, "retrieval"),
    ]
    assert [each.text for (each,) in retrieved_regions(Table(scores), image, BANK, 1, 1)] == ["a cat"]
    assert retrieved_regions(Table(np.zeros((len(BANK), 0))), _image([]), BANK, 1, 5) == []


def test_what_is_said_of_one_region_is_not_said_of_the_next() -> None:
    image = _image([[0, 0, 9, 9], [20, 0, 29, 9]])
    scores = np.zeros((len(BANK), 2))
    scores[0], scores[3] = [0.9, 0.8], [0.1, 0.7]
    found = retrieved_regions(Table(scores), image, BANK, 1, 5)
    assert [(own[0].box, own[0].text, own[0].score) for own in found] == [
        ((0.0, 0.0, 9.0, 9.0), "a cat", 0.9),
        ((20.0, 0.0, 29.0, 9.0), "a red car", 0.7),
    ]


def test_captions_are_found_for_whole_pictures() -> None:
    found = retrieved_captions(Table([]), _image([]), BANK, 1)
    assert [(each.text, each.score) for each in found] == [("a red car", 1.0)]


def test_a_model_that_cannot_says_what_it_can() -> None:
    for ask, problem in (
        (lambda: retrieved_captions(Model(), _image([]), BANK, 1), "cannot score; it can: nothing"),
        (lambda: retrieved_regions(Model(), _image([]), BANK, 1, 1), "cannot localize; it can: nothing"),
        (lambda: Table([]).describe(_image([])), "cannot describe; it can: embed_images, embed_texts, score, localize"),
    ):
        with pytest.raises(CannotError, match=problem):
            ask()
