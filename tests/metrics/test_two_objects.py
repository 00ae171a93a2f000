"""Choices between two objects of one name: the noun alone is right in half of them at most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pictures

from deixis.corpus import Box, Chain, Corpus, Image, Phrase, make_caption, make_image
from deixis.corpus.boxes import box_array
from deixis.corpus.pictures import open_pictures
from deixis.errors import DeixisError
from deixis.metrics.two_objects import choice_accuracy, geometry_choices, in_direction, shared_noun_choices
from deixis.model import Localized, Mention, Model, Tokens
from deixis.text.expressions import _WORDINGS

LEFT, RIGHT = Box(10, 30, 40, 60), Box(60, 20, 95, 70)


def dogs(*boxes: Box) -> Image:
    chains = [Chain(f"c{row}", (row,), label="dog") for row in range(len(boxes))]
    return make_image("1", file="1.png", width=100, height=100, split="test", boxes=boxes, chains=chains)


def captioned(*sentences: tuple[str, str]) -> Image:
    captions = [make_caption(text, phrases=[Phrase(0, len(text.split()), chain)]) for text, chain in sentences]
    chains = [Chain("1", (0,)), Chain("2", (1,))]
    return make_image(
        "1", file="1.png", width=100, height=100, split="test", captions=captions, boxes=(LEFT, RIGHT), chains=chains
    )


class Points(Model):
    """Proposes the two boxes and one far away, in pixels of the picture, and scores them by the words."""

    def __init__(self, score: Callable[[Tokens], Sequence[float]]) -> None:
        self._score = score

    def localize(self, image: Any, phrases: Sequence[Tokens]) -> Localized:
        boxes = box_array([LEFT, RIGHT, Box(0, 90, 10, 100)]) * np.tile(np.divide(image.size, 100), 2)
        return Localized(boxes, np.array([self._score(phrase) for phrase in phrases], float))


@pytest.fixture
def corpus(tmp_path: Path) -> Callable[[Image], Corpus]:
    def made(image: Image) -> Corpus:
        Pictures.new("RGB", (50, 50)).save(tmp_path / "1.png")
        return Corpus([image], name="two", pictures=open_pictures(tmp_path))

    return made


def test_expressions_from_geometry_come_in_pairs_of_opposites() -> None:
    choices = geometry_choices(dogs(LEFT, RIGHT), np.random.default_rng(0))
    by_kind: dict[str, list[Any]] = {}
    for choice in choices:
        by_kind.setdefault(choice.kind, []).append(choice)
        assert tuple(choice.texts["noun_alone"]) == ("the", "dog")
    assert set(by_kind) == {"side", "size"}
    for pair in by_kind.values():
        assert np.array_equal(pair[0].boxes, pair[1].boxes[::-1])
    assert not geometry_choices(dogs(LEFT, RIGHT, Box(45, 0, 58, 20)), np.random.default_rng(0)), "three are no two"


def test_phrases_that_share_a_noun_and_have_words_of_their_own() -> None:
    choices = shared_noun_choices(captioned(("a young boy", "1"), ("an older boy", "2"), ("the boy", "2")))
    assert [" ".join(choice.texts["phrase"]) for choice in choices] == ["a young boy", "an older boy"]
    assert np.array_equal(choices[1].boxes, box_array([RIGHT, LEFT]))
    assert choices[0].texts["noun_alone"] == ("the", "boy")
    for other in ("another boy", "a young boy", "an older girl"):
        assert not shared_noun_choices(captioned(("a young boy", "1"), (other, "2"))), other


def test_a_model_that_reads_the_phrase_is_right_and_the_noun_alone_is_at_half(
    corpus: Callable[[Image], Corpus],
) -> None:
    right = {"left": (2, 1, 0), "small": (2, 1, 0), "right": (1, 2, 0), "big": (1, 2, 0), "large": (1, 2, 0)}

    def read(words: Tokens) -> Sequence[float]:
        said = [scores for word, scores in right.items() if word in " ".join(words).replace("little", "small")]
        return said[0] if said else (1, 0.5, 0)

    given = corpus(dogs(LEFT, RIGHT))
    figures: Any = choice_accuracy(Points(read), given, "test").metrics["two_objects"]
    assert figures["overall"] == {
        "accuracy": 100,
        "noun_alone": 50,
        "r@1": 100,
        "noun_alone_r@1": 50,
        "covered": 100,
        "choices": 4,
    }
    assert set(figures["by_kind"]) == {"side", "size"}
    even: Any = choice_accuracy(Points(lambda words: (1, 1, 2)), given, "test").metrics["two_objects"]
    assert (even["overall"]["accuracy"], even["overall"]["r@1"]) == (0, 0), "a tie is wrong"


class Proposing(Points):
    def proposals(self, image: Any) -> Any:
        return box_array([LEFT, RIGHT, Box(0, 90, 10, 100)]) * np.tile(np.divide(image.size, 100), 2)


def test_the_direction_alone_orders_proposals_without_the_noun(corpus: Callable[[Image], Corpus]) -> None:
    def found(model: Model) -> Any:
        return choice_accuracy(model, corpus(dogs(LEFT, RIGHT)), "test").metrics["two_objects"]

    figures = found(Proposing(lambda words: (0, 0, 1)))["by_kind"]
    assert {kind: each["direction_alone"] for kind, each in figures.items()} == {"side": 100, "size": 100}
    # The third proposal, in the corner, is the leftmost and the smallest, and no dog.
    assert {kind: each["direction_alone_r@1"] for kind, each in figures.items()} == {"side": 50, "size": 50}
    assert "direction_alone" not in found(Points(lambda words: (0, 0, 1)))["overall"], "it proposes nothing itself"


def test_every_direction_word_of_expressions_is_known() -> None:
    boxes = box_array([Box(0, 40, 10, 60), Box(92, 40, 100, 50), Box(40, 0, 45, 10), Box(30, 30, 80, 100)])
    first = {"left": 0, "right": 1, "top": 2, "bottom": 3, "bigger": 3, "smaller": 2, "near": 3, "far": 1}
    first |= {"big": 3, "small": 2}
    for name, wordings in _WORDINGS.items():
        for wording in wordings:
            found = in_direction(tuple(wording.format("dog", "bench").split()), boxes, (100, 100))
            assert found is not None
            assert np.argmax(found.scores) == first[name], wording
    assert in_direction(("the", "dog"), boxes, (100, 100)) is None


def test_phrases_are_also_read_in_their_sentence(corpus: Callable[[Image], Corpus]) -> None:
    def read(words: Tokens) -> Sequence[float]:
        assert isinstance(words, Mention)
        return (0, 1, 0) if "older" in words.sentence else (1, 0, 0)

    image = captioned(("a young boy", "1"), ("an older boy", "2"))
    figures: Any = choice_accuracy(Points(read), corpus(image), "test").metrics["two_objects"]
    assert figures["by_kind"]["shared_noun"]["in_sentence"] == 100
    with pytest.raises(DeixisError, match="two objects"):
        choice_accuracy(Points(read), corpus(dogs(LEFT)), "test")
