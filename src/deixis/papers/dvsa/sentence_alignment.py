"""A sentence laid over a picture, as a record: snippets with box and score, phrases that say a number counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from deixis.model import ImageFeatures, Tokens
from deixis.papers.dvsa.model import AlignmentMatcher
from deixis.papers.dvsa.snippets import carry_signs, count_regions, is_sign, number_of, phrase_scores, snippets_of

#: A region of this share of the picture is the picture: proposals stop a pixel before its edges.
WHOLE = 0.98

Box = tuple[float, float, float, float]


class AlignedSnippet(msgspec.Struct, frozen=True):
    """Tokens `start` to `end` (exclusive) and where they lie, in the picture's pixels.

    `score` is the sum of their products with that region; of several regions, which a counted phrase has, with all.
    """

    text: str
    start: int
    end: int
    boxes: tuple[Box, ...]
    score: float
    #: It lies on the picture as a whole.
    whole: bool


class Aligned(msgspec.Struct, frozen=True):
    """`score` is S of the picture and the sentence (eq. 1 of the supplement)."""

    picture: str
    width: int
    height: int
    tokens: tuple[str, ...]
    score: float
    beta: float
    temperature: float
    snippets: tuple[AlignedSnippet, ...]


def align_sentence(
    matcher: AlignmentMatcher,
    image: ImageFeatures,
    tokens: Tokens,
    *,
    beta: float,
    temperature: float = 0.0,
    counted: Sequence[tuple[int, int]] = (),
) -> list[AlignedSnippet]:
    """The snippets of one sentence, in order.

    Args:
        beta: what neighbouring words of one region add.
        temperature: above 0, all chains of regions have a say, not the best alone (`most_shared`).
        counted: phrases, as spans of tokens; one that says a number gets as many different regions.
    """
    boxes, (products,) = matcher.align_words(image, [tokens], matcher.regions)
    (states,) = matcher.states([boxes], [products], beta, temperature)
    states = carry_signs(tokens, states)
    numbers = {span: number for span in counted if (number := number_of(tokens[span[0] : span[1]])) is not None}
    # A phrase that is counted is a snippet of its own: a state that no region has keeps it apart from its neighbours.
    for place, (start, end) in enumerate(numbers):
        states[start:end] = [-1 - place] * (end - start)
    found = []
    for snippet in snippets_of(states, products):
        span, chosen = (snippet.start, snippet.end), [snippet.region]
        if all(map(is_sign, tokens[span[0] : span[1]])):
            continue
        if snippet.region < 0:
            scores = phrase_scores(products, boxes, span, beta, temperature)
            chosen = [1 + region for region in count_regions(scores, boxes[1:], numbers[span])] or [0]
        found.append(
            AlignedSnippet(
                " ".join(tokens[span[0] : span[1]]),
                *span,
                tuple(_box(boxes[region]) for region in chosen),
                float(products[span[0] : span[1], chosen].sum()),
                chosen == [0] or all(_covers(boxes[region], boxes[0]) for region in chosen),
            )
        )
    return found


def _covers(box: NDArray[Any], picture: NDArray[Any]) -> bool:
    """Whether a region is the picture, but for a pixel or so at its edges."""
    sides = (box[2:] - box[:2]) / (picture[2:] - picture[:2])
    return bool(sides.prod() >= WHOLE)


def _box(row: NDArray[Any]) -> Box:
    x1, y1, x2, y2 = np.asarray(row, float).tolist()
    return x1, y1, x2, y2
