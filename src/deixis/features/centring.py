"""Features of pictures and regions as unit vectors, minus the mean direction.

Features of small boxes, pooled from a map of the picture, are longer than those of large boxes, so dot products would
prefer small boxes. The mean direction is common to all regions and does not distinguish them.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional


def mean_direction(blocks: Iterable[Tensor]) -> Tensor:
    """The mean `(channels,)` of all rows scaled to unit length, float32 on the CPU; blocks are `(rows, channels)`."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for rows in blocks:
        total = total + functional.normalize(rows.float(), dim=-1).double().sum(0).cpu()
        count += len(rows)
    return (total / count).float()


def centred(features: Tensor, centre: Tensor) -> Tensor:
    """Rows `(…, channels)` scaled to unit length, minus the mean direction, scaled to unit length again."""
    return functional.normalize(functional.normalize(features, dim=-1) - centre, dim=-1)
