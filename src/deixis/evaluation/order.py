"""Whether order is seen: a true caption against the same words with their roles exchanged (paper 3, section 1).

A pair is right if the true caption scores higher for its picture; ties, to rounding, count against us. A model that
guesses is right half of the time; one that does not read order at all ties, and is never right.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Unpack

import numpy as np

from deixis.errors import DeixisError
from deixis.evaluation.matching import Pictures, Told
from deixis.evaluation.results import Protocol, Result, make_result
from deixis.matcher import Encodes, Scores
from deixis.text.twins import Twins

#: Scores closer than this, or than this share of the larger, are equal: the same words in another order sum up in
#: another order.
TOLERANCE = 1e-6


def order_accuracy(
    matcher: Encodes | Scores, pictures: Pictures, twins: Sequence[Twins], **told: Unpack[Told]
) -> Result:
    """The share of twins whose true caption scores higher, in percent: `order.accuracy`, and by relation.

    Args:
        matcher: scores pairs, or encodes.
        pictures: the split; twins of other images are left out.
        twins: from `deixis.text.twins`.
        told: for the result.
    """
    start = time.monotonic()
    images = {image.id: image for image in pictures.images}
    by_image: dict[str, list[Twins]] = {}
    for each in twins:
        if each.image in images:
            by_image.setdefault(each.image, []).append(each)
    if not by_image:
        raise DeixisError("none of the exchanged captions is of an image of this split")
    relations: dict[str, list[float]] = {}
    for image_id, own in by_image.items():
        features = [pictures.features(images[image_id])]
        texts = [tuple(text.split(" ")) for each in own for text in (each.true, each.false)]
        if isinstance(matcher, Scores):
            scores = np.asarray(matcher.score(features, texts)[0], np.float64)
        else:
            scores = matcher.encode_texts(texts) @ matcher.encode_images(features)[0]
        true, false = scores[::2], scores[1::2]
        ahead = (true - false) / np.maximum(1, np.maximum(abs(true), abs(false)))
        for each, lead in zip(own, ahead.tolist(), strict=True):
            relations.setdefault(each.relation, []).append(lead)
    everything = [lead for own in relations.values() for lead in own]
    by_relation = {name: _figures(own) for name, own in sorted(relations.items(), key=lambda item: -len(item[1]))}
    return make_result(
        Protocol("order of words", "a tie is wrong", {**pictures.parameters, "tie_tolerance": TOLERANCE}),
        {"order": {**_figures(everything), "by_relation": by_relation}},
        duration=time.monotonic() - start,
        corpus=pictures.reference,
        counts={"images": len(by_image), "pairs": len(everything)},
        box_supervision=pictures.box_supervision(),
        **told,
    )


def _figures(leads: Sequence[float]) -> dict[str, float]:
    """Of pairs, by how far the true caption is ahead."""
    right = sum(lead > TOLERANCE for lead in leads)
    ties = sum(abs(lead) <= TOLERANCE for lead in leads)
    return {"accuracy": 100 * right / len(leads), "pairs": len(leads), "ties": ties}
