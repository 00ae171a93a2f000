"""How many of a corpus' phrases a proposal method can ever localize: recall by number of boxes, IoU and phrase type.

This is phrase localization (`deixis.metrics.localization`) by a model that ranks every phrase's proposals in the
method's own order, so targets (merged boxes) and counts are the same: the recall at n boxes is the upper bound of
every model that gets n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deixis.corpus.boxes import Boxes
from deixis.corpus.records import Image
from deixis.metrics.localization import Localization, Localized, PhraseQuery, evaluate_localization

COUNTS = (10, 50, 100, 200)
IOUS = (0.5, 0.7)


def proposal_recall(
    proposals: Sequence[tuple[Image, Boxes]], ious: Sequence[float] = IOUS
) -> dict[float, Localization]:
    """Score ranked boxes `(proposals, 4)` in the original picture's pixels: recall at `COUNTS` for each IoU."""
    found = {image.id: np.asarray(boxes, np.float64) for image, boxes in proposals}

    def localize(image: Image, queries: Sequence[PhraseQuery]) -> Localized:
        boxes = found[image.id]
        ranked = -np.arange(len(boxes), dtype=np.float64)
        return Localized(boxes, np.broadcast_to(ranked, (len(queries), len(boxes))))

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
