"""Of a sentence's changes, those that fit a picture clearly better are named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from deixis.adapters.changed_sentences import CLEAR, changed_sentences, fits_better
from deixis.model import Grounding, Model, Text


class Reader(Model):
    """Scores a text by the worth of its words."""

    lacks = frozenset({"embed_images", "embed_texts", "describe", "concepts"})

    def __init__(self, there: float = 1.0, **worth: float) -> None:
        self.there, self.worth = there, worth

    def score(self, images: Sequence[Any], texts: Sequence[Text]) -> Any:
        return np.array([[sum(self.worth.get(word, 0.0) for word in text) for text in texts] for _ in images])

    def ground(self, image: Any, phrases: str | Sequence[Text]) -> list[Grounding]:
        return [Grounding(str(phrases), 0, len(phrases), (0.0, 0.0, 1.0, 1.0), 1.0, presence=self.there)]


def test_of_all_other_colours_the_best_is_named_if_it_is_clearly_better() -> None:
    tokens = ("a", "red", "bus")
    reader = Reader(red=0.1, yellow=0.5, blue=0.3)
    (change,) = changed_sentences(reader, None, tokens)
    assert (change.kind, change.word, change.became, change.sentence) == ("colour", "red", "yellow", "a yellow bus")
    assert change.score == pytest.approx(0.5)
    assert not change.supported
    assert change.clearly_better
    assert fits_better(reader, None, "A red bus.") == ["a yellow bus"]
    assert fits_better(Reader(red=0.9, yellow=0.5), None, "a red bus") == []


def test_nothing_is_said_of_what_is_not_there() -> None:
    assert fits_better(Reader(there=0.5, red=0.1, yellow=0.5), None, "a red bus") == ["a yellow bus"]
    assert fits_better(Reader(there=0.4, red=0.1, yellow=0.5), None, "a red bus") == []


def test_a_difference_counts_for_less_in_a_short_text() -> None:
    reader = Reader(red=0.0, yellow=0.9 * CLEAR / 3)
    (change,) = changed_sentences(reader, None, ("a", "red", "bus"))
    assert not change.supported
    assert not change.clearly_better
    assert fits_better(reader, None, "a red bus on a wide street") == ["a yellow bus on a wide street"]


def test_articles_and_other_kinds_of_change_follow() -> None:
    assert fits_better(Reader(orange=1.0), None, "a blue bus") == ["an orange bus"]
    drawn = Reader(small=1.0, little=1.0, tiny=1.0, red=0.5)
    first, second = fits_better(drawn, None, "a large blue bus")
    assert first in {"a small blue bus", "a little blue bus", "a tiny blue bus"}
    assert second == "a large red bus"
    assert fits_better(Reader(), None, "a street") == []


def test_a_model_that_cannot_score_names_nothing() -> None:
    class Blind(Model):
        lacks = frozenset({"score"})

    assert fits_better(Blind(), None, "a red bus") == []
