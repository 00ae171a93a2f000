"""Contrasts between images and texts, and the losses of several papers that share them."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import torch
from msgspec import Meta, Struct
from torch import Tensor, nn
from torch.nn import functional

from deixis.training.task import Loss


class Direction(NamedTuple):
    """Matching pairs seen from one side, and the candidates to tell each match from.

    `candidates` (pairs, candidates) are rows of the other side; None stands for all of its rows in their order.
    """

    anchor: Tensor  # (pairs,) rows of the one side
    positive: Tensor  # (pairs,) rows of the other
    negative: Tensor  # (pairs, candidates) true where a candidate does not match the anchor
    candidates: Tensor | None = None


class Neighbours(NamedTuple):
    """Within one side: who stands for the same thing as whom (eqs. 4, 5), and who for another."""

    rows: Tensor  # (members,) rows of that side
    anchor: Tensor  # (pairs,) members, and who stands for the same
    positive: Tensor  # (pairs,)
    apart: Tensor  # (members, members)

    def direction(self) -> Direction:
        candidates = self.rows.expand(len(self.anchor), len(self.rows))
        return Direction(self.rows[self.anchor], self.rows[self.positive], self.apart[self.anchor], candidates)


class Contrast(NamedTuple):
    """What a batch of matching images and texts is to teach."""

    image_to_text: Direction
    text_to_image: Direction
    images: Neighbours | None = None
    texts: Neighbours | None = None
    #: Whether those of one side who stand for the same are brought together, where a loss asks for that.
    constrained: bool = True


def _cosines(anchors: Tensor, others: Tensor, direction: Direction) -> tuple[Tensor, Tensor]:
    """Cosines of the matching pairs (pairs,) and of the candidates (pairs, candidates), matching or not."""
    # Under mixed precision too: half precision would drown a margin of 0.05.
    with torch.autocast(anchors.device.type, enabled=False):
        full = torch.promote_types(anchors.dtype, torch.float32)
        cosines = anchors.to(full)[direction.anchor] @ others.to(full).T
    positive = cosines.gather(1, direction.positive[:, None])[:, 0]
    return positive, cosines if direction.candidates is None else cosines.gather(1, direction.candidates)


def _hardest(cosines: Tensor, negative: Tensor, count: int) -> Tensor:
    """Cosines of the `count` negatives nearest to each anchor, −∞ where there are fewer."""
    kept = cosines.masked_fill(~negative, -torch.inf)
    return kept.topk(min(count, cosines.shape[1]), sorted=False).values


class HardestNegativeRecipe(Struct, tag="hardest-negative", tag_field="kind", frozen=True, forbid_unknown_fields=True):
    """Faghri et al. (VSE++, BMVC 2018): the one hardest negative of each pair, on cosines."""

    margin: Annotated[float, Meta(gt=0)] = 0.2


class HardestNegativeLoss(nn.Module):
    """Σ [m − cos(x, y) + max cos(x, y′)]₊ in both directions."""

    def __init__(self, recipe: HardestNegativeRecipe) -> None:
        super().__init__()
        self.margin = recipe.margin

    def forward(self, images: Tensor, texts: Tensor, contrast: Contrast) -> Loss:
        parts = {}
        for name, anchors, others in (("image_to_text", images, texts), ("text_to_image", texts, images)):
            direction: Direction = getattr(contrast, name)
            positive, cosines = _cosines(anchors, others, direction)
            nearest = _hardest(cosines, direction.negative, 1)
            parts[name] = functional.relu(self.margin - positive[:, None] + nearest).sum()
        return Loss(
            parts["image_to_text"] + parts["text_to_image"], {name: part.detach() for name, part in parts.items()}
        )


class InfoNCERecipe(Struct, tag="infonce", tag_field="kind", frozen=True, forbid_unknown_fields=True):
    """van den Oord et al. (2018), with a learned temperature as in CLIP (Radford et al., ICML 2021)."""

    #: At first.
    temperature: Annotated[float, Meta(gt=0)] = 0.07


class InfoNCELoss(nn.Module):
    """−log of the softmax of each match among itself and its negatives, meaned over pairs and both directions.

    Other matches of an anchor stand in no denominator. The inverse temperature is learned and stays below 100.
    """

    def __init__(self, recipe: InfoNCERecipe) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(-math.log(recipe.temperature)))

    def forward(self, images: Tensor, texts: Tensor, contrast: Contrast) -> Loss:
        scale = self.log_scale.clamp(max=math.log(100)).exp()
        parts = {}
        for name, anchors, others in (("image_to_text", images, texts), ("text_to_image", texts, images)):
            direction: Direction = getattr(contrast, name)
            positive, cosines = _cosines(anchors, others, direction)
            # Masked after scaling: 0 · ∞ would spoil the gradient of the scale.
            negatives = (scale * cosines).masked_fill(~direction.negative, -torch.inf)
            match = scale * positive
            parts[name] = (torch.cat([match[:, None], negatives], 1).logsumexp(1) - match).mean()
        total = (parts["image_to_text"] + parts["text_to_image"]) / 2
        return Loss(total, {name: part.detach() for name, part in parts.items()} | {"temperature": 1 / scale.detach()})


class ScoreInfoNCE(nn.Module):
    """InfoNCE (`InfoNCELoss`) over scores `(images, captions)` that are no cosines of two rows."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(-math.log(InfoNCERecipe().temperature)))

    def forward(self, scores: Tensor, owner: Tensor) -> Tensor:
        scores = scores * self.log_scale.clamp(max=math.log(100)).exp()
        match = scores[owner, torch.arange(len(owner), device=owner.device)]
        own = owner == torch.arange(len(scores), device=owner.device)[:, None]
        others = scores.masked_fill(own, -torch.inf).logsumexp(1)[owner]
        return (torch.logaddexp(others, match) - match + scores.logsumexp(0) - match).mean() / 2
