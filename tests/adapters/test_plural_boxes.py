"""Plurals get several boxes: which phrases are plurals, and which boxes are different things."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from deixis.adapters.plural_boxes import MOST, choose_boxes, one_of, plural_boxes
from deixis.model import Tokens

LEFT, RIGHT, BOTH = (0.0, 0.2, 0.4, 0.9), (0.6, 0.2, 1.0, 0.9), (0.0, 0.1, 1.0, 1.0)
#: A part of the left thing, and the left thing once more.
PART, AGAIN = (0.05, 0.25, 0.2, 0.5), (0.02, 0.2, 0.42, 0.9)


@pytest.mark.parametrize(
    ("phrase", "single", "most"),
    [
        ("two dogs", "a dog", 2),
        ("the 3 old cars", "an old car", 3),
        ("a group of small children", "a small child", MOST),
        ("a couple of women", "a woman", 2),
        ("several people", "a person", MOST),
        ("mountains", "a mountain", MOST),
    ],
)
def test_a_plural_is_asked_for_in_the_singular(phrase: str, single: str, most: int) -> None:
    one = one_of(tuple(phrase.split()))
    assert one is not None
    assert (" ".join(one.tokens), one.most) == (single, most)


@pytest.mark.parametrize("phrase", ["a dog", "shorts", "the grass", "sunglasses", "one man", "the", "a glass of water"])
def test_other_phrases_are_not(phrase: str) -> None:
    assert one_of(tuple(phrase.split())) is None


def test_two_things_are_preferred_to_the_box_around_both() -> None:
    boxes = np.array([BOTH, RIGHT, LEFT, PART, AGAIN], np.float32)
    logits = np.log([0.4, 0.25, 0.2, 0.05, 0.1])
    assert choose_boxes(boxes, logits, 2) in ([2, 1], [4, 1])
    # A box that hardly any probability speaks for is no second thing.
    assert choose_boxes(boxes, np.log([1e-9, 0.97, 0.01, 0.01, 0.01]), 2) == [1]


def test_a_number_limits_the_boxes() -> None:
    row = np.array([(0.2 * place, 0.0, 0.2 * place + 0.15, 1.0) for place in range(5)], np.float32)
    logits = np.log([0.1, 0.2, 0.3, 0.15, 0.25])
    assert choose_boxes(row, logits, 2) == [2, 4]
    assert choose_boxes(row, logits, MOST) == [0, 1, 2, 3, 4]


def test_only_plurals_are_asked_again() -> None:
    asked: list[Tokens] = []

    def point(phrases: Sequence[Tokens]) -> tuple[np.ndarray, np.ndarray]:
        asked.extend(phrases)
        return np.array([[LEFT, RIGHT]] * len(phrases)), np.zeros((len(phrases), 2))

    one, several, alone = plural_boxes([("a", "man"), ("two", "dogs"), ("the", "grass")], point)
    assert asked == [("a", "dog")]
    assert (len(one), len(alone)) == (0, 0)
    assert several.tolist() == [list(LEFT), list(RIGHT)]
    assert plural_boxes([("a", "man")], lambda _: pytest.fail("nothing to ask")) != []
