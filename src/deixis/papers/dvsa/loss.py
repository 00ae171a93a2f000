"""The losses of the aligner: max-margin ranking of pictures and sentences, and DeFrag's hinge of fragments."""

from __future__ import annotations

import torch
from torch import Tensor

from deixis.papers.dvsa.fast.products import pooled_products
from deixis.text.recurrent import flat_words


def max_margin(scores: Tensor, negative: Tensor, mask: Tensor, margin: float) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of section 3.1.3 over scores `(pictures, sentences)` whose diagonal matches, averaged over the pairs.

    Args:
        negative: `(pictures, sentences)` those that are ranked behind.
        mask: `(pairs,)` where there is a pair.
    """
    right = scores.diagonal()
    parts = {
        "image_to_text": (scores - right[:, None] + margin).relu().masked_fill(~negative, 0).sum() / mask.sum(),
        "text_to_image": (scores - right[None, :] + margin).relu().masked_fill(~negative, 0).sum() / mask.sum(),
    }
    return parts["image_to_text"] + parts["text_to_image"], parts


def fragment_hinge(regions: Tensor, present: Tensor, fragments: Tensor, words: Tensor, different: Tensor) -> Tensor:
    """DeFrag's hinge max(0, 1 − y v·s) with labels chosen by multiple-instance learning.

    A fragment may be shown by the regions of its own picture alone: there y is the sign of the product, and the best
    region is +1 where none is positive. Regions of `different` pictures are −1, those of others are left out.

    Args:
        regions: (pairs, regions, dim), of which `present` are there.
        fragments: (pairs, longest, dim), of which `words` are there.
        different: (pairs, pairs).
    """
    with torch.autocast(regions.device.type, enabled=False):
        regions, fragments = regions.float(), fragments.float()
        own = fragments @ regions.transpose(1, 2)  # (pairs, longest, regions)
        there = words[..., None] & present[:, None]
        ranked = own.detach().masked_fill(~present[:, None], -torch.inf)
        labels = (ranked > 0).scatter(-1, ranked.argmax(-1, keepdim=True), True)
        positive, negative = there & labels, there & ~labels
        # (pairs as pictures, pairs as sentences): Σ over regions and fragments.
        totals = pooled_products(regions, present, *flat_words(fragments, words), len(words), "hinge")
        counts = present.sum(1)[:, None] * words.sum(1)
        missed = totals.masked_fill(~different, 0).sum() + (1 + own).relu().masked_fill(~negative, 0).sum()
        shown = (1 - own).relu().masked_fill(~positive, 0).sum()
        others = counts.masked_fill(~different, 0).sum() + negative.sum()
        return shown / positive.sum().clamp(min=1) + missed / others.clamp(min=1)
