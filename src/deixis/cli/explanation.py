"""Which parts of a sentence a picture supports: concepts, colours, numbers, and word order (`deixis explain`).

A concept is supported if the model is confident of it somewhere in the picture. Order matters if the sentence and the
same words with two roles exchanged score differently. A colour, number or attribute is supported if the sentence scores
higher than with another one.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from deixis.adapters.changed_sentences import Changed
from deixis.adapters.phrase_bank import LITTLE
from deixis.model import Concept, ImageInput, Model, Tokens
from deixis.text.tokens import has_content

#: Scores closer than this are equal: sums in another order differ by rounding.
TOLERANCE = 1e-6
#: The confidence that a supported concept has at least.
SUPPORTED = 0.5


class AskedConcept(msgspec.Struct, frozen=True):
    """A word of a sentence, its concept, and whether the picture supports it."""

    word: str
    found: Concept
    supported: bool


class Order(msgspec.Struct, frozen=True):
    """Scores of a sentence and of the same words with roles exchanged.

    `matters`: they differ at all; `leads`: the sentence scores higher.
    """

    score: float
    exchanged: str
    exchanged_score: float
    matters: bool
    leads: bool


class Explanation(msgspec.Struct, frozen=True):
    """`other_words`: content words that are not concepts of the model; `order` is None if `no_order` says why.

    `changes`: what the sentence would be with another colour, number or attribute, or with two of them exchanged.
    """

    picture: str
    sentence: str
    concepts: tuple[AskedConcept, ...]
    other_words: tuple[str, ...]
    order: Order | None
    no_order: str = ""
    changes: tuple[Changed, ...] = ()


def asked_concepts(model: Model, image: ImageInput, tokens: Tokens) -> tuple[list[AskedConcept], list[str]]:
    """The concepts of a sentence, each once, and its content words that are not concepts."""
    asked: dict[str, AskedConcept] = {}
    known = set()
    for concept in model.concepts(image, tokens):
        known.add(concept.word)
        plain = msgspec.structs.replace(concept, word="")
        asked.setdefault(concept.concept, AskedConcept(concept.word, plain, concept.confidence >= SUPPORTED))
    others = [token for token in tokens if token not in known and token not in LITTLE and has_content(token)]
    return list(asked.values()), list(dict.fromkeys(others))


def order_of(scores: Iterable[float], exchanged: Tokens) -> Order:
    """Compare the scores of a sentence and of its twin with roles exchanged."""
    sentence, twin = (float(score) for score in scores)
    matters = abs(sentence - twin) > TOLERANCE * max(1.0, abs(sentence))
    return Order(sentence, " ".join(exchanged), twin, matters, matters and sentence > twin)
