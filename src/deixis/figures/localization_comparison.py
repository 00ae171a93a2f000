"""What localizers find for the phrases of single captions, for drawings that set one beside the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deixis.corpus.boxes import iou_matrix, merge
from deixis.corpus.records import Box, Image
from deixis.errors import DeixisError
from deixis.metrics.localization import Localizer, checked, gold_queries
from deixis.vision.drawing.pages import FoundPhrase


def found_phrases(
    image: Image, caption: int, localize: Localizer, *, threshold: float = 0.5
) -> tuple[FoundPhrase, ...]:
    """The best region of each phrase of one caption that has an annotated box.

    Args:
        image: the image.
        caption: the number of its caption.
        localize: scores the image's proposals.
        threshold: the intersection over union with the merged annotated box from which a region is correct.
    """
    if not 0 <= caption < len(image.captions):
        raise DeixisError(f"image {image.id} has {len(image.captions)} captions; there is no number {caption}")
    pairs = [
        (query, merge(boxes))
        for query, boxes in zip(*gold_queries(image), strict=True)
        if query.caption is image.captions[caption]
    ]
    if not pairs:
        raise DeixisError(f"image {image.id}: caption {caption} has no phrase with an annotated box")
    queries = [query for query, _ in pairs]
    boxes, scores = checked(image, queries, localize(image, queries))
    boxes_by_query = np.broadcast_to(boxes, (len(queries), *boxes.shape[-2:]))
    if not boxes_by_query.shape[1]:
        raise DeixisError(f"image {image.id} has no regions to choose from")
    phrases = []
    for (query, gold), candidates, row in zip(pairs, boxes_by_query, scores, strict=True):
        best = int(np.argmax(row))
        right = bool(iou_matrix(candidates[best][None], gold[None])[0, 0] >= threshold)
        phrases.append(FoundPhrase(query.phrase, Box(*candidates[best].tolist()), float(row[best]), right))
    return tuple(phrases)


def captions_with_boxes(images: Sequence[Image], phrases: int) -> list[tuple[Image, int]]:
    """The captions that have at least so many phrases with an annotated box, as images and caption numbers."""
    captions = []
    for image in images:
        boxed = {chain.id for chain in image.chains if chain.boxes}
        for index, caption in enumerate(image.captions):
            if sum(phrase.chain in boxed for phrase in caption.phrases) >= phrases:
                captions.append((image, index))
    return captions
