"""The losses of the aligner: max-margin ranking of pictures and sentences, and DeFrag's hinge of fragments."""

from __future__ import annotations

import torch
from torch import Tensor

from deixis.papers.dvsa.fast.products import pooled_products
from deixis.text.recurrent import flat_words
from deixis.training.masked_norm import row_count


def mismatched_pairs(images: Tensor, strings: Tensor, mask: Tensor | None = None) -> Tensor:
    """The pairs k, l of the ranking: pictures differ, and sentences too.

    Args:
        images, strings: `(pairs,)` an id of the picture, and of the sentence's words.
        mask: `(pairs,)` which pairs count; None: all.

    Returns:
        `(pictures, sentences)` true where they do not match.
    """
    different = (images[:, None] != images) & (strings[:, None] != strings)
    return different if mask is None else different & mask & mask[:, None]


def max_margin(
    scores: Tensor, negative: Tensor, margin: float, mask: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Σ_l max(0, S_kl − S_kk + m) + Σ_l max(0, S_lk − S_kk + m), averaged over the pairs k (main paper, section 3.1.3).

    Args:
        scores: S, `(pictures, sentences)`; the diagonal has the matching pairs.
        negative: `mismatched_pairs`.
        margin: m.
        mask: `(pairs,)` which pairs count; None: all.

    Returns:
        The loss, and its two parts by direction.

    >>> scores = torch.tensor([[2.0, 1.5], [0.0, 3.0]])
    >>> max_margin(scores, ~torch.eye(2, dtype=torch.bool), margin=1.0)[0]
    tensor(0.2500)
    """
    matching, count = scores.diagonal(), row_count(scores, mask)
    parts = {
        "image_to_text": (scores - matching[:, None] + margin).relu().masked_fill(~negative, 0).sum() / count,
        "text_to_image": (scores - matching[None, :] + margin).relu().masked_fill(~negative, 0).sum() / count,
    }
    return parts["image_to_text"] + parts["text_to_image"], parts


def recolouring_hinge(matching: Tensor, recoloured: Tensor, has_colour: Tensor, margin: float) -> Tensor:
    """Not in the paper: max(0, m − S_kk + S_kk′) of sentences k and the same with other colours k′, averaged.

    Args:
        matching, recoloured: `(pairs,)` scores of the picture with its sentence, and with the recoloured one.
        has_colour: `(pairs,)` true where the sentence has a colour.
    """
    hinges = (margin - matching + recoloured).relu().masked_fill(~has_colour, 0)
    return hinges.sum() / has_colour.sum().clamp(min=1)


def fragment_hinge(regions: Tensor, present: Tensor, fragments: Tensor, words: Tensor, different: Tensor) -> Tensor:
    """DeFrag's hinge max(0, 1 − y v·s), with labels y chosen by multiple-instance learning.

    Only regions of its own picture can show a fragment: there y is the sign of v·s, and +1 for the best region if no
    product is positive. Regions of `different` pictures have y = −1; all others are left out. The result is the mean
    over y = +1 plus the mean over y = −1.

    Args:
        regions: v, `(pairs, regions, dim)`; `present` `(pairs, regions)` is true where there is a region.
        fragments: s, `(pairs, longest, dim)`; `words` `(pairs, longest)` is true where there is a fragment.
        different: `mismatched_pairs`.
    """
    with torch.autocast(regions.device.type, enabled=False):
        regions, fragments = regions.float(), fragments.float()
        products = fragments @ regions.transpose(1, 2)  # of the own picture: (pairs, longest, regions)
        exists = words[..., None] & present[:, None]
        ranked = products.detach().masked_fill(~present[:, None], -torch.inf)
        shown = (ranked > 0).scatter(-1, ranked.argmax(-1, keepdim=True), True)
        positive, negative = exists & shown, exists & ~shown
        # Of other pictures: sums of max(0, 1 + v·s) over regions and fragments, (pictures, sentences).
        others = pooled_products(regions, present, *flat_words(fragments, words), len(words), "hinge")
        counts = present.sum(1)[:, None] * words.sum(1)
        positive_sum = (1 - products).relu().masked_fill(~positive, 0).sum()
        negative_sum = others.masked_fill(~different, 0).sum() + (1 + products).relu().masked_fill(~negative, 0).sum()
        negative_count = counts.masked_fill(~different, 0).sum() + negative.sum()
        return positive_sum / positive.sum().clamp(min=1) + negative_sum / negative_count.clamp(min=1)
