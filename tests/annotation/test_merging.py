"""Merging of boxes and chains (the Entities paper, section 2.3)."""

from __future__ import annotations

import pytest

from deixis.annotation.merging import merge_chains, merge_overlap
from deixis.corpus import Box

BOX = Box(0, 0, 100, 100)
#: Overlaps with BOX of 0.95, 0.85 and 0.75.
NEAR, LESS, FAR = Box(0, 0, 100, 95), Box(0, 0, 100, 85), Box(0, 0, 100, 75)
ELSEWHERE = Box(300, 300, 400, 400)


def merged(
    *chains: tuple[str, list[Box]],
) -> tuple[tuple[Box, ...], tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]]:
    found = merge_chains([boxes for _, boxes in chains], [frozenset(types.split("/")) for types, _ in chains])
    return found.boxes, found.chains


def test_the_bride_is_a_box_of_the_couple_too() -> None:
    boxes, chains = merged(("people", [BOX]), ("people", [LESS, ELSEWHERE]), ("people", [ELSEWHERE]))
    assert len(boxes) == 2
    assert chains == (((0,), (0,)), ((1,), (0, 1)), ((2,), (1,)))


@pytest.mark.parametrize(
    ("first", "second", "box", "count"),
    [
        ("people", "people", LESS, 1),
        ("people", "people", FAR, 2),
        ("other", "other", LESS, 2),
        ("other", "other", NEAR, 1),
        ("people", "other", LESS, 2),
        ("people", "other", NEAR, 1),
        ("people", "clothing", NEAR, 2),
        ("people", "bodyparts", BOX, 2),
        ("animals", "clothing", BOX, 2),
        ("clothing", "bodyparts", LESS, 1),
    ],
)
def test_how_much_must_overlap_depends_on_the_types(first: str, second: str, box: Box, count: int) -> None:
    boxes, chains = merged((first, [BOX]), (second, [box]))
    assert len(boxes) == len(chains) == count


def test_chains_with_the_same_boxes_become_one_and_chains_without_boxes_stay() -> None:
    boxes, chains = merged(("people", [BOX, ELSEWHERE]), ("scene", []), ("people", [ELSEWHERE, NEAR]), ("scene", []))
    assert len(boxes) == 2
    assert chains == (((0, 2), (0, 1)), ((1,), ()), ((3,), ()))


def test_two_boxes_of_one_chain_are_two_things_however_much_they_overlap() -> None:
    boxes, _ = merged(("people", [BOX, NEAR]))
    assert boxes == (BOX, NEAR)
    # A third chain's box joins the nearer of the two, and does not draw them together.
    boxes, chains = merged(("people", [BOX, LESS]), ("people", [Box(0, 0, 100, 99)]))
    assert len(boxes) == 2
    assert chains[1] == ((1,), (0,))


def test_merging_does_not_depend_on_order_and_is_idempotent() -> None:
    chains = [("people", [BOX]), ("people", [LESS, ELSEWHERE]), ("other", [NEAR])]
    forward, backward = merged(*chains), merged(*chains[::-1])
    assert set(forward[0]) == set(backward[0])
    again = merge_chains(
        [[forward[0][index] for index in own] for _, own in forward[1]], [frozenset(["people"])] * len(forward[1])
    )
    assert set(again.boxes) <= set(forward[0])


def test_no_boxes_no_merging() -> None:
    assert merged() == ((), ())
    assert merge_overlap(frozenset(["people", "clothing"]), frozenset(["people", "clothing"])) == 0.8
