"""Phrases that say how near a thing is to another: "the person nearest to the bench", "the cup far from the laptop".

The grounding network reads such a phrase as a whole, and rarely knows which of two persons is meant. So it is asked for
both things by themselves ("the person", "the bench"), and the score of each region falls with the distance that it is
expected to have from the other thing, or rises for "far from".

The distance is that of the boxes' centres, as in the expressions that measure it (`deixis.text.expressions`). In a
sentence only superlatives count, which ask for one of several: "a man next to a bench" mostly speaks of the only man.
The weight was chosen on validation pictures (results/choices/distances.json).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from deixis.model import Mention, Tokens
from deixis.text.tokens import has_content

Array = NDArray[Any]

#: What a distance as long as a side of the picture counts for in a score.
WEIGHT = 12.0
#: What logits are multiplied by for the probability that a region is the other thing.
SHARPNESS = 1.5
_SUPERLATIVES = {"nearest to": -1, "closest to": -1, "farthest from": 1, "furthest from": 1}
_RELATIONS = _SUPERLATIVES | {"next to": -1, "near": -1, "beside": -1, "by": -1, "far from": 1, "away from": 1}
#: Words, beside those in "-ed", after which "by" names who does something.
_PARTICIPLES = {"caught", "done", "drawn", "driven", "held", "led", "made", "one", "ridden", "shown", "taken", "thrown"}


class Distance(NamedTuple):
    """A thing, and another that is near it (`sign` −1) or far from it (1)."""

    thing: Mention
    landmark: Mention
    sign: int


def distance_in(phrase: Tokens) -> Distance | None:
    """The distance that a phrase speaks of, or a phrase of a sentence together with the words after it.

    >>> distance_in("the dog nearest to the red car".split())
    Distance(thing=('the', 'dog'), landmark=('the', 'red', 'car'), sign=-1)
    >>> distance_in(Mention(tuple("the dog farthest from the car".split()), 0, 2))
    Distance(thing=('the', 'dog'), landmark=('the', 'car'), sign=1)
    >>> distance_in(Mention(tuple("a dog next to a car".split()), 0, 2))
    """
    mention = Mention.of(phrase)
    words = [word.lower() for word in mention.sentence]
    for place in range(mention.start + 1, mention.end + 1):
        for relation, sign in _RELATIONS.items():
            after = place + len(relation.split())
            if " ".join(words[place:after]) != relation:
                continue
            thing, landmark = words[mention.start : place], words[after : mention.end]
            if "not" in thing or (relation == "by" and _is_participle(thing[-1])):
                # "The dog not near the ball", "a boy chased by a dog"
                continue
            if not landmark and relation in _SUPERLATIVES:
                landmark = _first_phrase(words[after:])
            if any(map(has_content, thing)) and any(map(has_content, landmark)):
                return Distance(Mention.of(tuple(thing)), Mention.of(tuple(landmark)), sign)
    return None


def _is_participle(word: str) -> bool:
    # Not "bed", "shed", "sled"
    return word in _PARTICIPLES or (word.endswith("ed") and len(word) > 4)


def _first_phrase(words: list[str]) -> list[str]:
    """The phrase that words begin with, if they do."""
    from deixis.text.phrase_finding import phrases_in

    start, end = next(iter(phrases_in(words)), (0, 0)) if words else (0, 0)
    return words[start:end] if start == 0 else []


class Distances:
    """The distances that phrases speak of.

    Args:
        phrases: all that are asked of a picture together.
    """

    def __init__(self, phrases: Sequence[Tokens]) -> None:
        distances = [distance_in(phrase) for phrase in phrases]
        self._of = {number: distance for number, distance in enumerate(distances) if distance is not None}
        things = [
            phrase if distance is None else distance.thing for phrase, distance in zip(phrases, distances, strict=True)
        ]
        #: What to ask the network for: each phrase, or the thing alone that it speaks of, and then the landmarks.
        self.asked: list[Tokens] = [*things, *(distance.landmark for distance in self._of.values())]

    def applied(self, boxes: Array, logits: Array) -> tuple[Array, Array]:
        """The answers to `asked` as answers to the phrases.

        Args:
            boxes: `(asked, regions, 4)` in [0, 1].
            logits: `(asked, regions)`.

        Returns:
            `(phrases, regions, 4)` and `(phrases, regions)`.
        """
        if not self._of:
            return boxes, logits
        count = len(logits) - len(self._of)
        scores = logits[:count].copy()
        centres = (boxes[..., :2] + boxes[..., 2:]) / 2
        for landmark, (number, distance) in enumerate(self._of.items(), start=count):
            chances = np.exp(SHARPNESS * (logits[landmark] - logits[landmark].max()))
            across, down = np.moveaxis(centres[number][:, None] - centres[landmark][None], -1, 0)
            expected = np.hypot(across, down) @ (chances / chances.sum())
            scores[number] += np.asarray(distance.sign * WEIGHT * expected, scores.dtype)
        return boxes[:count], scores
