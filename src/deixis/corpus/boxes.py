"""Boxes as arrays: overlap, merging, suppression. Rows are x1, y1, x2, y2; `x2 - x1` is a width."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from deixis.corpus.records import Box

Boxes = NDArray[np.floating]


def box_array(boxes: Iterable[Box]) -> NDArray[np.float64]:
    """Box records as an array, `(boxes, 4)`."""
    return np.array([(box.x1, box.y1, box.x2, box.y2) for box in boxes], dtype=np.float64).reshape(-1, 4)


def merge(boxes: Boxes) -> Boxes:
    """The smallest box around all of them, `(4,)`: what a plural phrase is held to in Entities, two-branch."""
    return np.concatenate([boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)])


def iou_matrix(first: Boxes, second: Boxes) -> NDArray[np.float64]:
    """Intersection over union of every pair: `(n, 4)`, `(m, 4)` → `(n, m)`."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    inner = np.maximum(high - low, 0).prod(-1)
    area = [np.maximum(boxes[:, 2:] - boxes[:, :2], 0).prod(1) for boxes in (first, second)]
    return np.asarray(inner / np.maximum(area[0][:, None] + area[1] - inner, 1e-12), dtype=np.float64)


def suppress(boxes: Boxes, scores: NDArray[np.floating], overlap: float, count: int) -> NDArray[np.int64]:
    """Non-maximum suppression: the rows kept, best first, at most `count`.

    From the best score down (equal scores in the order of the boxes), a box is kept unless its intersection over union
    with one already kept is more than `overlap`.
    """
    order = np.argsort(-scores, kind="stable")
    left = boxes[order]
    areas = np.maximum(left[:, 2:] - left[:, :2], 0).prod(1)
    standing = np.ones(len(order), dtype=bool)
    kept: list[int] = []
    for row in range(len(order)):
        if len(kept) == count:
            break
        if not standing[row]:
            continue
        kept.append(int(order[row]))
        low = np.maximum(left[row, :2], left[row + 1 :, :2])
        high = np.minimum(left[row, 2:], left[row + 1 :, 2:])
        inner = np.maximum(high - low, 0).prod(1)
        standing[row + 1 :] &= inner <= overlap * (areas[row] + areas[row + 1 :] - inner)
    return np.array(kept, dtype=np.int64)


def suppress_each(
    boxes: Boxes, scores: NDArray[np.floating], threshold: float = 0.5, least: NDArray[np.floating] | None = None
) -> NDArray[np.bool_]:
    """Non-maximum suppression of the same few boxes under several queries at once, as `suppress` does it for one.

    Args:
        boxes: `(boxes, 4)`.
        scores: `(queries, boxes)`.
        threshold: intersection over union.
        least: `(queries,)`, scores below which nobody asks whether a box is kept; they cost nothing and are false.

    Returns:
        `(queries, boxes)`, true where a box is kept.
    """
    clash = iou_matrix(boxes, boxes) > threshold
    np.fill_diagonal(clash, False)
    # Sets of boxes as bits, eight a byte: what each box leaves standing, and what still stands for each query.
    leaves = np.packbits(~clash, axis=1)
    standing = np.full((len(scores), leaves.shape[1]), 255, dtype=np.uint8)
    asked = np.ones(scores.shape, bool) if least is None else scores >= least[:, None]
    # Queries with the most boxes first, so that at each place those that have a box there are the first ones.
    depth = asked.sum(axis=1)
    by_depth = np.argsort(-depth, kind="stable")
    order = np.argsort(-scores[by_depth], axis=1, kind="stable")
    queries = np.arange(len(scores))
    for place in range(depth.max(initial=0)):
        own = slice(int(np.count_nonzero(depth > place)))
        box, left = order[own, place], standing[own]
        stands = left[queries[own], box >> 3] & (128 >> (box & 7)).astype(np.uint8) > 0
        # A standing box overlaps no box kept before it, so this strikes out only boxes that come later.
        left &= np.where(stands[:, None], leaves[box], 255)
    kept = np.empty_like(asked)
    kept[by_depth] = np.unpackbits(standing, axis=1, count=scores.shape[1]).astype(bool)
    return kept & asked
