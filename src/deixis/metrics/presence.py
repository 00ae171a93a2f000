"""Phrase presence: is this phrase in this picture? (Two-branch networks, section 5.6: localization scores cannot say.)

Phrases are the unique strings, in lower case, of the visual phrases of a split; every picture of the split is scored
for each of them. A picture is positive for a phrase if one of its captions has it as a visual phrase, and negative if
the phrase's words do not occur in sequence in any of its captions. Other pictures (the words are there, but not as a
phrase: "a man" in "a man 's hat") are left out for that phrase. Captions do not mention everything, so some negative
pictures do show the phrase: the figures compare models and are not an absolute precision.

Pooled average precision ranks all (phrase, picture) pairs together, so scores must compare across pictures and across
phrases. The mean over phrases ranks the pictures of one phrase at a time, so scores must compare across pictures only.
Ties count against the model. Beside both is what one score for all pairs gets, the share of positive pairs; in the mean
over phrases, most of which are rare, a random order gets more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from deixis.corpus.records import TYPES, Image
from deixis.errors import DeixisError
from deixis.metrics.precision import average_precision
from deixis.model import ImageFeatures, Model, Tokens
from deixis.text.tokens import tokens_of

Floats = npt.NDArray[np.floating]
#: Scores one picture for all phrases, `(phrases,)`, higher where the phrase is more likely there.
PresenceScorer = Callable[[Image, Sequence[Tokens]], Floats]


class DetectsPresence(Protocol):
    """Scores how likely phrases are in pictures, comparably across pictures and phrases."""

    def presence(self, image: ImageFeatures, phrases: Sequence[Tokens]) -> Floats:
        """`(phrases,)`, higher where the phrase is more likely to name something in the picture."""


@dataclass(frozen=True)
class Presence:
    """Average precisions in percent, those of a constant score, and the numbers of pairs."""

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
    """Phrases, their types, and the label of each picture for each of them."""

    phrases: tuple[Tokens, ...]
    types: tuple[tuple[str, ...], ...]
    #: `(phrases, pictures)`: 1 positive, 0 negative, −1 left out.
    labels: npt.NDArray[np.int8]


class BestRegion:
    """Presence by the score of the best region: uses a localizer, trained within pictures, as a detector."""

    def __init__(self, localizer: Model) -> None:
        self._localizer = localizer

    def presence(self, image: ImageFeatures, phrases: Sequence[Tokens]) -> Floats:
        best_scores: Floats = np.max(self._localizer.localize(image, phrases).scores, axis=1, initial=-np.inf)
        return best_scores


def presence_precision(scores: npt.ArrayLike, labels: npt.ArrayLike) -> dict[str, Any]:
    """Average precisions of phrase presence, in percent.

    Args:
        scores: `(phrases, images)`, higher where the phrase is more likely to be in the image.
        labels: the same shape: 1 the phrase is there, 0 it is not, −1 left out. Every phrase needs a 1.

    Returns:
        `pooled_ap` ranks all (phrase, image) pairs together; `mean_ap` ranks the images of one phrase at a time and
        takes the mean over phrases. `constant_score` has what one score for all pairs gets, `by_phrase` the average
        precision of each phrase `(phrases,)`, from 0 to 1.

    Raises:
        DeixisError: the shapes differ, a score is NaN, or a phrase is in no image.

    >>> found = presence_precision([[0.9, 0.2], [0.3, 0.1]], labels=[[1, 0], [0, 1]])
    >>> found["mean_ap"], found["pooled_ap"], found["constant_score"]
    (75.0, 75.0, {'pooled_ap': 50.0, 'mean_ap': 50.0})
    """
    values, marks = np.asarray(scores), np.asarray(labels)
    if values.ndim != 2 or values.shape != marks.shape:
        raise DeixisError(f"scores {values.shape} and labels {marks.shape} must be matrices of the same shape")
    right, wrong = (marks == 1).sum(1), (marks == 0).sum(1)
    by_phrase = np.array([_precision(row, mark) for row, mark in zip(values, marks, strict=True)])
    return {
        "pooled_ap": 100 * _precision(values, marks),
        "mean_ap": 100 * float(by_phrase.mean()),
        "constant_score": {
            "pooled_ap": 100 * float(right.sum() / (right.sum() + wrong.sum())),
            "mean_ap": 100 * float((right / (right + wrong)).mean()),
        },
        "by_phrase": by_phrase,
    }


def _precision(scores: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float:
    return average_precision(scores[labels >= 0], labels[labels >= 0] == 1)


def presence_questions(images: Iterable[Image]) -> PresenceQuestions:
    """The phrases of a split, in order of appearance, with the labels of all its images."""
    types: dict[tuple[str, ...], dict[str, None]] = {}
    named: list[set[tuple[str, ...]]] = []
    texts: list[str] = []
    for image in images:
        captions = [tokens_of(caption) for caption in image.captions]
        # Words are separated by one space and captions by a newline, which no token contains.
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
        row[:] = [1 if string in strings else -(words in text) for strings, text in zip(named, texts, strict=True)]
    return PresenceQuestions(tuple(types), tuple(tuple(strings) for strings in types.values()), labels)


def evaluate_presence(images: Sequence[Image], score: PresenceScorer) -> Presence:
    """Score every phrase of the images on every image."""
    asked = presence_questions(images)
    if not asked.phrases or not (asked.labels == 0).any():
        raise DeixisError("nothing to detect: no phrase of these images is absent from one of them")
    scores = np.empty(asked.labels.shape, np.float32)
    for index, image in enumerate(images):
        chances = np.asarray(score(image, asked.phrases))
        if chances.shape != (len(asked.phrases),) or not (chances < np.inf).all():
            raise DeixisError(
                f"image {image.id}: expected {len(asked.phrases)} presence scores without NaN or +inf, "
                f"got an array of shape {chances.shape}: {chances}"
            )
        scores[:, index] = chances
    precision = presence_precision(scores, asked.labels)
    by_phrase = precision["by_phrase"]
    types = [*TYPES, *sorted({name for phrase_types in asked.types for name in phrase_types} - set(TYPES))]
    of_type = {
        name: [phrase for phrase, phrase_types in enumerate(asked.types) if name in phrase_types] for name in types
    }
    return Presence(
        pooled=precision["pooled_ap"],
        pooled_constant=precision["constant_score"]["pooled_ap"],
        mean=precision["mean_ap"],
        mean_constant=precision["constant_score"]["mean_ap"],
        by_type={name: 100 * float(by_phrase[chosen].mean()) for name, chosen in of_type.items() if chosen},
        phrases=len(asked.phrases),
        right=int((asked.labels == 1).sum()),
        wrong=int((asked.labels == 0).sum()),
        left_out=int((asked.labels < 0).sum()),
    )
