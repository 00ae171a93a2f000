"""Recall of a proposal method on the phrases of a corpus, by number of boxes, IoU and phrase type.

This is phrase localization (`deixis.metrics.localization`) with the proposals in their own order, so the recall at n
boxes is the upper bound of every model that gets n boxes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deixis.corpus.boxes import Boxes
from deixis.corpus.records import Image
from deixis.metrics.localization import Localization, evaluate_localization
from deixis.metrics.text_blind import proposal_order, text_blind_localizer

COUNTS = (10, 50, 100, 200)
IOUS = (0.5, 0.7)


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
