"""The grammar of queries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deixis.errors import DeixisError
from deixis.search.queries import parse_query


@pytest.mark.parametrize(
    ("text", "phrases", "without"),
    [
        ("two dogs in the snow", ["two dogs in the snow"], []),
        ('"a red car" "snow"', ["a red car", "snow"], []),
        ("a red car AND snow", ["a red car", "snow"], []),
        ("salt and pepper", ["salt and pepper"], []),
        ('a beach -people -"a red boat"', ["a beach"], ["people", "a red boat"]),
        ("a beach and not people", ["a beach"], ["people"]),
        ('a beach and not "red people"', ["a beach"], ["red people"]),
        ('"a" AND NOT b and not c', ["a"], ["b", "c"]),
        ("a t-shirt - red", ["a t-shirt - red"], []),
        ("“a dog” “a cat”", ["a dog", "a cat"], []),
    ],
)
def test_queries_are_taken_apart(text: str, phrases: list[str], without: list[str]) -> None:
    query = parse_query(text)
    assert (list(query.phrases), list(query.without)) == (phrases, without)


@pytest.mark.parametrize(
    ("text", "problem"), [("", "no words"), ("  ", "no words"), ("-people", "only what must not"), ('a "dog', "closed")]
)
def test_what_is_no_query_is_told(text: str, problem: str) -> None:
    with pytest.raises(DeixisError, match=problem):
        parse_query(text)


def test_beside_a_picture_words_may_be_missing() -> None:
    assert parse_query("", needs_phrase=False)[1:] == ((), ())
    assert parse_query("-people", needs_phrase=False)[1:] == ((), ("people",))


@given(st.text(alphabet='ab "-ANDnot“', max_size=30))
def test_any_text_is_a_query_or_a_told_fault(text: str) -> None:
    try:
        query = parse_query(text)
    except DeixisError:
        return
    assert query.phrases
    assert all(part.strip() == part and part for part in (*query.phrases, *query.without))
