"""What of a sentence a picture supports: its concepts, and the order of its words (`deixis explain`).

A concept is supported where the model is confident of it somewhere in the picture. Order counts where the sentence and
the same words with two roles exchanged score differently.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from deixis.adapters.phrase_bank import LITTLE
from deixis.model import Concept, ImageInput, Model, Tokens
from deixis.text.tokens import has_content

#: Scores closer than this are equal: the same words in another order sum up in another order.
TOLERANCE = 1e-6


class AskedConcept(msgspec.Struct, frozen=True):
    """A word of a sentence, the concept it stands for, and whether the picture supports it."""

    word: str
    found: Concept
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
    """`other_words` have content but are no concepts of the model; `order` is None where `no_order` says why."""

    picture: str
    sentence: str
    concepts: tuple[AskedConcept, ...]
    other_words: tuple[str, ...]
    order: Order | None
    no_order: str = ""


def asked_concepts(
    model: Model, image: ImageInput, tokens: Tokens, least: float
) -> tuple[list[AskedConcept], list[str]]:
    """The concepts of a sentence, each once, and the words that have content but are no concepts.

    Args:
        least: confidence from which on a concept is supported.
    """
    asked: dict[str, AskedConcept] = {}
    known = set()
    for concept in model.concepts(image, tokens):
        known.add(concept.word)
        plain = msgspec.structs.replace(concept, word="")
        asked.setdefault(concept.concept, AskedConcept(concept.word, plain, concept.confidence >= least))
    others = [token for token in tokens if token not in known and token not in LITTLE and has_content(token)]
    return list(asked.values()), list(dict.fromkeys(others))


def order_of(scores: Iterable[float], exchanged: Tokens) -> Order:
    """From the scores of a sentence and of its twin."""
    own, other = (float(score) for score in scores)
    matters = abs(own - other) > TOLERANCE * max(1.0, abs(own))
    return Order(own, " ".join(exchanged), other, matters, matters and own > other)
