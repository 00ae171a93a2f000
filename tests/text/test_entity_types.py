"""Entity types of phrases: what the packaged lexicon knows, what it makes of words it never saw, its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deixis.corpus import NOT_VISUAL, TYPES
from deixis.errors import InputError
from deixis.text.entity_types import EntityTypes, Lexicon, features, head_forms

TYPED = {
    "a smiling woman": "people",
    "two policemen": "people",
    "her green coat": "clothing",
    "his left hand": "bodyparts",
    "a flock of geese": "animals",
    "a delivery truck": "vehicles",
    "an electric guitar": "instruments",
    "the sandy beach": "scene",
    "a wooden table": "other",
    "the background": NOT_VISUAL,
    "him": NOT_VISUAL,
}


@pytest.mark.parametrize(("phrase", "expected"), TYPED.items())
def test_types_of_plain_phrases(phrase: str, expected: str) -> None:
    assert EntityTypes.load().types(phrase.split()) == (expected,)
    assert EntityTypes.load().types(phrase.title().split()) == (expected,)


@pytest.mark.parametrize("phrase", ["red", "all black", "red , white and blue", "dark turquoise", "Burgundy"])
def test_only_a_colour_is_clothing(phrase: str) -> None:
    assert EntityTypes.load().types(phrase.split()) == ("clothing",)


def test_a_thing_with_a_colour_is_not_clothing() -> None:
    assert EntityTypes.load().types(["a", "red", "light"]) == ("other",)
    assert EntityTypes.load().types(["a", "red", "car"]) == ("vehicles",)


@pytest.mark.parametrize(
    ("phrase", "expected"),
    [
        ("two zookeeperesses and a lamplighterman", "people"),
        ("an ice-boots", "clothing"),
        ("the snowmen-boys", "people"),
    ],
)
def test_unknown_heads_get_the_type_of_their_like(phrase: str, expected: str) -> None:
    types = EntityTypes.load()
    assert not types.knows(phrase.split()[-1])
    assert types.types(phrase.split()) == (expected,)


def test_several_types_of_one_phrase() -> None:
    lexicon = Lexicon({"vehicles/scene": ["station"]}, {"people": ["a fire station"]}, ["other"], {"": [0]})
    types = EntityTypes(lexicon)
    assert types.types(["the", "station"]) == ("vehicles", "scene")
    assert types.types(["a", "fire", "station"]) == ("people",)
    # As the release has it.
    assert EntityTypes.load().types(["his", "arm"]) == ("bodyparts", "people")


def test_context_decides_where_the_phrase_says_nothing() -> None:
    weights = {"": [1, 0], "after wearing": [-5, 5]}
    types = EntityTypes(Lexicon({}, {}, ["other", "clothing"], weights))
    assert types.types_in(["wearing", "xyzzy"], [(0, 1), (1, 2)]) == [("other",), ("clothing",)]


@given(st.lists(st.text(max_size=6), min_size=1, max_size=6))
def test_any_phrase_has_known_types(tokens: list[str]) -> None:
    types = EntityTypes.load().types(tokens)
    assert types
    assert {*TYPES, NOT_VISUAL}.issuperset(types)
    assert len(list(features(tokens, 0, len(tokens)))) >= 2


def test_other_forms_of_a_head() -> None:
    assert "lorry" in head_forms("lorries")
    assert "boots" in head_forms("snow-boots")
    assert "fireman" in head_forms("firemen")
    assert list(head_forms("ox")) == ["ox"]


def test_written_and_read_again_it_is_the_same(tmp_path: Path) -> None:
    EntityTypes.load().save(tmp_path / "types.json")
    assert EntityTypes.load(tmp_path / "types.json").lexicon == EntityTypes.load().lexicon


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"heads": {"furniture": ["chair"]}}, "'furniture' is none of the types"),
        ({"weights": {"": [1, 2]}}, "has not one weight a class"),
        ({"weights": {}}, "has not one weight a class"),
        ({"heads": 3}, "is not a lexicon of types"),
        ({"more": 1}, "is not a lexicon of types"),
    ],
)
def test_a_broken_lexicon_is_refused(tmp_path: Path, change: dict[str, object], problem: str) -> None:
    good = {"heads": {}, "phrases": {}, "classes": ["other"], "weights": {"": [0]}}
    (tmp_path / "types.json").write_text(json.dumps(good | change))
    with pytest.raises(InputError, match=problem):
        EntityTypes.load(tmp_path / "types.json")
