"""Figures of chunks, types and trees, counted by hand on small captions."""

from __future__ import annotations

import pytest

from deixis.corpus import Phrase, make_caption
from deixis.errors import DeixisError
from deixis.metrics.phrase_chunking import score_chunking, score_nodes, score_types
from deixis.text.trees import Tree

ONE = make_caption("a dog in the background", phrases=[Phrase(0, 2, "7", ("animals",)), Phrase(3, 5)])
TWO = make_caption("dogs run", phrases=[Phrase(0, 1, "8", ("animals",))])


def test_chunking_counts_exact_spans() -> None:
    score = score_chunking(
        [
            (ONE, [(0, 2), (2, 5)], [("animals",), ("scene",)]),
            (TWO, [(0, 1)], [("animals",)]),
        ]
    )
    assert (score.overall.right, score.overall.found, score.overall.gold) == (2, 3, 3)
    assert score.overall.f1 == pytest.approx(2 / 3)
    # "the background" is in no chain; the wrong span was given a visual type.
    assert (score.visual.right, score.visual.found, score.visual.gold) == (2, 3, 2)
    assert {length: (s.right, s.found, s.gold) for length, s in score.by_length.items()} == {
        "1": (1, 1, 1),
        "2": (1, 1, 2),
        "3": (0, 1, 0),
    }
    assert score.figures()["captions_all_right"] == 0.5


def test_a_non_visual_type_takes_a_phrase_out_of_the_visual_count() -> None:
    score = score_chunking([(ONE, [(0, 2), (3, 5)], [("animals",), ("notvisual",)])])
    assert score.overall.f1 == score.visual.f1 == 1
    assert score.visual.found == 1


def test_long_phrases_are_counted_together_and_nothing_is_nothing() -> None:
    long = make_caption("a b c d e f g", phrases=[Phrase(0, 7, "1")])
    assert score_chunking([(long, [], [])]).by_length["6+"].recall == 0
    nothing = score_chunking([])
    assert (nothing.overall.f1, nothing.overall.precision, nothing.overall.recall) == (0, 0, 0)


def test_types_exactly_or_in_part() -> None:
    figures = score_types([(["people"], ["people"]), (["vehicles", "scene"], ["scene"]), (["other"], ["people"])])
    assert figures["exact"] == pytest.approx(1 / 3)
    assert figures["any"] == pytest.approx(2 / 3)
    assert figures["by_type"] == {"people": 1, "vehicles": 0, "scene": 1, "other": 0}
    with pytest.raises(DeixisError, match="no phrase"):
        score_types([])


def test_nodes_over_phrases_and_across_them() -> None:
    leaves = [Tree("X", token=number) for number in range(5)]
    tree = Tree("S", (leaves[0], Tree("VP", (leaves[1], leaves[2])), Tree("NP", (leaves[3], leaves[4]))))
    figures = score_nodes([(ONE, tree)])
    assert figures == {"np": 0.5, "node": 0.5, "crossed": 0.5}
    with pytest.raises(DeixisError, match="no phrases"):
        score_nodes([])
