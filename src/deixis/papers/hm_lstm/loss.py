"""The loss of the HM-LSTM (section 3.2.2): the contrasts of eq. 9, eq. 9 of every pair, eq. 10, their weighted sum."""

from __future__ import annotations

import torch
from torch import Tensor


def contrasted_roots(image: Tensor, string: Tensor) -> Tensor:
    """The contrasts of eq. 9 at the roots: all pairs of another image with another sentence.

    Args:
        image, string: `(sentences,)` an id of the image, and of the words.

    Returns:
        `(sentences, sentences)` true where two pairs are contrasted.
    """
    return (image[:, None] != image) & (string[:, None] != string)


def contrasted_phrases(image: Tensor, string: Tensor, region: Tensor, *, within_image: bool) -> Tensor:
    """The contrasts of eq. 9 at phrases: other words and another region, of the same image (as printed) or of all.

    Args:
        image, string, region: `(phrases,)` an id of the image, of the words, and of the region among all images.
        within_image: whether only phrases of the same image are contrasted.

    Returns:
        `(phrases, phrases)` true where two pairs are contrasted.
    """
    contrast = (string[:, None] != string) & (region[:, None] != region)
    return contrast & (image[:, None] == image) if within_image else contrast


def contrastive_loss(visual: Tensor, texts: Tensor, contrast: Tensor, margin: float) -> Tensor:
    """Eq. 9 of each pair, `(pairs,)`.

    Args:
        visual, texts: v, h, `(pairs, d)` unit embeddings; row k of one matches row k of the other.
        contrast: `(pairs, pairs)` true at (k, l) where pair l is contrasted with pair k; symmetric.
        margin: m.

    >>> pairs = torch.eye(3)
    >>> contrastive_loss(pairs, pairs.roll(1, 0), ~torch.eye(3, dtype=torch.bool), margin=0.2)
    tensor([2.8000, 2.8000, 2.8000])
    """
    scores = visual @ texts.T  # s(v_k, h_l)
    matching = scores.diagonal()[:, None]
    hinges = torch.relu(margin - matching + scores) + torch.relu(margin - matching + scores.T)
    return torch.where(contrast, hinges, 0).sum(1)


def total_loss(by_root: Tensor, by_phrase: Tensor, confidence: Tensor) -> Tensor:
    """Eq. 10: Σ_d loss_{d,0} + Σ_d Σ_k w_{d,k} loss_{d,k}.

    Args:
        by_root: `(sentences,)` losses at the roots, whose weight is 1.
        by_phrase: `(phrases,)` losses at noun phrases.
        confidence: `(phrases,)` w, from the similarity of a phrase and its region (section 3.3).
    """
    return by_root.sum() + (confidence * by_phrase).sum()
