"""Phrase presence: is this phrase in this picture? (Paper 1, section 5.6, says that its scores cannot tell.)

Phrases are the unique strings, in lower case, of the visual phrases of a split; every picture of the split is scored
for each of them. A picture is right for a phrase if one of its captions has it as a visual phrase, and wrong if the
phrase's words do not occur, one after the other, in any of its captions. Other pictures (the words are there, but not
as a phrase: "a man" in "a man 's hat") are left out for that phrase. Captions leave things out, so some wrong pictures
do show the phrase: the figures compare matchers, they are no absolute precision.

The pooled average precision ranks all (phrase, picture) pairs together, so it asks for scores that compare across
pictures and across phrases; the mean over phrases ranks the pictures of one phrase at a time, so it asks for the first
alone. Ties count against us; precision is interpolated at all points. Beside both stands what one score for all pairs
gets, the share of right pairs; in the mean over phrases, most of which are rare, a random order gets more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deixis.corpus.records import TYPES, Image
from deixis.errors import DeixisError
from deixis.metrics.average_precision import average_precision
from deixis.model import ImageFeatures, Localizes, Tokens
from deixis.text.tokens import tokens_of

Floats = npt.NDArray[np.floating]
#: Scores one picture for all phrases, `(phrases,)`, higher where the phrase is more likely there.
PresenceScorer = Callable[[Image, Sequence[Tokens]], Floats]


@dataclass(frozen=True)
class Presence:
    """Average precisions in percent, those of one constant score beside them, and what was ranked."""

    pooled: float
    pooled_constant: float
    #: Over unique phrases, unweighted; by type, over the phrases that occur with the type.
    mean: float
    mean_constant: float
    by_type: dict[str, float]
    phrases: int
    right: int
    wrong: int
    left_out: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "pooled_ap": self.pooled,
            "mean_ap": self.mean,
            "constant_score": {"pooled_ap": self.pooled_constant, "mean_ap": self.mean_constant},
            "by_type": self.by_type,
        }


@dataclass(frozen=True)
class PresenceQuestions:
    """Phrases, their types, and what each picture is to each of them."""

    phrases: tuple[Tokens, ...]
    types: tuple[tuple[str, ...], ...]
    #: `(phrases, pictures)`: 1 right, 0 wrong, −1 left out.
    labels: npt.NDArray[np.int8]


class BestRegion:
    """Presence by the score of the best region: how a localizer, trained within pictures, does as a detector."""

    def __init__(self, localizer: Localizes) -> None:
        self._localizer = localizer

    def presence(self, image: ImageFeatures, phrases: Sequence[Tokens]) -> Floats:
        found: Floats = np.max(self._localizer.localize(image, phrases).scores, axis=1, initial=-np.inf)
        return found


def presence_questions(images: Iterable[Image]) -> PresenceQuestions:
    """The phrases of a split, in order of appearance, with the labels of all its images."""
    types: dict[tuple[str, ...], dict[str, None]] = {}
    named: list[set[tuple[str, ...]]] = []
    texts: list[str] = []
    for image in images:
        captions = [tokens_of(caption) for caption in image.captions]
        # Words are separated by one blank and captions by a line end, which no token has.
        texts.append("\n".join(f" {' '.join(tokens)} " for tokens in captions))
        named.append(set())
        for caption, tokens in zip(image.captions, captions, strict=True):
            for phrase in caption.phrases:
                if phrase.visual:
                    string = tokens[phrase.start : phrase.end]
                    types.setdefault(string, {}).update(dict.fromkeys(phrase.types))
                    named[-1].add(string)
    labels = np.zeros((len(types), len(texts)), np.int8)
    for row, string in zip(labels, types, strict=True):
        words = f" {' '.join(string)} "
        row[:] = [1 if string in own else -(words in text) for own, text in zip(named, texts, strict=True)]
    return PresenceQuestions(tuple(types), tuple(tuple(own) for own in types.values()), labels)


def evaluate_presence(images: Sequence[Image], score: PresenceScorer) -> Presence:
    """Score every phrase of the images on every image."""
    asked = presence_questions(images)
    if not asked.phrases or not (asked.labels == 0).any():
        raise DeixisError("nothing to detect: no phrase of these images is absent from one of them")
    scores = np.empty(asked.labels.shape, np.float32)
    for number, image in enumerate(images):
        given = np.asarray(score(image, asked.phrases))
        if given.shape != (len(asked.phrases),) or not (given < np.inf).all():
            raise DeixisError(
                f"image {image.id}: the presence of {len(asked.phrases)} phrases came as an array of shape "
                f"{given.shape} with values that cannot all be ranked"
            )
        scores[:, number] = given
    single = np.array([_average_precision(own, labels) for own, labels in zip(scores, asked.labels, strict=True)])
    right, wrong = ((asked.labels == label) for label in (1, 0))
    types = [*TYPES, *sorted({name for own in asked.types for name in own} - set(TYPES))]
    of_type = {name: [number for number, own in enumerate(asked.types) if name in own] for name in types}
    return Presence(
        pooled=100 * _average_precision(scores, asked.labels),
        pooled_constant=100 * float(right.sum() / (right.sum() + wrong.sum())),
        mean=100 * float(single.mean()),
        mean_constant=100 * float((right.sum(1) / (right.sum(1) + wrong.sum(1))).mean()),
        by_type={name: 100 * float(single[chosen].mean()) for name, chosen in of_type.items() if chosen},
        phrases=len(asked.phrases),
        right=int(right.sum()),
        wrong=int(wrong.sum()),
        left_out=int((asked.labels < 0).sum()),
    )


def _average_precision(scores: Floats, labels: npt.NDArray[np.int8]) -> float:
    """The average precision of one ranking, from 0 to 1."""
    right = np.sort(scores[labels == 1])[::-1]
    wrong = np.sort(scores[labels == 0])
    return average_precision(len(wrong) - np.searchsorted(wrong, right, side="left"), len(right))
