"""The sentences that models retrieve for pictures (the SCO paper, Fig. 4), to be looked at side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from deixis.corpus.records import Image
from deixis.errors import DeixisError
from deixis.metrics.protocols import Pictures
from deixis.model import Model


class Retrieved(NamedTuple):
    """A sentence, its score, and whether it is one of the picture's own captions."""

    text: str
    score: float
    own: bool


def retrieved_sentences(
    model: Model, pictures: Pictures, images: Sequence[Image], count: int
) -> list[tuple[list[Retrieved], int]]:
    """For each image the best of all captions of the split, and the rank of the best of its own, counted from 1.

    Equal captions of the split are shown once, and ties count against the image's own.
    """
    captions, owners = pictures.captions()
    written = [caption.text for image in pictures.images for caption in image.captions]
    numbers = {image.id: index for index, image in enumerate(pictures.images)}
    features = [pictures.features(image) for image in images]
    scores = np.asarray(model.score(features, captions))
    retrieved = []
    for image, row in zip(images, scores, strict=True):
        of_image = np.array([owner == numbers[image.id] for owner in owners])
        order = np.lexsort((of_image, -row))
        best = np.flatnonzero(of_image[order])
        if not best.size:
            raise DeixisError(f"image {image.id} has no caption")
        shown: dict[tuple[str, ...], Retrieved] = {}
        for index in order.tolist():
            if len(shown) == count:
                break
            shown.setdefault(captions[index], Retrieved(written[index], float(row[index]), bool(of_image[index])))
        retrieved.append((list(shown.values()), int(best[0]) + 1))
    return retrieved
