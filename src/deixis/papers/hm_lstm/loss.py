"""The loss of the HM-LSTM (section 3.2.2): eq. 9 of every pair, and eq. 10, their weighted sum."""

from __future__ import annotations

import torch
from torch import Tensor


def contrastive_loss(visual: Tensor, texts: Tensor, contrast: Tensor, margin: float) -> Tensor:
    """Eq. 9 of each pair, `(pairs,)`.

    Args:
        visual, texts: v, h, `(pairs, d)` unit embeddings; row k of one matches row k of the other.
        contrast: `(pairs, pairs)` true at (k, l) where pair l is contrasted with pair k; symmetric.
        margin: m.
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
