"""What is said of a picture and of its regions, found or made: one record for every way of describing.

A region is described by phrases of a bank that lie near it (paper 2, Fig. 6) or by sentences made for it (paper 4); a
picture by sentences. Of many overlapping regions the best described are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from deixis.corpus.boxes import suppress
from deixis.errors import DeixisError
from deixis.model import Describes, ImageFeatures, RatesDescriptions, Tokens

By = Literal["retrieval", "generation"]
#: Regions of a greater overlap with one that is better described are left out.
OVERLAP = 0.5


class Said(msgspec.Struct, frozen=True):
    """A sentence about a whole picture. Scores compare within one picture and one way of describing."""

    text: str
    score: float
    by: By


class SaidOfRegion(msgspec.Struct, frozen=True):
    """A phrase or sentence about a region; `box` is x1, y1, x2, y2 in the picture's pixels."""

    box: tuple[float, float, float, float]
    text: str
    score: float
    by: By


class Description(msgspec.Struct, frozen=True):
    """All that is said of one picture. What is said of one region stands together, what should be said first before."""

    picture: str
    width: int
    height: int
    captions: tuple[Said, ...] = ()
    regions: tuple[SaidOfRegion, ...] = ()


def generated_captions(matcher: Any, image: ImageFeatures, count: int) -> list[Said]:
    """At most `count` sentences that a matcher makes of a picture."""
    if not isinstance(matcher, Describes):
        raise DeixisError("this run does not make sentences; a captioner does, and concepts with generation")
    return [Said(" ".join(tokens), score, "generation") for tokens, score in matcher.describe(image, count)]


def generated_regions(matcher: Any, image: ImageFeatures, regions: int, count: int) -> list[SaidOfRegion]:
    """At most `count` sentences for each of at most `regions` regions.

    Those come first whose sentence they tell more than others would: by its likelihood alone, what is said of every
    region ("a man") would stand before what is said of one. What is said of several regions is said of the first alone.
    """
    if not isinstance(matcher, RatesDescriptions) or image.boxes is None:
        raise DeixisError("this run does not make sentences of regions; a captioner that learned from regions does")
    said = matcher.describe_regions(image, count)
    first = [tuple(own[0][0]) if own else () for own in said]
    best = matcher.told_by_regions(image, first)
    told: set[Tokens] = {()}
    for number in np.argsort(-best, kind="stable").tolist():
        said[number] = [] if first[number] in told else said[number]
        told.add(first[number])
    return of_regions(np.asarray(image.boxes), said, best, regions, "generation")


def of_regions(
    boxes: NDArray[Any],
    said: Sequence[Sequence[tuple[Tokens, float]]],
    best: NDArray[Any],
    count: int,
    by: By,
) -> list[SaidOfRegion]:
    """What is said of the best regions that do not overlap much.

    Args:
        boxes: `(regions, 4)`.
        said: of each region, best first; a region of which nothing is said is left out.
        best: `(regions,)`, how well each is described.
        count: of regions, at most.
    """
    worth = np.array([number for number, own in enumerate(said) if own], np.int64)
    kept = worth[suppress(boxes[worth], best[worth], OVERLAP, count)]
    return [
        SaidOfRegion((float(x1), float(y1), float(x2), float(y2)), " ".join(tokens), float(score), by)
        for number in kept.tolist()
        for x1, y1, x2, y2 in [boxes[number].tolist()]
        for tokens, score in said[number]
    ]
