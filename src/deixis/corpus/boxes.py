"""Boxes as arrays of (x1, y1, x2, y2): IoU, merging, non-maximum suppression. `x2 - x1` is the width."""

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
    """The smallest box around all boxes, `(4,)`: the target of a plural phrase (Entities, two-branch networks)."""
    return np.concatenate([boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)])


def iou_matrix(first: Boxes, second: Boxes) -> NDArray[np.float64]:
    """Intersection over union of every pair: `(n, 4)`, `(m, 4)` → `(n, m)`."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    inner = np.maximum(high - low, 0).prod(-1)
    area = [np.maximum(boxes[:, 2:] - boxes[:, :2], 0).prod(1) for boxes in (first, second)]
    return np.asarray(inner / np.maximum(area[0][:, None] + area[1] - inner, 1e-12), dtype=np.float64)


def suppress(boxes: Boxes, scores: NDArray[np.floating], overlap: float, count: int) -> NDArray[np.int64]:
    """Non-maximum suppression. Returns the indexes of the kept boxes, best first, at most `count`.

    Boxes are visited by descending score; ties keep their order. A box is kept unless its intersection over union with
    a box kept earlier is more than `overlap`.
    """
    order = np.argsort(-scores, kind="stable")
    corners = np.ascontiguousarray(boxes[order].T)
    sides = np.maximum(corners[2:] - corners[:2], 0)
    areas, alive = sides[0] * sides[1], np.ones(len(order), dtype=bool)
    chosen: list[int] = []
    row = 0
    while row < len(order) and len(chosen) < count:
        chosen.append(row)
        later = slice(row + 1, None)
        across, down = (
            np.maximum(np.minimum(corners[end, row], corners[end, later]) - np.maximum(start[row], start[later]), 0)
            for end, start in zip((2, 3), corners[:2], strict=True)
        )
        inner = across * down
        alive[later] &= inner <= overlap * (areas[row] + areas[later] - inner)
        # The next box that is left, or the end.
        row = row + 1 + int(alive[later].argmax()) if alive[later].any() else len(order)
    return order[chosen]


def suppress_each(
    boxes: Boxes, scores: NDArray[np.floating], threshold: float = 0.5, least: NDArray[np.floating] | None = None
) -> NDArray[np.bool_]:
    """Non-maximum suppression of the same boxes for several queries at once; `suppress` does it for one.

    Args:
        boxes: `(boxes, 4)`.
        scores: `(queries, boxes)`.
        threshold: largest intersection over union of two kept boxes.
        least: `(queries,)`. Boxes with a lower score are skipped; the result is False for them.

    Returns:
        `(queries, boxes)`, True where a box is kept.
    """
    clash = iou_matrix(boxes, boxes) > threshold
    np.fill_diagonal(clash, False)
    # Sets of boxes as bits, eight per byte: the boxes compatible with each box, and those alive for each query.
    compatible = np.packbits(~clash, axis=1)
    alive = np.full((len(scores), compatible.shape[1]), 255, dtype=np.uint8)
    considered = np.ones(scores.shape, bool) if least is None else scores >= least[:, None]
    # Queries with the most boxes first, so that the queries with a box at some rank are always a prefix.
    depth = considered.sum(axis=1)
    by_depth = np.argsort(-depth, kind="stable")
    order = np.argsort(-scores[by_depth], axis=1, kind="stable")
    queries = np.arange(len(scores))
    for rank in range(depth.max(initial=0)):
        active = slice(int(np.count_nonzero(depth > rank)))
        box, active_alive = order[active, rank], alive[active]
        is_alive = active_alive[queries[active], box >> 3] & (128 >> (box & 7)).astype(np.uint8) > 0
        # A box that is alive overlaps no box kept earlier, so this removes only boxes of a lower rank.
        active_alive &= np.where(is_alive[:, None], compatible[box], 255)
    alive_boxes = np.empty_like(considered)
    alive_boxes[by_depth] = np.unpackbits(alive, axis=1, count=scores.shape[1]).astype(bool)
    return alive_boxes & considered
