"""The losses of concepts and order: eq. 1, and L_mat of section 3.4."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deixis.training.contrastive import cosines


def concept_loss(logits: Tensor, labels: Tensor, form: Literal["cross-entropy", "printed"]) -> Tensor:
    """Σ over concepts, meaned over pictures: binary cross-entropy, or eq. 1 as printed, with confidences and {0, 1}."""
    if form == "printed":
        return F.softplus(-labels * torch.sigmoid(logits)).sum(1).mean()
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(1).mean()


def structured_ranking(
    images: Tensor, texts: Tensor, owner: Tensor, mismatch: Tensor, mask: Tensor, margin: float
) -> Tensor:
    """L_mat of section 3.4: Σ_ik max(0, m − s_ii + s_ik) + max(0, m − s_ii + s_ki), over the mismatched pairs.

    Args:
        images, texts: `(images, d)`, `(texts, d)` unit embeddings; s are their cosines.
        owner: `(texts,)` the image that each text matches.
        mismatch: `(texts, images)` true where they do not match.
        mask: `(texts,)` where there is a text.
    """
    scores = cosines(images, texts)
    matched = scores[owner, torch.arange(len(owner), device=owner.device)][:, None]
    other_texts = (margin - matched + scores[owner]).relu().masked_fill(~mismatch.T[owner], 0)
    other_images = (margin - matched + scores.T).relu().masked_fill(~mismatch, 0)
    return (other_texts.sum(1) + other_images.sum(1)).masked_fill(~mask, 0).sum()


def exchanged_ranking(images: Tensor, texts: Tensor, twins: Tensor, ids: Tensor, margin: float) -> Tensor:
    """Σ max(0, m − s_ii + s_i′) over the captions whose twin i′ has `ids`; all are unit embeddings."""
    hinges = nn.functional.relu(margin - (images * (texts - twins)).sum(1))
    return hinges.masked_fill((ids == 0).all(1), 0.0).sum()
