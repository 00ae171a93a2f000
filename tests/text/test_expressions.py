"""Expressions from geometry are true of one object, by a margin, and the phrases name all objects of a label."""

from __future__ import annotations

import numpy as np
import pytest

from deixis.corpus import Box, Chain, make_image
from deixis.text.expressions import LabelledBoxes, expressions, labelled_boxes, object_phrases


def objects(**boxes: list[tuple[float, float, float, float]]) -> LabelledBoxes:
    labels = [label for label, own in boxes.items() for _ in own]
    return LabelledBoxes(tuple(labels), np.array([box for own in boxes.values() for box in own], float))


def said(given: LabelledBoxes, seed: int = 0) -> dict[tuple[str, int], str]:
    return {(each.kind, each.target): each.text for each in expressions(given, np.random.default_rng(seed))}


def test_left_and_right_big_and_small() -> None:
    found = said(objects(dog=[(0.1, 0.3, 0.3, 0.5), (0.5, 0.2, 0.9, 0.7)]))
    assert set(found) == {("side", 0), ("side", 1), ("size", 0), ("size", 1)}
    assert "left" in found["side", 0]
    assert "right" in found["side", 1]
    assert any(word in found["size", 1] for word in ("big", "large"))


def test_the_nearest_to_another_thing() -> None:
    given = objects(person=[(0.1, 0.4, 0.2, 0.6), (0.6, 0.4, 0.7, 0.6)], bench=[(0.7, 0.4, 0.9, 0.6)])
    found = {each.target: each.text for each in expressions(given, np.random.default_rng(0)) if each.kind == "distance"}
    assert set(found) == {0, 1}
    assert all(text.endswith("the bench") for text in found.values())
    assert "far" in found[0]


@pytest.mark.parametrize(
    "dogs",
    [
        [(0.1, 0.3, 0.3, 0.5)],
        [(0.1, 0.3, 0.3, 0.5), (0.12, 0.3, 0.32, 0.5)],
        [(0.1, 0.3, 0.3, 0.5), (0.5, 0.2, 0.51, 0.21)],
        [(0.1 * place, 0.1, 0.1 * place + 0.08, 0.3) for place in range(6)],
    ],
    ids=["one", "overlapping", "one too small", "too many"],
)
def test_nothing_is_said_where_it_would_not_be_clear(dogs: list[tuple[float, float, float, float]]) -> None:
    assert not expressions(objects(dog=dogs), np.random.default_rng(0))


def test_phrases_name_all_objects_of_a_label() -> None:
    given = objects(dog=[(0, 0, 0.2, 0.2), (0.5, 0.5, 0.9, 0.9)], person=[(0.2, 0.2, 0.4, 0.4)])
    found = {each.objects: each.text for each in object_phrases(given, np.random.default_rng(0))}
    assert found[0, 1] in ("the dogs", "two dogs")
    assert found[2,] in ("a person", "the person")


def test_objects_are_the_labelled_chains_with_one_box() -> None:
    boxes = [Box(0, 0, 50, 100), Box(50, 0, 100, 100), Box(0, 0, 1, 1)]
    chains = [Chain("1", (0,), label="cat"), Chain("2", (1, 2), label="cat"), Chain("3", (1,))]
    found = labelled_boxes(make_image("a", width=200, height=100, boxes=boxes, chains=chains))
    assert found.labels == ("cat",)
    assert found.boxes.tolist() == [[0, 0, 0.25, 1]]
