"""A language model of three words."""

from __future__ import annotations

import itertools
import math

import pytest

from deixis.metrics.caption_twins import Trigrams

SENTENCES = [("a", "dog", "runs"), ("a", "dog", "sits"), ("the", "dog", "runs")]


def test_probabilities_of_the_next_word_add_up_to_one() -> None:
    model = Trigrams(SENTENCES)
    words = {word for sentence in SENTENCES for word in sentence} | {"</s>", "unknown"}
    for history in itertools.product(("<s>", "a", "dog", "cat"), repeat=2):
        assert sum(model._probability(history, word) for word in words) == pytest.approx(1)


def test_what_was_read_is_likelier() -> None:
    model = Trigrams(SENTENCES)
    assert model.log_probability(("a", "dog", "runs")) > model.log_probability(("runs", "dog", "a"))
    assert math.isfinite(model.log_probability(("an", "unknown", "sentence")))
    assert model.log_probability(()) < 0
