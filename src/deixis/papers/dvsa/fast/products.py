"""Eq. 1 of the supplement for all pairs of pictures and sentences, block by block; `reference.py` has it by loops."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

#: Numbers that one block of region-word products may hold: 64 MB in float32.
BLOCK = 1 << 24
#: What the products of one word with a picture's regions come to: the best (DVSA); the sum of the positive ones
#: (DeFrag's score); the sum of max(0, 1 + product) (DeFrag's hinge of regions that do not show the fragment).
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

    At most `block` products are in memory at a time, for the gradient too: it makes them again.

    Args:
        regions: (images, regions, dim).
        present: (images, regions) false where an image has fewer regions.
        words: (words, dim), those of all texts.
        text: (words,) the text of each; what is said of others than the first `texts` is left out.
        texts: how many.
    """
    # Sums of many products: half precision would drown a margin.
    with torch.autocast(regions.device.type, enabled=False):
        full = torch.promote_types(regions.dtype, torch.float32)
        regions, words = regions.to(full), words.to(full)
        columns = max(1, min(len(words), block // max(1, regions.shape[1])))
        rows = max(1, block // (columns * max(1, regions.shape[1])))
        parts = []
        for own, real in zip(torch.split(regions, rows), torch.split(present, rows), strict=True):
            total = own.new_zeros(len(own), texts + 1)
            for some, of in zip(torch.split(words, columns), torch.split(text, columns), strict=True):
                if torch.is_grad_enabled():
                    pooled = checkpoint(_pooled, own, real, some, pool, use_reentrant=False, preserve_rng_state=False)
                else:
                    pooled = _pooled(own, real, some, pool)
                total = total.index_add(1, of, pooled)
            parts.append(total[:, :texts])
        return torch.cat(parts)


def _pooled(regions: Tensor, present: Tensor, words: Tensor, pool: Pool) -> Tensor:
    """(images, words)"""
    products = (regions.flatten(0, 1) @ words.T).view(*regions.shape[:2], len(words))
    absent = ~present[..., None]
    if pool == "best":
        products.masked_fill_(absent, -torch.inf)
        # The gradient goes to one region; without it, which one need not be found.
        return products.max(1).values if torch.is_grad_enabled() else products.amax(1)
    rectified = (products if pool == "positive" else products + 1).relu()
    return rectified.masked_fill(absent, 0).sum(1)
