"""Boxes as arrays: overlap, merging, suppression. Rows are x1, y1, x2, y2; `x2 - x1` is a width."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Boxes = NDArray[np.floating]


def suppress(boxes: Boxes, scores: NDArray[np.floating], overlap: float, count: int) -> NDArray[np.int64]:
    """Non-maximum suppression: the rows kept, best first, at most `count`; none overlaps a better one by more."""
    order = np.argsort(-scores, kind="stable")
    left = boxes[order]
    areas = np.maximum(left[:, 2:] - left[:, :2], 0).prod(1)
    alive = np.ones(len(order), dtype=bool)
    kept: list[int] = []
    for row in range(len(order)):
        if not alive[row]:
            continue
        kept.append(int(order[row]))
        if len(kept) == count:
            break
        low = np.maximum(left[row, :2], left[row + 1 :, :2])
        high = np.minimum(left[row, 2:], left[row + 1 :, 2:])
        inner = np.maximum(high - low, 0).prod(1)
        union = areas[row] + areas[row + 1 :] - inner
        alive[row + 1 :] &= inner <= overlap * union
    return np.array(kept, dtype=np.int64)


def iou_matrix(first: Boxes, second: Boxes) -> NDArray[np.float64]:
    """Intersection over union of every pair: `(n, 4)`, `(m, 4)` → `(n, m)`."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    inner = np.maximum(high - low, 0).prod(-1)
    area = [np.maximum(boxes[:, 2:] - boxes[:, :2], 0).prod(1) for boxes in (first, second)]
    return np.asarray(inner / np.maximum(area[0][:, None] + area[1] - inner, 1e-12), dtype=np.float64)
