"""Batch norm, and counts, over the rows that a mask selects; None selects all of them."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


def row_count(rows: Tensor, mask: Tensor | None) -> int | Tensor:
    return len(rows) if mask is None else mask.sum()


class MaskedSequential(nn.Sequential):
    """`nn.Sequential` that passes a mask `(rows,)` to its batch norms.

    A bias before batch norm has zero gradient; Adam would turn its rounding noise into full steps, so it is frozen.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        for layer, following in pairwise(layers):
            if isinstance(layer, nn.Linear) and isinstance(following, MaskedBatchNorm):
                layer.bias.requires_grad_(False)

    def forward(self, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        for layer in self:
            rows = layer(rows, mask) if isinstance(layer, MaskedBatchNorm) else layer(rows)
        return rows


class MaskedBatchNorm(nn.BatchNorm1d):
    """Batch norm with the statistics of the rows where a mask `(rows,)` is true; without a mask, of all rows."""

    def forward(self, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None or not self.training or len(rows) < 2:
            return super().forward(rows)
        full = rows.to(torch.promote_types(rows.dtype, torch.float32))
        count, masked = mask.sum().to(full.dtype), ~mask[:, None]
        mean = full.masked_fill(masked, 0).sum(0) / count
        centred = full - mean
        variance = centred.masked_fill(masked, 0).square().sum(0) / count
        update_statistics(self, mean.detach(), variance.detach() * (count / (count - 1)))
        normalized: Tensor = centred * (self.weight * (variance + self.eps).rsqrt()) + self.bias
        return normalized.to(rows.dtype)


@torch.no_grad()
def update_statistics(layer: nn.modules.batchnorm._BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Update a layer's running statistics by the mean and the unbiased variance of a batch."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    assert layer.num_batches_tracked is not None
    assert layer.momentum is not None
    layer.running_mean.lerp_(mean, layer.momentum)
    layer.running_var.lerp_(variance, layer.momentum)
    layer.num_batches_tracked += 1
