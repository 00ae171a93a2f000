"""How phrases are put to the model: a noun in both numbers, and what is known of its words."""

from __future__ import annotations

import numpy as np
import pytest

from deixis.adapters.phrasing import Phrasing, embed_phrases, phrasing
from deixis.adapters.search_model import Pictures, scores
from deixis.text.vocabulary import Vocabulary
from tests.search.fakes import CellModel, ColourModel

WORDS = Vocabulary(
    {
        "a": 900,
        "the": 500,
        "cat": 100,
        "cats": 40,
        "red": 60,
        "apple": 25,
        "apples": 22,
        "petals": 9,
        "of": 200,
        "two": 70,
        "person": 50,
        "people": 90,
        "man": 200,
        "men": 80,
        "child": 15,
        "tire": 300,
        "tires": 200,
        "trash": 150,
        "can": 150,
        "theater": 150,
        "theatre": 9,
        "gray": 200,
        "grey": 400,
    }
)

MODEL = ColourModel()
MODEL.known_words = WORDS


@pytest.mark.parametrize("typed", ["cat", "a cat", "cats", "The cats", "some cats"])
def test_a_noun_is_asked_in_both_numbers_whichever_was_typed(typed: str) -> None:
    assert phrasing(typed, MODEL).forms == ("cat", "a cat", "cats")


@pytest.mark.parametrize(
    ("typed", "forms"),
    [
        ("red apples", ("red apple", "a red apple", "red apples")),
        ("an apple", ("apple", "an apple", "apples")),
        # Who asks for two does not mean one.
        ("two cats", ("two cats",)),
        ("cats of red apples", ("cats of red apples",)),
        # A number that the model has hardly read means nothing to it.
        ("petals", ("petals",)),
        ("a petal", ("a petals",)),
    ],
)
def test_other_phrases_are_asked_as_they_are(typed: str, forms: tuple[str, ...]) -> None:
    assert phrasing(typed, MODEL).forms == forms


def test_words_are_looked_up_in_either_number() -> None:
    assert phrasing("a petal", MODEL).unknown == ()
    assert phrasing("a zorblax and the zorblax of a quux", MODEL).unknown == ("zorblax", "quux")
    assert phrasing("cats", MODEL).commonness == phrasing("a cat", MODEL).commonness
    assert phrasing("cats", MODEL).commonness > phrasing("red cats", MODEL).commonness > 0
    assert phrasing("a zorblax", MODEL).commonness == 0
    # A number that was never read is no reason to find nothing, and hyphens join words.
    assert phrasing("17 cats", MODEL).unknown == ()
    assert phrasing("a red-cat", MODEL).forms == phrasing("red cats", MODEL).forms
    assert [phrasing(text, MODEL).several for text in ("the cats", "red cats")] == [False, True]


@pytest.mark.parametrize(
    ("typed", "other"),
    [
        ("a red tyre", "a red tire"),
        ("tyres", "tires"),
        ("dustbins", "trash cans"),
        ("a theatre", "a theater"),
        # Both are known well, or neither is.
        ("a grey cat", "a grey cat"),
        ("a lorry", "a lorry"),
    ],
)
def test_what_captions_spell_or_call_otherwise_is_asked_for_so(typed: str, other: str) -> None:
    assert phrasing(typed, MODEL).forms == phrasing(other, MODEL).forms
    assert phrasing(typed, MODEL).unknown == (("lorry",) if "lorry" in typed else ())


def test_an_encoder_without_a_vocabulary_is_asked_what_was_typed() -> None:
    model = ColourModel()
    model.known_words = None
    assert phrasing("The red", model) == Phrasing(("The red",), 0.0, False, ())
    assert phrasing("The cats", model).unknown == ("cats",)


def test_the_score_of_a_phrase_is_the_mean_of_its_forms_scores() -> None:
    model, random = CellModel(), np.random.default_rng(0)
    pictures = model.embed_prepared(random.integers(0, 256, (7, 3, 4, 4)).astype(np.uint8))
    forms = ("red", "red blue", "white")
    phrases = embed_phrases(model, [Phrasing(forms, 0, False, ()), Phrasing(("blue",), 0, False, ())])
    found = phrases.scores(pictures)
    wanted = scores(model.embed_queries([*forms, "blue"]), Pictures(*pictures))
    assert found[0] == pytest.approx(wanted[:3].mean(0), abs=1e-6)
    assert found[1] == pytest.approx(wanted[3], abs=1e-6)


@pytest.mark.parametrize("typed", ["people", "a person", "the people"])
def test_a_general_word_is_asked_with_its_kinds_that_the_model_knows(typed: str) -> None:
    asked = phrasing(typed, MODEL)
    assert asked.forms == ("person", "a person", "people")
    assert asked.kinds == (("man", "a man", "men"), ("child",))
    assert phrasing("red people", MODEL).kinds == ()
    assert phrasing("cats", MODEL).kinds == ()


def test_the_score_of_a_general_word_is_that_of_its_best_kind() -> None:
    model, random = CellModel(), np.random.default_rng(0)
    pictures = model.embed_prepared(random.integers(0, 256, (7, 3, 4, 4)).astype(np.uint8))
    general = Phrasing(("red", "white"), 0, False, (), kinds=(("blue",), ("green",)))
    found = embed_phrases(model, [Phrasing(("black",), 0, False, ()), general]).scores(pictures)
    black, red, white, blue, green = scores(model.embed_queries(["black", "red", "white", "blue", "green"]), pictures)
    assert found[0] == pytest.approx(black, abs=1e-6)
    assert found[1] == pytest.approx(np.maximum((red + white) / 2, np.maximum(blue, green)), abs=1e-6)
