"""Eq. 1 of the supplement for all pairs of pictures and sentences, block by block; `reference.py` has it by loops."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

#: Products of regions and words in memory at a time: 64 MB in float32.
BLOCK = 1 << 24
#: How the products of a word with a picture's regions are pooled: their maximum (DVSA); the sum of the positive ones
#: (DeFrag's score); the sum of max(0, 1 + product) (DeFrag's hinge for regions that do not show the fragment).
Pool = Literal["best", "positive", "hinge"]


def pooled_products(
    regions: Tensor,
    present: Tensor,
    words: Tensor,
    text: Tensor,
    texts: int,
    pool: Pool = "best",
    block: int = BLOCK,
) -> Tensor:
    """Σ over a text's words of their pooled products with an image's regions: `(images, texts)`.

    At most `block` products are in memory at a time; the backward pass computes them again.

    Args:
        regions: `(images, regions, dim)`.
        present: `(images, regions)` false where an image has fewer regions.
        words: `(words, dim)` of all texts.
        text: `(words,)` the text of each word; words of texts beyond `texts` are ignored.
        texts: number of texts.
    """
    # Sums of many products: in half precision the rounding error would exceed the margin.
    with torch.autocast(regions.device.type, enabled=False):
        full = torch.promote_types(regions.dtype, torch.float32)
        regions, words = regions.to(full), words.to(full)
        columns = max(1, min(len(words), block // max(1, regions.shape[1])))
        rows = max(1, block // (columns * max(1, regions.shape[1])))
        parts = []
        for images in zip(torch.split(regions, rows), torch.split(present, rows), strict=True):
            total = regions.new_zeros(len(images[0]), texts + 1)
            for some_words, some_texts in zip(torch.split(words, columns), torch.split(text, columns), strict=True):
                if torch.is_grad_enabled():
                    given = (*images, some_words, pool)
                    pooled = checkpoint(_pooled, *given, use_reentrant=False, preserve_rng_state=False)
                else:
                    pooled = _pooled(*images, some_words, pool)
                total = total.index_add(1, some_texts, pooled)
            parts.append(total[:, :texts])
        return torch.cat(parts)


def _pooled(regions: Tensor, present: Tensor, words: Tensor, pool: Pool) -> Tensor:
    """`(images, words)`"""
    products = (regions.flatten(0, 1) @ words.T).view(*regions.shape[:2], len(words))
    absent = ~present[..., None]
    if pool == "best":
        products.masked_fill_(absent, -torch.inf)
        # `max` also finds which region, for the gradient; `amax` is faster.
        return products.max(1).values if torch.is_grad_enabled() else products.amax(1)
    rectified = (products if pool == "positive" else products + 1).relu()
    return rectified.masked_fill(absent, 0).sum(1)
