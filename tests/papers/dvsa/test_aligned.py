"""A sentence laid over a picture: snippets cover it, and phrases that say a number have as many regions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deixis.model import ImageFeatures
from deixis.papers.dvsa.model import AlignmentModel

BOXES = np.array([[0, 0, 100, 100], [0, 0, 20, 20], [1, 1, 19, 19], [50, 0, 70, 20], [50, 50, 90, 90]], float)
WORDS = ("two", "dogs", "chase", "a", "ball")


class Table(AlignmentModel):
    """An aligner whose products are given: (words, regions), the whole picture first."""

    def __init__(self, products: Any) -> None:
        self.products, self.regions, self.beta, self.temperature = np.asarray(products, np.float32), 5, 1.0, 0.0

    def align_words(self, image: Any, sentences: Any, most: int | None = None) -> Any:
        assert most == self.regions
        return BOXES, [self.products for _ in sentences]

    def score(self, images: Any, texts: Any) -> Any:
        return np.full((len(images), len(texts)), 7.0)


IMAGE: Any = ImageFeatures(np.zeros(1), None, None, (100.0, 100.0))
#: Dogs at 1 (again, as a part, at 2) and 3, the ball at 4, the chase in the whole picture.
PRODUCTS = [[0, 3, 2, 1, 0], [0, 4, 3, 2, 0], [5, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 6]]


def test_snippets_are_runs_of_one_region_and_cover_the_sentence() -> None:
    found = Table(PRODUCTS).align(IMAGE, WORDS, beta=0.5).snippets
    assert [(each.text, each.whole, each.score) for each in found] == [
        ("two dogs", False, 7.0),
        ("chase", True, 5.0),
        ("a ball", False, 7.0),
    ]
    assert found[0].boxes == ((0.0, 0.0, 20.0, 20.0),)
    whole = Table(PRODUCTS).align(IMAGE, " ".join(WORDS))
    assert (whole.tokens, whole.score, whole.beta, whole.temperature) == (WORDS, 7.0, 1.0, 0.0)
    assert [(each.start, each.end) for each in found] == [(0, 2), (2, 3), (3, 5)]


def test_a_sign_goes_with_the_word_before_it_and_is_nothing_by_itself() -> None:
    sign = [0, 9, 0, 0, 0]
    report = (*WORDS[:3], ",", *WORDS[3:], ".")
    found = Table([*PRODUCTS[:3], sign, *PRODUCTS[3:], sign]).align(IMAGE, report, beta=0).snippets
    assert [each.text for each in found] == ["two dogs", "chase ,", "a ball ."]
    counted = Table([*PRODUCTS[:2], sign]).align(IMAGE, ("two", "dogs", "!"), beta=0, counted=[(0, 2)]).snippets
    assert [each.text for each in counted] == ["two dogs"]


def test_a_phrase_that_says_a_number_has_as_many_different_regions() -> None:
    found = Table(PRODUCTS).align(IMAGE, WORDS, beta=0.5, counted=[(0, 2), (3, 5)]).snippets
    assert [each.text for each in found] == ["two dogs", "chase", "a ball"]
    # Not region 2, which is a part of the first dog.
    assert found[0].boxes == ((0.0, 0.0, 20.0, 20.0), (50.0, 0.0, 70.0, 20.0))
    assert found[0].score == 3 + 4 + 1 + 2
    assert found[2].boxes == ((50.0, 50.0, 90.0, 90.0),)


def test_a_counted_phrase_stays_apart_from_neighbours_on_its_region() -> None:
    products = [*PRODUCTS[:2], [0, 9, 0, 0, 0], *PRODUCTS[3:]]
    found = Table(products).align(IMAGE, WORDS, beta=0.5, counted=[(0, 2)]).snippets
    assert [each.text for each in found] == ["two dogs", "chase", "a ball"]
    assert found[1].boxes == ((0.0, 0.0, 20.0, 20.0),)
    uncounted = Table(products).align(IMAGE, WORDS, beta=0.5).snippets
    assert [each.text for each in uncounted] == ["two dogs chase", "a ball"]


@pytest.mark.parametrize("beta", [0.0, 100.0])
def test_beta_decides_how_much_words_keep_together(beta: float) -> None:
    found = Table(PRODUCTS).align(IMAGE, WORDS, beta=beta).snippets
    assert len(found) == (3 if not beta else 1)
