"""Proposals that ignore the picture: a baseline for the other methods.

Boxes of many sizes, shapes and positions, in an order in which the first boxes, however many, are spread out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from deixis.corpus.boxes import iou_matrix
from deixis.vision.proposals import Proposals

#: Sizes as shares of the picture, shapes as height/width in units of the picture's own.
_SIZES = (1, 0.7, 0.5, 0.35, 0.25, 0.17, 0.12, 0.08, 0.06, 0.04)
_SHAPES = (1 / 3, 0.6, 1, 1 / 0.6, 3)
#: Distance of neighbouring boxes, at most this share of their side.
_STEP = 0.5
#: Gains that agree to this many digits are equal.
_DIGITS = 10


class GridProposals:
    """The same boxes for every picture, at most about 1,300."""

    name = "grid"
    saw_boxes = False
    settings: Mapping[str, str | int | float] = {"sizes": len(_SIZES), "shapes": len(_SHAPES), "step": _STEP}

    def propose(self, picture: Pillow.Image, count: int) -> Proposals:
        boxes = _ordered()[:count] * np.array([picture.width, picture.height] * 2)
        return Proposals(boxes.astype(np.float32), np.linspace(1, 0, len(boxes), dtype=np.float32))


def lattice() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """All boxes `(n, 4)` in [0, 1], and weights with the same sum for every size and shape."""
    groups = []
    for size in _SIZES:
        for shape in _SHAPES:
            width, height = (size / shape) ** 0.5, (size * shape) ** 0.5
            if max(width, height) <= 1 + 1e-9:
                x, y = np.meshgrid(_starts(width), _starts(height))
                groups.append(np.stack([x, y, x + width, y + height], -1).reshape(-1, 4))
    return np.concatenate(groups), np.concatenate([np.full(len(group), 1 / len(group)) for group in groups])


def _starts(side: float) -> NDArray[np.float64]:
    return np.linspace(0, 1 - side, 1 + int(np.ceil((1 - side) / (side * _STEP) - 1e-9)))


@lru_cache(maxsize=1)
def _ordered() -> NDArray[np.float64]:
    """The lattice in greedy order: each box most increases the sum, over all boxes, of the best IoU with a chosen one.

    That sum is submodular: gains only decrease, so an old gain is an upper bound, and only the box with the largest
    bound must be computed again. Mirrored boxes have the same gain except for rounding, which differs between CPUs, so
    gains are rounded and the first box is chosen.
    """
    boxes, weights = lattice()
    overlap = iou_matrix(boxes, boxes)
    best = np.zeros(len(boxes))
    bound = (overlap @ weights).round(_DIGITS)
    order: list[int] = []
    while len(order) < len(boxes):
        leader = int(bound.argmax())
        bound[leader] = round(np.maximum(overlap[leader] - best, 0) @ weights, _DIGITS)
        if leader == int(bound.argmax()):
            order.append(leader)
            best = np.maximum(best, overlap[leader])
            bound[leader] = -1
    return boxes[order]
