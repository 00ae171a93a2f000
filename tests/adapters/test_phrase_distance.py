"""Phrases that say how near a thing is to another are answered by where both things are."""

import numpy as np
import pytest

from deixis.adapters.phrase_distance import Distances, distance_in
from deixis.model import Mention

#: Two dogs and a bench at the right.
BOXES = np.array([[0.0, 0.4, 0.2, 0.6], [0.5, 0.4, 0.7, 0.6], [0.8, 0.4, 1.0, 0.6]], np.float32)


@pytest.mark.parametrize(
    ("phrase", "thing", "landmark", "sign"),
    [
        ("the dog nearest to the bench", "the dog", "the bench", -1),
        ("The Dog next to the red bench", "the dog", "the red bench", -1),
        ("two dogs by the bench", "two dogs", "the bench", -1),
        ("the cell phone by the bed", "the cell phone", "the bed", -1),
        ("the dog far from the bench", "the dog", "the bench", 1),
    ],
)
def test_both_things_of_a_phrase_are_found(phrase: str, thing: str, landmark: str, sign: int) -> None:
    found = distance_in(tuple(phrase.split()))
    assert found is not None
    assert (" ".join(found.thing), " ".join(found.landmark), found.sign) == (thing, landmark, sign)


PASSIVE, NEGATED = "a boy chased by a dog", "the dog not near the ball"


@pytest.mark.parametrize(
    "phrase", ["a dog", "the nearest dog", "a dog by", "near the bench", "a bench by .", PASSIVE, NEGATED]
)
def test_other_phrases_speak_of_no_distance(phrase: str) -> None:
    assert distance_in(tuple(phrase.split())) is None


def words(sentence: str) -> tuple[str, ...]:
    return tuple(sentence.split())


def test_in_a_sentence_only_superlatives_ask_for_one_of_several() -> None:
    sentence = words("the dog closest to the old bench sleeps next to a ball")
    found = distance_in(Mention(sentence, 0, 2))
    assert found is not None
    assert tuple(found.landmark) == ("the", "old", "bench")
    # The chunker may count the superlative to the phrase.
    assert distance_in(Mention(sentence, 0, 3)) == found
    assert distance_in(Mention(words("a dog next to a ball"), 0, 2)) is None
    assert distance_in(Mention(("the", "dog", "closest", "to"), 0, 2)) is None


@pytest.mark.parametrize(("relation", "best"), [("nearest to", 1), ("farthest from", 0)])
def test_the_distance_decides_between_things_of_one_name(relation: str, best: int) -> None:
    phrases = [("a", "bench"), tuple(f"the dog {relation} the bench".split())]
    distances = Distances(phrases)
    assert [" ".join(asked) for asked in distances.asked] == ["a bench", "the dog", "the bench"]
    dogs, bench = [4.0, 4.0, -4.0], [-4.0, -4.0, 4.0]
    logits = np.array([bench, dogs, bench], np.float32)
    boxes, scores = distances.applied(np.stack([BOXES, BOXES + 0.01, BOXES]), logits)
    assert boxes.shape == (2, 3, 4)
    # Boxes are those of the dogs; the other phrase stays as it is, and so do the logits that were given.
    assert np.array_equal(boxes[1], BOXES + np.float32(0.01))
    assert scores[0].tolist() == bench
    assert int(scores[1].argmax()) == best
    assert logits[1].tolist() == dogs
    # The bench is no dog, near as it is to itself.
    assert scores[1, 2] < scores[1, best]


def test_nothing_is_changed_where_no_phrase_speaks_of_a_distance() -> None:
    phrases = [("a", "dog"), Mention(("a", "dog", "by", "a", "bench"), 0, 2)]
    distances = Distances(phrases)
    assert distances.asked == phrases
    boxes, logits = np.stack([BOXES, BOXES]), np.zeros((2, 3), np.float32)
    answers = distances.applied(boxes, logits)
    assert answers[0] is boxes
    assert answers[1] is logits
