"""Several boxes for a phrase that names several things: "two dogs", "the children", "a group of people".

A grounding network learns one box around all of them. So it is asked for one of the things ("a dog"), and of the boxes
that cover enough probability a set is chosen of which no two are the same thing: the set with the largest sum of the
square roots of their probabilities, which prefers two boxes to one around both. A phrase that says a number gets at
most so many. If less than two boxes are left, the phrase keeps its one box.

The threshold, the overlap and the power were chosen on validation pictures (`benchmarks/plurals.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from deixis.corpus.boxes import iou_matrix
from deixis.model import Tokens
from deixis.text.plurals import singular

Array = NDArray[Any]
#: Boxes and logits of phrases in one picture: `(phrases, regions, 4)` in [0, 1] and `(phrases, regions)`.
Point = Callable[[Sequence[Tokens]], tuple[Array, Array]]

NUMBERS = {
    "two": 2, "both": 2, "couple": 2, "pair": 2, "three": 3, "trio": 3, "four": 4, "five": 5, "six": 6, "seven": 7,
    "eight": 8, "nine": 9, "ten": 10,
}  # fmt: skip
#: Words before a plural that do not describe it.
_OTHER_WORDS = "a all an another few her his its many multiple other several some the their these those various"
_QUANTIFIERS = frozenset(_OTHER_WORDS.split())
#: "a group of people" names people.
_GROUPS = "bunch couple crowd flock group groups herd line lot lots number pair pile row set team trio variety"
_COLLECTIONS = frozenset(_GROUPS.split())
#: Boxes of a phrase without a number at most.
MOST = 8
#: Regions among which the set is chosen; all sets of more would take long.
CANDIDATES = 12
#: Overlap from which on two regions vote for the same box.
HIT = 0.5
#: The share of the best box's probability that another must have, how much of the smaller of two boxes may be inside
#: the other, and the power of probabilities that are summed.
SHARE, OVERLAP, POWER = 0.1, 0.4, 0.5


class OneOfSeveral(NamedTuple):
    """A phrase that names one of the things, and how many boxes there may be."""

    tokens: Tokens
    most: int


def one_of(phrase: Tokens) -> OneOfSeveral | None:
    """A plural phrase in the singular; None for any other.

    >>> one_of(("two", "black", "dogs")), one_of(("a", "group", "of", "people"))
    (OneOfSeveral(tokens=('a', 'black', 'dog'), most=2), OneOfSeveral(tokens=('a', 'person'), most=8))
    >>> one_of(("a", "dog")), one_of(("shorts",))
    (None, None)
    """
    words = [word.lower() for word in phrase]
    numbers = [NUMBERS.get(word) or (int(word) if word.isdecimal() and len(word) < 3 else 0) for word in words]
    most = next((count for count in numbers if 1 < count <= max(NUMBERS.values())), 0)
    for index, word in enumerate(words[1:-1], start=1):
        if word == "of" and words[index - 1] in _COLLECTIONS:
            words = words[index + 1 :]
            break
    while words and (words[0] in _QUANTIFIERS or words[0] in NUMBERS or words[0].isdecimal()):
        del words[0]
    if not words or (singular(words[-1]) == words[-1] and not most):
        return None
    words[-1] = singular(words[-1])
    return OneOfSeveral(("an" if words[0][0] in "aeiou" else "a", *words), most or MOST)


def plural_boxes(phrases: Sequence[Tokens], point: Point) -> list[Array]:
    """The boxes of each phrase `(boxes, 4)` in [0, 1], two or more of them; none for a phrase that has one box."""
    boxes = [np.empty((0, 4), np.float32) for _ in phrases]
    asked = [(index, one) for index, phrase in enumerate(phrases) if (one := one_of(phrase)) is not None]
    if asked:
        for (index, one), phrase_boxes, logits in zip(asked, *point([one.tokens for _, one in asked]), strict=True):
            chosen = choose_boxes(phrase_boxes, logits, one.most)
            if len(chosen) > 1:
                boxes[index] = phrase_boxes[chosen]
    return boxes


def choose_boxes(boxes: Array, logits: Array, most: int, share: float = SHARE, power: float = POWER) -> list[int]:
    """The regions of the best set, from left to right.

    Args:
        boxes: `(regions, 4)`.
        logits: `(regions,)`.
    """
    powers = np.exp(logits - logits.max())
    overlaps = iou_matrix(boxes, boxes)
    votes = (overlaps >= HIT) @ (powers / powers.sum())
    candidates: list[int] = []
    for region in np.argsort(-votes, kind="stable").tolist():
        if len(candidates) == CANDIDATES or votes[region] < share * votes.max():
            break
        if not (overlaps[region, candidates] >= HIT).any():
            candidates.append(region)
    values = votes[candidates] ** power
    apart = _inside(boxes[candidates]) <= OVERLAP
    chosen = [candidates[index] for index in _best_set(values, apart, most)]
    return sorted(chosen, key=lambda region: float(boxes[region, 0]))


def _best_set(values: Array, apart: Array, most: int) -> list[int]:
    """The places of the largest sum of which every two are apart, by exhaustive search with a bound; values fall."""
    best: tuple[float, list[int]] = (0.0, [])

    def extend(index: int, chosen: list[int], value: float) -> None:
        nonlocal best
        if value > best[0]:
            best = (value, chosen)
        left = most - len(chosen)
        if index == len(values) or not left or value + values[index : index + left].sum() <= best[0]:
            return
        if apart[index, chosen].all():
            extend(index + 1, [*chosen, index], value + float(values[index]))
        extend(index + 1, chosen, value)

    extend(0, [], 0.0)
    return best[1]


def _inside(boxes: Array) -> Array:
    """`(boxes, boxes)`: the part of the smaller of two boxes that is inside the other."""
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    areas = np.maximum(boxes[:, 2:] - boxes[:, :2], 0).prod(-1)
    inner = np.maximum(high - low, 0).prod(-1)
    parts: Array = inner / np.maximum(np.minimum(areas[:, None], areas[None]), 1e-9)
    return parts
