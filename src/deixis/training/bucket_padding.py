"""Batches of few forms: what comes in other numbers every time is padded to one of few sizes.

A recorded step is one for tensors of equal shapes (`deixis.training.cuda_graphs`). Padding changes no loss: rows that
are
padding stand in no statistics (`deixis.training.masked_norm.RowNorm`), pairs that are have nothing to be told from.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from deixis.training.contrastive import Contrast, Direction, Neighbours
from deixis.training.placing import send
from deixis.training.sampling import PairBatch, RankingBatch
from deixis.training.schedule import Schedule

Batch = RankingBatch | PairBatch


def pays(schedule: Schedule, device: torch.device) -> bool:
    """Whether steps may be recorded: not where parts of the model thaw, and other optimizers' rates do not stay."""
    thawing = any(group.frozen_epochs for group in schedule.groups)
    return device.type == "cuda" and not thawing and schedule.optimizer in ("adam", "adamw", "rmsprop", "sgd")


def size_for(count: int) -> int:
    """The next of few sizes: multiples of 64, and for many things of more.

    >>> [size_for(count) for count in (0, 64, 65, 1000, 13_000)]
    [64, 64, 128, 1024, 13312]
    """
    step = max(64, 1 << max(0, count.bit_length() - 4))
    return step * max(1, -(-count // step))


def padded(batch: Batch) -> Batch:
    """The same batch in one of few forms; its statistics lie beside the rest, where a recorded step finds them."""
    if min(len(batch.images), len(batch.texts)) < 2:
        return batch  # which has no statistics to normalize by
    numbers = torch.tensor([*batch.statistics.values(), len(batch.images), len(batch.texts)])
    *values, images, texts = send(numbers, batch.images.device).unbind()
    statistics: Mapping[str, Tensor | float] = dict(zip(batch.statistics, values, strict=True))
    if isinstance(batch, PairBatch):
        pairs = size_for(len(batch.labels))
        return batch._replace(
            # There are at most as many rows as pairs, and a form has as many of both.
            images=longer(batch.images, pairs),
            texts=longer(batch.texts, size_for(len(batch.texts))),
            image=longer(batch.image, pairs),
            text=longer(batch.text, pairs),
            labels=longer(batch.labels, pairs),
            statistics=statistics,
            real_images=images,
            real_texts=texts,
        )
    rows = size_for(len(batch.images)), size_for(len(batch.texts))
    return batch._replace(
        images=longer(batch.images, rows[0]),
        texts=longer(batch.texts, rows[1]),
        contrast=_padded_contrast(batch.contrast, *rows),
        statistics=statistics,
        real_images=images,
        real_texts=texts,
    )


def _padded_contrast(contrast: Contrast, images: int, texts: int) -> Contrast:
    return contrast._replace(
        image_to_text=_padded_direction(contrast.image_to_text, texts),
        text_to_image=_padded_direction(contrast.text_to_image, images),
        images=contrast.images and _padded_neighbours(contrast.images),
        texts=contrast.texts and _padded_neighbours(contrast.texts),
    )


def _padded_direction(direction: Direction, others: int) -> Direction:
    """`others`: how many rows the other side has."""
    pairs, candidates = size_for(len(direction.anchor)), direction.candidates
    width = others if candidates is None else size_for(candidates.shape[1])
    return Direction(
        longer(direction.anchor, pairs),
        longer(direction.positive, pairs),
        larger(direction.negative, pairs, width),
        None if candidates is None else larger(candidates, pairs, width),
    )


def _padded_neighbours(neighbours: Neighbours) -> Neighbours:
    """A pair that is padding is one of a member that is."""
    members = len(neighbours.rows)
    # How many pairs there are differs most of all: the next power of two.
    size, pairs = size_for(members + 1), max(64, 1 << len(neighbours.anchor).bit_length())
    return Neighbours(
        longer(neighbours.rows, size),
        longer(neighbours.anchor, pairs, members),
        longer(neighbours.positive, pairs, members),
        larger(neighbours.apart, size, size),
    )


def longer(values: Tensor, size: int, value: int = 0) -> Tensor:
    """`(n,)` to `(size,)`."""
    return functional.pad(values, (0, size - len(values)), value=value)


def larger(values: Tensor, rows: int, columns: int) -> Tensor:
    """`(n, m)` to `(rows, columns)`."""
    return functional.pad(values, (0, columns - values.shape[1], 0, rows - len(values)))
