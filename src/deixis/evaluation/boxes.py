"""What evaluation does with boxes beside their overlap: arrays of records, merging, suppression under many queries."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from deixis.corpus.boxes import iou_matrix
from deixis.corpus.records import Box

Boxes = npt.NDArray[np.float64]


def box_array(boxes: Iterable[Box]) -> Boxes:
    """Box records as an array, `(boxes, 4)`."""
    return np.array([(box.x1, box.y1, box.x2, box.y2) for box in boxes], dtype=np.float64).reshape(-1, 4)


def merge(boxes: Boxes) -> Boxes:
    """The smallest box around all of them, `(4,)`: what a plural phrase is held to in papers 0 and 1."""
    return np.concatenate([boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)])


def suppress_each(boxes: Boxes, scores: npt.NDArray[np.floating], threshold: float = 0.5) -> npt.NDArray[np.bool_]:
    """Non-maximum suppression of the same boxes under several queries at once.

    From the best score down (equal scores in the order of the boxes), a box is kept unless it overlaps one already
    kept by more than `threshold`.

    Args:
        boxes: `(boxes, 4)`.
        scores: `(queries, boxes)`.
        threshold: intersection over union.

    Returns:
        `(queries, boxes)`, true where a box is kept.
    """
    clash = iou_matrix(boxes, boxes) > threshold
    np.fill_diagonal(clash, False)
    # Sets of boxes as bits, eight a byte: what each box leaves standing, and what still stands for each query.
    leaves = np.packbits(~clash, axis=1)
    standing = np.full((len(scores), leaves.shape[1]), 255, dtype=np.uint8)
    order = np.argsort(-scores, axis=1, kind="stable")
    queries = np.arange(len(scores))
    for place in range(scores.shape[1]):
        box = order[:, place]
        stands = standing[queries, box >> 3] & (128 >> (box & 7)).astype(np.uint8) > 0
        # A standing box overlaps no box kept before it, so this strikes out only boxes that come later.
        standing &= np.where(stands[:, None], leaves[box], 255)
    return np.unpackbits(standing, axis=1, count=scores.shape[1]).astype(bool)
