"""The losses of concepts and order: eq. 1, and L_mat of section 3.4 with its mismatched pairs."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deixis.training.contrastive import cosines


def concept_loss(logits: Tensor, labels: Tensor, form: Literal["cross-entropy", "printed"]) -> Tensor:
    """Eq. 1: Σ_c log(1 + exp(−y_c ŷ_c)), averaged over pictures.

    With labels −1 and +1 on logits, which is the reading here, eq. 1 is binary cross-entropy. As "printed", with
    labels 0 and 1 on confidences, absent concepts have a constant loss, so predicting all concepts is optimal.

    Args:
        logits: `(pictures, K)`.
        labels: `(pictures, K)` of 0 and 1.
    """
    if form == "printed":
        return F.softplus(-labels * torch.sigmoid(logits)).sum(1).mean()
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(1).mean()


def mismatched_pairs(images: Tensor, strings: Tensor) -> Tensor:
    """The mismatches k of L_mat, in a batch of pairs: other images with other sentences.

    Args:
        images, strings: `(pairs,)` an id of the image, and of the sentence's words.

    Returns:
        `(texts, images)` true where they do not match.
    """
    return (images[:, None] != images) & (strings[:, None] != strings)


def mismatched_pictures(owner: Tensor, strings: Tensor, images: int) -> Tensor:
    """The mismatches k of L_mat, in a batch of images with several captions each: images without an equal caption.

    Args:
        owner, strings: `(texts,)` the index of a caption's image, and an id of its words.
        images: the number of images.

    Returns:
        `(texts, images)` true where they do not match.
    """
    has_caption = (owner[:, None] == torch.arange(images, device=owner.device)).float()  # (texts, images)
    return (strings[:, None] == strings).float() @ has_caption == 0


def structured_ranking(
    images: Tensor, texts: Tensor, owner: Tensor, mismatch: Tensor, margin: float, mask: Tensor | None = None
) -> Tensor:
    """L_mat of section 3.4: Σ_ik max(0, m − s_ii + s_ik) + max(0, m − s_ii + s_ki), over the mismatched pairs.

    Args:
        images, texts: `(images, d)`, `(texts, d)` unit embeddings; s is their cosine.
        owner: `(texts,)` the index of the image that each text matches.
        mismatch: `(texts, images)`, of `mismatched_pairs` or `mismatched_pictures`.
        margin: m.
        mask: `(texts,)` which texts count; None: all.

    >>> images, owner = torch.eye(2), torch.tensor([0, 1])
    >>> structured_ranking(images, images.flip(0), owner, ~torch.eye(2, dtype=torch.bool), margin=0.2)
    tensor(4.8000)
    """
    scores = cosines(images, texts)
    matched = scores[owner, torch.arange(len(owner), device=owner.device)][:, None]
    other_texts = (margin - matched + scores[owner]).relu().masked_fill(~mismatch.T[owner], 0)
    other_images = (margin - matched + scores.T).relu().masked_fill(~mismatch, 0)
    losses = other_texts.sum(1) + other_images.sum(1)
    return losses.sum() if mask is None else losses.masked_fill(~mask, 0).sum()


def exchanged_ranking(images: Tensor, texts: Tensor, twins: Tensor, ids: Tensor, margin: float) -> Tensor:
    """Not in the paper: Σ max(0, m − s(x, y) + s(x, y′)) over captions y with a twin y′ (two roles exchanged).

    Args:
        images, texts, twins: `(captions, d)` unit embeddings of pictures, captions and twins.
        ids: `(captions, longest)` words of the twins; all 0 where there is none.
    """
    hinges = nn.functional.relu(margin - (images * (texts - twins)).sum(1))
    return hinges.masked_fill((ids == 0).all(1), 0.0).sum()
