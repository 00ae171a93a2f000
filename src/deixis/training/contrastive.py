"""Contrastive losses of several papers, over unit embeddings of images and texts and masks over their pairs.

Every loss here takes `images` `(n, d)`, `texts` `(m, d)` and a `Contrast`. `candidates` `(k, d)` are the images that a
text is contrasted with; without them, these are `images` themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import torch
from msgspec import Meta, Struct
from torch import Tensor, nn

from deixis.training.task import Loss


class Contrast(NamedTuple):
    """Which images and texts of a batch belong together, and which are contrasted, in either direction."""

    #: Image to text: the texts that an image matches, and those that it is contrasted with.
    match_texts: Annotated[Tensor, "targets", "texts"]
    negative_texts: Annotated[Tensor, "targets", "texts"]
    #: Text to image.
    match_images: Annotated[Tensor, "texts", "targets"]
    negative_images: Annotated[Tensor, "texts", "candidates"]
    #: Among images, and among texts: pairs that describe the same thing, and pairs that describe different things.
    same_images: Annotated[Tensor, "targets", "targets"] | None = None
    different_images: Annotated[Tensor, "targets", "targets"] | None = None
    same_texts: Annotated[Tensor, "texts", "texts"] | None = None
    different_texts: Annotated[Tensor, "texts", "texts"] | None = None


def contrast_of(match: Tensor, negative: Tensor | None = None) -> Contrast:
    """The same contrast in both directions, from masks `(images, texts)`; by default all other pairs are negatives."""
    negative = ~match if negative is None else negative
    return Contrast(match, negative, match.T, negative.T)


def caption_contrast(owner: Tensor, images: int) -> Contrast:
    """Every caption against all images but its own, every image against all captions but its own.

    Args:
        owner: `(captions,)` the index of each caption's image.
    """
    return contrast_of(owner == torch.arange(images, device=owner.device)[:, None])


def cosines(rows: Tensor, others: Tensor) -> Tensor:
    """`(rows, others)` of unit vectors, in float32 even under autocast: bfloat16 is coarser than a margin."""
    with torch.autocast(rows.device.type, enabled=False):
        full = torch.promote_types(rows.dtype, torch.float32)
        return rows.to(full) @ others.to(full).T


def directions(
    images: Tensor, texts: Tensor, contrast: Contrast, candidates: Tensor | None
) -> Iterator[tuple[str, Tensor, Tensor, Tensor, Tensor]]:
    """For each direction: its name, cosines and mask of the matches, cosines and mask of the negatives."""
    scores = cosines(images, texts)
    yield "image_to_text", scores, contrast.match_texts, scores, contrast.negative_texts
    others = scores.T if candidates is None else cosines(texts, candidates)
    yield "text_to_image", scores.T, contrast.match_images, others, contrast.negative_images


def hardest_negatives(scores: Tensor, negative: Tensor, count: int) -> Tensor:
    """The `count` highest scores of each row among its negatives, `(rows, ≤ count)`; −∞ where there are fewer."""
    return scores.masked_fill(~negative, -torch.inf).topk(min(count, scores.shape[1]), sorted=False).values


class HardestNegativeRecipe(Struct, tag="hardest-negative", tag_field="kind", frozen=True, forbid_unknown_fields=True):
    """Faghri et al. (VSE++, BMVC 2018): the one hardest negative of each pair, on cosines."""

    margin: Annotated[float, Meta(gt=0)] = 0.2


class HardestNegativeLoss(nn.Module):
    """Σ [m − cos(x, y) + max cos(x, y′)]₊ over matching pairs (x, y), in both directions."""

    def __init__(self, recipe: HardestNegativeRecipe) -> None:
        super().__init__()
        self.margin = recipe.margin

    def forward(self, images: Tensor, texts: Tensor, contrast: Contrast, candidates: Tensor | None = None) -> Loss:
        parts = {}
        for name, scores, match, others, negative in directions(images, texts, contrast, candidates):
            nearest = hardest_negatives(others, negative, 1)
            matches = scores.masked_fill(~match, torch.inf)
            parts[name] = ((self.margin - matches)[..., None] + nearest[:, None]).relu().sum()
        total = parts["image_to_text"] + parts["text_to_image"]
        return Loss(total, {name: part.detach() for name, part in parts.items()})


class InfoNCERecipe(Struct, tag="infonce", tag_field="kind", frozen=True, forbid_unknown_fields=True):
    """van den Oord et al. (2018), with a learned temperature as in CLIP (Radford et al., ICML 2021)."""

    #: The initial temperature.
    temperature: Annotated[float, Meta(gt=0)] = 0.07


class InfoNCELoss(nn.Module):
    """Cross-entropy of each match among itself and its negatives, averaged over pairs and both directions.

    Other matches of an anchor are not in the denominator. The inverse temperature is learned, up to 100.
    """

    def __init__(self, recipe: InfoNCERecipe) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(-math.log(recipe.temperature)))

    def forward(self, images: Tensor, texts: Tensor, contrast: Contrast, candidates: Tensor | None = None) -> Loss:
        scale = self.log_scale.clamp(max=math.log(100)).exp()
        parts = {}
        for name, scores, match, others, negative in directions(images, texts, contrast, candidates):
            # Masked after scaling: 0 · ∞ would spoil the gradient of the scale.
            negatives = (scale * others).masked_fill(~negative, -torch.inf).logsumexp(1, keepdim=True)
            matches = scale * scores
            losses = torch.logaddexp(matches, negatives) - matches
            parts[name] = losses.masked_fill(~match, 0).sum() / match.sum()
        total = (parts["image_to_text"] + parts["text_to_image"]) / 2
        return Loss(total, {name: part.detach() for name, part in parts.items()} | {"temperature": 1 / scale.detach()})


class ScoreInfoNCE(nn.Module):
    """InfoNCE over scores `(images, captions)` that are not cosines of two embeddings."""

    def __init__(self, temperature: float | None = None) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature or InfoNCERecipe().temperature)))

    @property
    def scale(self) -> Tensor:
        """The inverse temperature, at most 100."""
        return self.log_scale.clamp(max=math.log(100)).exp()

    def forward(self, scores: Tensor, owner: Tensor) -> Tensor:
        scores = scores * self.scale
        match = scores[owner, torch.arange(len(owner), device=owner.device)]
        matches = owner == torch.arange(len(scores), device=owner.device)[:, None]
        others = scores.masked_fill(matches, -torch.inf).logsumexp(1)[owner]
        return (torch.logaddexp(others, match) - match + scores.logsumexp(0) - match).mean() / 2
