"""The phrases of a typed sentence, with the sides of the picture that say which of several things is meant."""

import pytest

from deixis.text.phrase_finding import find_phrases, without_side
from deixis.text.tokens import tokenize


@pytest.mark.parametrize(
    ("sentence", "phrases"),
    [
        ("the dog on the left", ["the dog on the left"]),
        ("A man on the left and a woman on the right.", ["A man on the left", "a woman on the right"]),
        ("a dog on the far right of the picture", ["a dog on the far right of the picture"]),
        ("two dogs at the bottom in the snow", ["two dogs at the bottom", "the snow"]),
        ("a dog on the left side", ["a dog on the left side"]),
        # A side of something else
        ("a ring on the left hand", ["a ring", "the left hand"]),
        ("the man on the left of the car", ["the man", "the left of the car"]),
    ],
)
def test_a_side_of_the_picture_belongs_to_the_phrase_before_it(sentence: str, phrases: list[str]) -> None:
    tokens = tokenize(sentence)
    assert [" ".join(tokens[start:end]) for start, end in find_phrases(sentence)] == phrases


def test_what_is_there_is_asked_without_its_side() -> None:
    assert without_side("the dog on the far left") == "the dog"
    assert without_side("two dogs at the bottom of the picture") == "two dogs"
    for phrase in ("the left dog", "on the left", "a ring on the left hand"):
        assert without_side(phrase) == phrase
