"""Texts of several lengths, padded to one: read by a recurrence, or taken word by word.

How long each is, is known where its ids lie. A host that asks a GPU waits for all that it was told to do before, and a
step that asks cannot be recorded (`deixis.training.cuda_graphs`). So where a GPU learns, padding is computed with and
left
out; elsewhere nothing is computed for it.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


class Layers(nn.Sequential):
    """One layer after another, for rows of which the first `count` `()` may be all that are real.

    What is added before a mean is taken off is not learned: its gradient is rounding, of which Adam makes whole steps.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        for layer, following in pairwise(layers):
            if isinstance(layer, nn.Linear) and isinstance(following, RowNorm):
                layer.bias.requires_grad_(False)

    def forward(self, rows: Tensor, count: Tensor | None = None) -> Tensor:
        for layer in self:
            rows = layer(rows, count) if isinstance(layer, RowNorm) else layer(rows)
        return rows


class RowNorm(nn.BatchNorm1d):
    """Batch normalization by the statistics of the real rows."""

    def forward(self, rows: Tensor, count: Tensor | None = None) -> Tensor:
        if count is None or not self.training:
            return super().forward(rows)
        full = rows.to(torch.promote_types(rows.dtype, torch.float32))
        padding = (torch.arange(len(rows), device=rows.device) >= count)[:, None]
        mean = full.masked_fill(padding, 0).sum(0) / count
        centred = full - mean
        variance = centred.masked_fill(padding, 0).square().sum(0) / count
        keep_statistics(self, mean.detach(), variance.detach() * (count / (count - 1)))
        normalized: Tensor = centred * (self.weight * (variance + self.eps).rsqrt()) + self.bias
        return normalized.to(rows.dtype)


@torch.no_grad()
def keep_statistics(layer: nn.modules.batchnorm._BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """A layer's running statistics after a batch of this mean and unbiased variance."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    assert layer.num_batches_tracked is not None
    assert layer.momentum is not None
    layer.running_mean.lerp_(mean, layer.momentum)
    layer.running_var.lerp_(variance, layer.momentum)
    layer.num_batches_tracked += 1
