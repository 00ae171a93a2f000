"""Whether order is seen: a true caption against the same words with their roles exchanged (paper 3, section 1).

A pair is right if the true caption scores higher for its picture; ties count against us. A model without order is
right by chance, half of the time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple, Unpack

import numpy as np

from deixis.errors import DeixisError
from deixis.evaluation.matching import Pictures, Told
from deixis.evaluation.results import Protocol, Result, make_result
from deixis.matcher import Encodes, Scores, Tokens


class Twins(NamedTuple):
    """A caption that is true of an image, and one in the same words that is false of it."""

    image_id: str
    true: Tokens
    false: Tokens


def order_accuracy(
    matcher: Encodes | Scores, pictures: Pictures, twins: Sequence[Twins], **told: Unpack[Told]
) -> Result:
    """The share of twins whose true caption scores higher, in percent: `order.accuracy`.

    Args:
        matcher: scores pairs, or encodes.
        pictures: the split; twins of other images are left out.
        twins: from `deixis.corpus.scenes.order_swaps`, or captions with `deixis.text.exchange`.
        told: for the result.
    """
    start = time.monotonic()
    images = {image.id: image for image in pictures.images}
    chosen = [each for each in twins if each.image_id in images]
    if not chosen:
        raise DeixisError("none of the exchanged captions is of an image of this split")
    right = 0
    by_image: dict[str, list[Twins]] = {}
    for each in chosen:
        by_image.setdefault(each.image_id, []).append(each)
    for image_id, own in by_image.items():
        features = [pictures.features(images[image_id])]
        texts = [text for each in own for text in (each.true, each.false)]
        if isinstance(matcher, Scores):
            scores = matcher.score(features, texts)[0]
        else:
            scores = matcher.encode_texts(texts) @ matcher.encode_images(features)[0]
        right += int(np.sum(scores[::2] > scores[1::2]))
    return make_result(
        Protocol("order of words", "a tie is wrong", dict(pictures.parameters)),
        {"order": {"accuracy": 100 * right / len(chosen)}},
        duration=time.monotonic() - start,
        corpus=pictures.reference,
        counts={"images": len(by_image), "pairs": len(chosen)},
        box_supervision=pictures.box_supervision(),
        **told,
    )
