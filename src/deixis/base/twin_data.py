"""False captions of training pictures as token ids, and the loss that separates them from the true ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from deixis.base.word_cells import Words
from deixis.corpus import Image
from deixis.text.false_captions import KINDS, balanced, colour_counts, false_captions
from deixis.text.featurizers import TextFeatures
from deixis.text.tokens import tokens_of
from deixis.training.sampling import concatenated_ranges

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]


class TwinData(NamedTuple):
    """False captions, ordered by the caption that they were made from."""

    texts: Tensor  # (false captions, longest) ids on the device
    caption: Rows  # (false captions,) rows of the true captions
    kind: Rows  # (false captions,) indexes of `KINDS`
    starts: Rows  # (captions + 1,) each caption's false ones


def twin_data(images: Sequence[Image], text: TextFeatures, device: torch.device, seed: int) -> TwinData:
    """Make false captions of all captions of images, as often as of the reverse change."""
    random = np.random.default_rng(seed)
    tokens = [[tokens_of(caption) for caption in image.captions] for image in images]
    counts = colour_counts(caption for captions in tokens for caption in captions)
    twins = []
    row = 0
    for image_captions in tokens:
        for index, caption in enumerate(image_captions):
            others = [*image_captions[:index], *image_captions[index + 1 :]]
            twins += [(row, change) for change in false_captions(caption, others, random, counts)]
            row += 1
    twins = balanced(twins, [change for _, change in twins], random)
    rows = np.array([caption_row for caption_row, _ in twins], np.int64)
    return TwinData(
        torch.from_numpy(text.transform([change.tokens for _, change in twins])).to(device),
        rows,
        np.array([KINDS.index(change.kind) for _, change in twins], np.int64),
        np.searchsorted(rows, np.arange(row + 1)),
    )


def draw_twins(
    data: TwinData, captions: Rows, owners: Rows, count: int, random: np.random.Generator
) -> NDArray[np.int64]:
    """`(≤ count, 3)`: place of a picture, row of its caption, row of a false one; rare kinds are drawn more often.

    Args:
        captions: rows of the captions of a batch.
        owners: the place of each one's picture.
    """
    false, lengths = concatenated_ranges(data.starts[captions], data.starts[captions + 1])
    caption = np.repeat(np.arange(len(captions)), lengths)
    frequency = np.bincount(data.kind, minlength=len(KINDS)).clip(min=1)
    # The smallest keys are a sample without replacement by weight (Efraimidis and Spirakis, 2006). A caption with
    # several false ones is not drawn more often.
    weights = 1 / np.sqrt(frequency[data.kind[false]]) / lengths[caption]
    keys = -np.log(random.random(len(false))) / weights
    chosen = np.argsort(keys)[:count]
    return np.stack([owners[caption[chosen]], captions[caption[chosen]], false[chosen]], 1).reshape(-1, 3)


def own_scores(images: Tensor, cells: Tensor, texts: Tensor, words: Words, owner: Tensor) -> Tensor:
    """`(texts,)`: the score of every text with one picture, as `best_cells` and the cosine together give it.

    Args:
        images: `(pictures, dim)`, unit length.
        cells: `(pictures, cells, fine)`, unit length.
        texts: `(texts, dim)`, unit length.
        owner: `(texts,)` the picture of each text.
    """
    whole = (images[owner] * texts).sum(-1)
    best = torch.einsum("wd,wcd->wc", words.vectors, cells[owner[words.text]]).float().amax(1)
    return whole.index_add(0, words.text, (best * words.weights).to(whole.dtype))


def twin_loss(true: Tensor, false: Tensor, scale: Tensor) -> Tensor:
    """−log of the softmax of each true caption's score against that of its false one."""
    return F.softplus(scale * (false - true)).mean()
