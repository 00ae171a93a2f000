"""Features of pictures and regions by their direction alone, less the mean one.

Pooled from one map of the picture, features of small boxes are longer than those of large ones and of the picture
itself, so that whoever multiplies them would tend to prefer small boxes; and what all regions have in common tells none
from another.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional


def mean_direction(blocks: Iterable[Tensor]) -> Tensor:
    """The mean `(channels,)` of all rows at unit length, in float32 on the CPU; blocks are `(rows, channels)`."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for rows in blocks:
        total = total + functional.normalize(rows.float(), dim=-1).double().sum(0).cpu()
        count += len(rows)
    return (total / count).float()


def centred(features: Tensor, centre: Tensor) -> Tensor:
    """Rows `(…, channels)` at unit length, less the mean direction, at unit length again."""
    return functional.normalize(functional.normalize(features, dim=-1) - centre, dim=-1)
