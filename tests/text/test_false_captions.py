"""False captions: what is changed, what is left alone because another caption says it, and the balance of changes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from deixis.text.false_captions import FalseCaption, balanced, colour_counts, false_captions


def made(caption: str, *others: str, kind: str | None = None, seed: int = 0) -> list[str]:
    tokens = [tuple(other.split()) for other in others]
    found = false_captions(tuple(caption.split()), tokens, np.random.default_rng(seed))
    return [" ".join(each.tokens) for each in found if kind in (None, each.kind)]


def test_a_colour_becomes_one_that_no_caption_names() -> None:
    others = ("a white bus", "green trees by a black road")
    for seed in range(20):
        [caption] = made("a red bus on the street", *others, kind="colour", seed=seed)
        colour = caption.split()[1]
        # Pink and orange are too near to red, gray to black.
        assert colour in {"blue", "yellow", "purple", "brown"}


@pytest.mark.parametrize("caption", ["a black and white dog runs", "he eats an orange .", "an orange"])
def test_colours_that_are_no_colour_of_one_thing_are_left_alone(caption: str) -> None:
    assert not made(caption, kind="colour")


def test_false_colours_are_those_that_things_have() -> None:
    counts = colour_counts([("a", "brown", "dog"), ("a", "brown", "dog")] * 100)
    random = np.random.default_rng(0)
    drawn = Counter(false_captions(("a", "black", "dog"), [], random, counts)[0].after for _ in range(50))
    assert drawn["brown"] > 45


def test_numbers_change_only_where_the_captions_agree() -> None:
    assert made("two dogs run", "2 dogs", "a pair of dogs", kind="number")
    assert not made("two dogs run", "three dogs run", kind="number")


def test_one_thing_becomes_two_and_two_become_one() -> None:
    assert "an old man is running in snow" in made("two old men are running in snow", kind="number")
    assert made("a black dog is running in snow", kind="number") == ["two black dogs are running in snow"]
    # "a dog runs" would need another verb, and other captions may name several dogs.
    assert not made("a dog runs fast", kind="number")
    assert not made("a dog is running in snow", "dogs in the snow", kind="number")


def test_attributes_become_their_opposites_unless_a_caption_says_so() -> None:
    [caption] = made("a small dog in the snow", kind="attribute")
    assert caption.split()[1] in {"big", "large", "huge"}
    assert not made("a small dog in the snow", "a large dog", kind="attribute")


def test_modifiers_and_parties_change_places() -> None:
    assert made("a man in a red shirt and a woman in a blue dress", kind="role") == [
        "a man in a blue shirt and a woman in a red dress",
        "a man in a red dress and a woman in a blue shirt",
        "a woman in a red shirt and a man in a blue dress",
    ]
    assert made("a man carries a child", kind="role") == ["a child carries a man"]
    # These hold both ways.
    assert made("a black dog chases a white dog", kind="role") == ["a white dog chases a black dog"]
    assert made("a woman in red and a boy in a blue hat", kind="role") == [
        "a woman in blue and a boy in a red hat",
        "a boy in red and a woman in a blue hat",
    ]
    assert made("a man in a hat and a woman in a dress", kind="role") == [
        "a man in a dress and a woman in a hat",
        "a woman in a hat and a man in a dress",
    ]
    assert made("a man and a girl in a red dress", kind="role") == ["a girl and a man in a red dress"]
    assert not made("a man and a girl in red hats", kind="role")
    # Who may be the same is not exchanged, nor what another caption says.
    assert not made("a boy holds a child", kind="role")
    assert not made("a batter watches a man", kind="role")
    assert not made("a man in a red shirt and a woman", "a woman wearing a red top", kind="role")
    assert not made("a man holds a child", "a child held by a man", kind="role")
    assert not made("a black dog and a white dog", kind="role")
    assert not made("a player in blue and one in red", kind="role")
    assert not made("a man sits next to a woman", kind="role")
    assert not made("a man and a woman", kind="role")
    # What another caption says is not false.
    assert not made("a red ball and a blue box", "the red box", kind="role")
    assert not made("a man hands it to a woman", "a woman gets it from a man", kind="role")


def test_every_change_is_as_frequent_as_its_reverse() -> None:
    changes = [FalseCaption("number", ("x",), "two", "three")] * 5 + [
        FalseCaption("number", ("x",), "three", "two")
    ] * 2
    changes += [FalseCaption("role", ("x",), "red", "blue")] * 3 + [FalseCaption("colour", ("x",), "red", "blue")]
    kept = balanced(changes, changes, np.random.default_rng(0))
    counts = Counter((change.kind, change.before) for change in kept)
    assert counts == {("number", "two"): 2, ("number", "three"): 2, ("role", "red"): 3}
