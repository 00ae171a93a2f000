"""Texts of several lengths, padded to one: read by a recurrence, or taken word by word.

How long each is, is known where its ids lie. A host that asks a GPU waits for all that it was told to do before, and a
step that asks cannot be recorded (`deixis.learning.graphs`). So where a GPU learns, padding is computed with and left
out; elsewhere nothing is computed for it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def may_ask(tensor: Tensor) -> bool:
    """Whether the numbers in a tensor may be asked for: where it is no GPU's, or nothing is learned."""
    return not tensor.is_cuda or not torch.is_grad_enabled()


def read(recurrence: nn.LSTM | nn.GRU, words: Tensor, lengths: Tensor, begin: Any = None) -> tuple[Tensor, Tensor]:
    """States after each word `(texts, longest, dim)`, zero behind a text's end, and after the last one `(texts, dim)`.

    What reads in both directions always asks for the lengths.

    Args:
        words: `(texts, longest, word)`.
        lengths: `(texts,)`, 1 or more.
        begin: what the recurrence begins with, as it wants it.
    """
    if may_ask(words) or recurrence.bidirectional:
        packed = pack_padded_sequence(words, lengths.cpu(), batch_first=True, enforce_sorted=False)
        read_words, final = recurrence(packed, begin)
        last: Tensor = final[0] if isinstance(final, tuple) else final
        unpacked: Tensor = pad_packed_sequence(read_words, batch_first=True, total_length=words.shape[1])[0]
        return unpacked, last.transpose(0, 1).flatten(1)
    # What is behind a text's end changes nothing before it.
    states, _ = recurrence(words, begin)
    last = states.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, states.shape[2]))[:, 0]
    beyond = torch.arange(words.shape[1], device=words.device) >= lengths[:, None]
    return states.masked_fill(beyond[..., None], 0.0), last


def words_of(values: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """What texts have by word, `(texts, longest, …)`, one after another, and the text of each.

    Args:
        real: `(texts, longest)`; what is not may be given, too, as a word of a text behind the last one.
    """
    if may_ask(values):
        return values[real], real.nonzero()[:, 0]
    text = torch.arange(len(real), device=real.device)[:, None]
    return values.flatten(0, 1), torch.where(real, text, len(real)).flatten()


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
