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
        # A dash that stands alone says nothing.
        ("a t-shirt - red", ["a t-shirt red"], []),
        ("a dog -", ["a dog"], []),
        ("a beach – no people", ["a beach"], ["people"]),
        ("a street without cars", ["a street"], ["cars"]),
        ("a street without any cars or people", ["a street"], ["cars", "people"]),
        ("a street without cars, trucks and people", ["a street"], ["cars", "trucks", "people"]),
        ("a beach without people at sunset", ["a beach at sunset"], ["people"]),
        ("a street with no cars and a blue sky", ["a street", "a blue sky"], ["cars"]),
        ("a street, no cars, at night", ["a street at night"], ["cars"]),
        ("a dog but not a cat", ["a dog"], ["cat"]),
        ("a man not wearing a shirt", ["a man"], ["shirt"]),
        ("No people", [], ["people"]),
        ("nobody on the beach", ["on the beach"], ["people"]),
        ("a beach with no one", ["a beach"], ["people"]),
        ("a cat AND no dog AND a sofa", ["a cat", "a sofa"], ["dog"]),
        ('a plate without "a knife and fork" or cups', ["a plate"], ["a knife and fork", "cups"]),
        # These are not negations.
        ("a no parking sign", ["a no parking sign"], []),
        ('"a street without cars"', ["a street without cars"], []),
        ("-people", [], ["people"]),
        ("“a dog” “a cat”", ["a dog", "a cat"], []),
    ],
)
def test_queries_are_taken_apart(text: str, phrases: list[str], without: list[str]) -> None:
    query = parse_query(text)
    assert (list(query.phrases), list(query.without)) == (phrases, without)


@pytest.mark.parametrize(
    ("text", "phrases", "either"),
    [
        ("a dog or a cat", ["a dog", "a cat"], [0, 0]),
        ("a horse or a cow or a sheep", ["a horse", "a cow", "a sheep"], [0, 0, 0]),
        ('"a dog" or "a cat" "snow"', ["a dog", "a cat", "snow"], [0, 0, 1]),
        ('"snow" "a dog" or "a cat"', ["snow", "a dog", "a cat"], [0, 1, 1]),
        ("a dog OR a cat AND snow -people", ["a dog", "a cat", "snow"], [0, 0, 1]),
        # What stands once and belongs to both.
        ("a man in a red or blue shirt", ["a man in a red shirt", "a man in a blue shirt"], [0, 0]),
        ("two or three dogs", ["two dogs", "three dogs"], [0, 0]),
        ("a dog on a beach or in the snow", ["a dog on a beach", "a dog in the snow"], [0, 0]),
        ("a girl in red or blue", ["a girl in red", "a girl in blue"], [0, 0]),
        ("dogs or cats in the snow", ["dogs in the snow", "cats in the snow"], [0, 0]),
        ("a man or woman riding a horse", ["a man riding a horse", "woman riding a horse"], [0, 0]),
        ("a car or a man riding a horse", ["a car", "a man riding a horse"], [0, 0]),
        # Nothing to choose from.
        ("one or more dogs", ["one or more dogs"], []),
        ("a dog or", ["a dog"], []),
        ("or a dog", ["a dog"], []),
        ('"a dog or a cat"', ["a dog or a cat"], []),
        ("a red car AND snow", ["a red car", "snow"], []),
    ],
)
def test_or_separates_alternatives(text: str, phrases: list[str], either: list[int]) -> None:
    query = parse_query(text)
    numbers = list(dict.fromkeys(query.either))
    assert (list(query.phrases), [numbers.index(number) for number in query.either]) == (phrases, either)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a dog.", "a dog"),
        ("a DOG!", "a DOG"),
        ("a dog ?!", "a dog"),
        ("a dog, running; in snow...", "a dog running in snow"),
        ('"a dog".', '"a dog"'),
        ("a beach -people.", "a beach -people"),
        ("a street without cars!", "a street without cars"),
        ("a no parking sign.", "a no parking sign"),
        ("find a dog", "a dog"),
        ("Find me pictures of dogs", "dogs"),
        ("Is there a dog?", "a dog"),
        ("are there any photos of a dog", "a dog"),
        ("cats please", "cats"),
        ("exactly five zebras", "five zebras"),
        ('"just married" only', '"just married"'),
        ("show me my photos with two dogs", "two dogs"),
        ('search for "a dog" -people', '"a dog" -people'),
        ("give me some images showing a beach without people", "a beach without people"),
        ("I want a snapshot that shows a dog", "a dog"),
        ("a photo of a dog", "a dog"),
        ("photographs of no people", "no people"),
        ("find a photo", "a photo"),
        ("2 dogs", "two dogs"),
        ("a man with 10 red balloons", "a man with ten red balloons"),
        ("a beach without 3 people", "a beach without three people"),
    ],
)
def test_wording_that_does_not_say_what_is_meant_changes_nothing(text: str, plain: str) -> None:
    assert parse_query(text)[1:] == parse_query(plain)[1:]


@pytest.mark.parametrize(
    "text",
    [
        "a photo",
        "a photo of",
        "find me",
        "show me",
        "a man taking a photo of a dog",
        "pictures on a wall",
        "show jumping",
        "a finder",
        "a shirt with a 2",
        "a 7 on a shirt",
        "12 dogs",
        "a 3.5 mm lens",
        "a t-shirt",
    ],
)
def test_other_wording_stays(text: str) -> None:
    assert parse_query(text).phrases == (text,)


def test_words_in_quotes_stay() -> None:
    assert parse_query('"a photo of 2 dogs."').phrases == ("a photo of 2 dogs.",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "names nothing"),
        ("  ", "names nothing"),
        ("without", "names nothing"),
        ("the", "names nothing"),
        ('a "dog', "closed"),
    ],
)
def test_a_text_without_words_or_with_an_open_quotation_is_refused(text: str, problem: str) -> None:
    with pytest.raises(DeixisError, match=problem):
        parse_query(text)


def test_a_query_of_thousands_of_letters_or_words_is_refused() -> None:
    for text in ("a" * 1001, "a dog on a red car " * 2000, '-"a' * 400):
        with pytest.raises(DeixisError, match=r"characters; up to 1,000 are read"):
            parse_query(text)


def test_beside_a_picture_words_may_be_missing() -> None:
    assert parse_query("", needs_words=False)[1:3] == ((), ())
    assert parse_query("-people", needs_words=False)[1:3] == ((), ("people",))


@given(st.text(alphabet='ab "-,ANDnot“', max_size=30))
def test_any_text_is_a_query_or_a_reported_fault(text: str) -> None:
    try:
        query = parse_query(text)
    except DeixisError:
        return
    assert query.phrases or query.without
    assert all(part.strip() == part and part for part in (*query.phrases, *query.without))
