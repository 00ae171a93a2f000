"""Recall of a proposal method on the phrases of a corpus, by number of boxes, IoU and phrase type.

This is phrase localization (`deixis.metrics.localization`) with the proposals in their own order, so the recall at n
boxes is the upper bound of every model that gets n boxes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deixis.corpus.boxes import Boxes, box_array, iou_matrix, merge
from deixis.corpus.records import Image
from deixis.metrics.localization import Localization, evaluate_localization
from deixis.metrics.text_blind import proposal_order, text_blind_localizer

COUNTS = (10, 50, 100, 200)
IOUS = (0.5, 0.7)
#: A proposal with this IoU is a positive of a phrase in the training of two-branch networks.
POSITIVE = 0.7


def proposal_recall(
    proposals: Sequence[tuple[Image, Boxes]], ious: Sequence[float] = IOUS
) -> dict[float, Localization]:
    """Score ranked boxes `(proposals, 4)` in the original picture's pixels: recall at `COUNTS` for each IoU."""
    boxes_of = {image.id: boxes for image, boxes in proposals}
    localize = text_blind_localizer(lambda image: proposal_order(boxes_of[image.id]))
    images = [image for image, _ in proposals]
    return {iou: evaluate_localization(images, localize, recall_at=COUNTS, threshold=iou) for iou in ious}


def recall_figures(recall: Mapping[float, Localization]) -> dict[str, Any]:
    """`overall` and `by_type` → `iou50` … → `r@10` …, in percent."""

    def rows(of: str | None) -> dict[str, Any]:
        chosen = {iou: one.by_type[of] if of else one.overall for iou, one in recall.items()}
        return {
            f"iou{100 * iou:.0f}": {f"r@{n}": value for n, value in row.recall.items()} for iou, row in chosen.items()
        }

    return {"overall": rows(None), "by_type": {name: rows(name) for name in next(iter(recall.values())).by_type}}


def positives_per_phrase(proposals: Sequence[tuple[Image, Boxes]], iou: float = POSITIVE) -> dict[str, float]:
    """How many proposals are positives of a phrase: the mean, and the percentages of phrases with one and with two.

    Every phrase with a box counts once; boxes of a plural phrase are merged into one. The ground-truth box itself, from
    which training also takes positives, is not counted.
    """
    counts = []
    for image, boxes in proposals:
        chains = [phrase.chain for caption in image.captions for phrase in caption.phrases if phrase.visual]
        targets = [merge(box_array(chain_boxes)) for chain_boxes in map(image.chain_boxes, chains) if chain_boxes]
        if targets:
            counts.append((iou_matrix(np.stack(targets), boxes) >= iou).sum(1))
    positives = np.concatenate(counts) if counts else np.zeros(0, int)
    if not len(positives):
        return {}
    shares = {"one_or_more": (positives >= 1).mean(), "two_or_more": (positives >= 2).mean()}
    return {"per_phrase": float(positives.mean()), **{name: 100 * float(share) for name, share in shares.items()}}
