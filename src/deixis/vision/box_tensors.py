"""Boxes as tensors, on their device: areas, IoU, non-maximum suppression of a batch of pictures.

On a GPU this is faster than copying the boxes and suppressing them picture by picture. The suppression is that of
`deixis.corpus.boxes.suppress`, bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor


def box_area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)


def pairwise_iou(a: Tensor, b: Tensor) -> Tensor:
    """`(batch, n, 4)`, `(batch, m, 4)` → `(batch, n, m)`."""
    low = torch.maximum(a[:, :, None, :2], b[:, None, :, :2])
    high = torch.minimum(a[:, :, None, 2:], b[:, None, :, 2:])
    inner = (high - low).clamp(min=0).prod(-1)
    return inner / (box_area(a)[:, :, None] + box_area(b)[:, None] - inner).clamp(min=1e-9)


def aligned_iou(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """IoU and generalized IoU of boxes `(…, 4)` pair by pair."""
    inner = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    union = box_area(a) + box_area(b) - inner
    hull = (torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])).prod(-1)
    iou = inner / union.clamp(min=1e-9)
    return iou, iou - (hull - union) / hull.clamp(min=1e-9)


def suppress_batch(boxes: Tensor, scores: Tensor, overlap: float, count: int) -> tuple[Tensor, Tensor]:
    """`deixis.corpus.boxes.suppress` for each picture of a batch.

    Args:
        boxes: `(pictures, boxes, 4)`.
        scores: `(pictures, boxes)`.
        overlap: a box is dropped if its IoU with a better box is more than this.
        count: the largest number of boxes to keep.

    Returns:
        The indexes of the kept boxes, best first, `(pictures, count)`, and how many of them are valid, `(pictures,)`.
    """
    order = scores.argsort(dim=1, descending=True, stable=True)
    corners = boxes.gather(1, order[..., None].expand(-1, -1, 4)).transpose(1, 2)
    extent = (corners[:, 2:] - corners[:, :2]).clamp(min=0)
    areas = extent[:, :1] * extent[:, 1:]
    # x1, y1, x2, y2 and area of each box: (pictures, 5, boxes).
    table = torch.cat([corners, areas], 1)
    standing = torch.ones_like(scores, dtype=torch.bool)
    chosen, meant = [], []
    for _ in range(min(count, scores.shape[1])):
        # The first that is left; if none is, index 0, which is not valid.
        best = standing.to(torch.uint8).argmax(1, keepdim=True)
        chosen.append(best)
        meant.append(standing.gather(1, best))
        best_boxes = table.gather(2, best[:, None].expand(-1, 5, -1))
        sides = (
            torch.minimum(best_boxes[:, 2:4], table[:, 2:4]) - torch.maximum(best_boxes[:, :2], table[:, :2])
        ).clamp(min=0)
        inner = sides[:, 0] * sides[:, 1]
        standing &= inner <= overlap * (best_boxes[:, 4] + table[:, 4] - inner)
        standing.scatter_(1, best, False)
    if not chosen:
        return order[:, :0], order.new_zeros(len(order))
    return order.gather(1, torch.cat(chosen, 1)), torch.cat(meant, 1).sum(1)
