"""What a picture shows of a sentence (paper 3, section 4.5): its concepts, where they are, and whether order counts.

A concept is supported where the concept network is confident of it somewhere in the picture. Order counts where the
sentence and the same words with two roles exchanged score differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from deixis.adapters.phrase_bank import LITTLE
from deixis.errors import DeixisError
from deixis.model import Encodes, ImageFeatures, Scores, Tokens
from deixis.papers.concepts_order.concepts import ConceptMatcher
from deixis.papers.concepts_order.model import OrderMatcher
from deixis.text.tokens import has_content

Sides = tuple[float, float, float, float]
#: Scores closer than this are equal: the same words in another order sum up in another order.
TOLERANCE = 1e-6


class FoundConcept(msgspec.Struct, frozen=True):
    """A concept, how sure the network is of it, and where it is most so; `box` is None where that is all of it."""

    concept: str
    part: str
    confidence: float
    box: Sides | None


class Asked(msgspec.Struct, frozen=True):
    """A word of a sentence, the concept it stands for, and whether the picture supports it."""

    word: str
    found: FoundConcept
    supported: bool


class Order(msgspec.Struct, frozen=True):
    """Scores of a sentence and of the same words with roles exchanged.

    `matters` where they differ at all, `leads` where the sentence scores higher.
    """

    score: float
    exchanged: str
    exchanged_score: float
    matters: bool
    leads: bool


class Explanation(msgspec.Struct, frozen=True):
    """`other_words` tell something but are no concepts of the run; `order` is None where nothing can be told of it."""

    picture: str
    sentence: str
    concepts: tuple[Asked, ...]
    other_words: tuple[str, ...]
    order: Order | None
    #: Why not.
    no_order: str = ""


def concepts_of(matcher: Any) -> ConceptMatcher:
    """What predicts concepts in a run."""
    if isinstance(matcher, OrderMatcher) and matcher.concepts is not None:
        return matcher.concepts
    if isinstance(matcher, ConceptMatcher):
        return matcher
    raise DeixisError("this run has no concept network; paper 3's recipes with `concepts` have one")


def found_concepts(matcher: ConceptMatcher, image: ImageFeatures) -> list[FoundConcept]:
    """All concepts in the order of the vocabulary, each at the place where it is most certain."""
    seen = matcher.look(image)
    places = seen.confidences.argmax(0)
    return [
        FoundConcept(
            concept.word,
            concept.part,
            float(seen.confidences[place, number]),
            _sides(seen.boxes[place]) if place else None,
        )
        for number, (concept, place) in enumerate(zip(matcher.vocabulary.concepts, places.tolist(), strict=True))
    ]


def asked_concepts(
    matcher: ConceptMatcher, image: ImageFeatures, tokens: Tokens, least: float
) -> tuple[list[Asked], list[str]]:
    """The concepts of a sentence, each once, and the words that tell something but are none.

    Args:
        least: confidence from which on a concept is supported.
    """
    found = found_concepts(matcher, image)
    asked: dict[int, Asked] = {}
    others: dict[str, None] = {}
    for token in tokens:
        numbers = matcher.vocabulary.find([token])
        if numbers:
            own = found[numbers[0]]
            asked.setdefault(numbers[0], Asked(token, own, own.confidence >= least))
        elif token not in LITTLE and has_content(token):
            others[token] = None
    return list(asked.values()), list(others)


def order_of(matcher: Any, image: ImageFeatures, tokens: Tokens, exchanged: Tokens) -> Order:
    """A sentence and its exchanged twin before one picture."""
    texts: Sequence[Tokens] = [tokens, exchanged]
    if isinstance(matcher, Scores):
        scores = np.asarray(matcher.score([image], texts)[0])
    elif isinstance(matcher, Encodes):
        scores = matcher.encode_texts(texts) @ matcher.encode_images([image])[0]
    else:
        raise DeixisError("this run does not match pictures with sentences")
    return scored_order(scores, exchanged)


def scored_order(scores: Iterable[float], exchanged: Tokens) -> Order:
    """From the scores of a sentence and of its twin."""
    own, other = (float(score) for score in scores)
    matters = abs(own - other) > TOLERANCE * max(1.0, abs(own))
    return Order(own, " ".join(exchanged), other, matters, matters and own > other)


def _sides(box: Any) -> Sides:
    x1, y1, x2, y2 = (float(side) for side in box)
    return x1, y1, x2, y2
