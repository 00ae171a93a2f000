"""Losses over images and texts: eq. 6 and eq. 7 of paper 1, and two later ones with the same interface.

A ranking loss is given unit rows of images and of texts, and a `Contrast`: which pairs match, and what each may be told
apart from. Who is whose negative is the sampler's business (`deixis.learning.sampling`), so every loss here knows
several matches of one image, phrase or chain. Nothing loops over pairs.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import torch
from msgspec import Meta, Struct
from torch import Tensor, nn
from torch.nn import functional

from deixis.errors import DeixisError
from deixis.learning.task import Loss


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


def _distances(cosines: Tensor) -> Tensor:
    # Unit rows: d² = 2 − 2 cos. At d = 0 the root has no slope; the floor gives it none.
    return (2 - 2 * cosines).clamp(min=1e-12).sqrt()


def triplet_hinges(anchors: Tensor, others: Tensor, direction: Direction, margin: float, hardest: int) -> Tensor:
    """[m + d(anchor, positive) − d(anchor, negative)]₊ of the hardest triplets of each pair, (pairs, ≤ hardest).

    The loss of a triplet falls with the distance of its negative, so the hardest are the nearest negatives.
    """
    positive, cosines = _cosines(anchors, others, direction)
    nearest = _hardest(cosines, direction.negative, hardest)
    return functional.relu(margin + _distances(positive)[:, None] - _distances(nearest))


class RankingRecipe(Struct, tag="ranking", tag_field="kind", frozen=True, forbid_unknown_fields=True):
    """Eq. 6. The defaults are the bi-directional loss for phrases; for sentences (1, 1.5, 0, 0) and 10 hardest.

    One direction: (0, 1, 0, 0) for phrases, (1, 0, 0, 0) for sentences. Constraints: (1, 4, 0.1, 0.1) for phrases and
    (1, 1.5, 0, 0.05) for sentences; `constraints_after` epochs train without them.
    """

    #: λ₁ … λ₄: image to text, text to image, among images, among texts.
    weights: tuple[float, float, float, float] = (1.0, 4.0, 0.0, 0.0)
    margin: Annotated[float, Meta(gt=0)] = 0.05
    #: K: triplets kept for each matching pair.
    hardest: Annotated[int, Meta(ge=1)] = 30
    constraints_after: Annotated[int, Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        if not all(0 <= weight < math.inf for weight in self.weights):
            raise ValueError(f"weights: λ₁ … λ₄ are 0 or more, not {list(self.weights)}")
        if not any(self.weights):
            raise ValueError("weights: with λ₁ … λ₄ all 0 there is nothing to learn")
        if self.constraints_after and not any(self.weights[:2]):
            raise ValueError("constraints_after: the epochs before the constraints need λ₁ or λ₂")


class RankingLoss(nn.Module):
    """Eq. 6 of paper 1: a sum over the K hardest triplets of every matching pair, in up to four directions.

    Algorithm 1 names K for the two cross-modal sums; the two sums of the constraints keep as many. The part `triplets`
    counts those of the cross-modal sums that cost something (the paper's means: 5,378 and 10,756 a batch).
    """

    def __init__(self, recipe: RankingRecipe) -> None:
        super().__init__()
        self.recipe = recipe

    def forward(self, images: Tensor, texts: Tensor, contrast: Contrast) -> Loss:
        sums: dict[str, Tensor] = {}
        triplets = images.new_zeros(())
        total = images.new_zeros(())
        sides = ((images, texts), (texts, images), (images, images), (texts, texts))
        for (name, direction), (anchors, others), weight in zip(
            self._directions(contrast).items(), sides, self.recipe.weights, strict=True
        ):
            if direction is None:
                continue
            hinges = triplet_hinges(anchors, others, direction, self.recipe.margin, self.recipe.hardest)
            sums[name] = hinges.sum()
            total = total + weight * sums[name]
            if anchors is not others:
                triplets += (hinges.detach() > 0).sum()
        return Loss(total, {name: value.detach() for name, value in sums.items()} | {"triplets": triplets})

    def _directions(self, contrast: Contrast) -> dict[str, Direction | None]:
        """The sums of eq. 6 in its order; None where the weight is 0."""
        weights = self.recipe.weights
        directions: dict[str, Direction | None] = {
            "image_to_text": contrast.image_to_text if weights[0] else None,
            "text_to_image": contrast.text_to_image if weights[1] else None,
        }
        for side, neighbours, weight in (("image", contrast.images, weights[2]), ("text", contrast.texts, weights[3])):
            directions[f"{side}_to_{side}"] = None
            if weight and contrast.constrained:
                if neighbours is None:
                    raise DeixisError(
                        f"loss.weights ask for a constraint among {side}s, but the batches have no neighbours there: "
                        "they come with sampler.neighbourhood = 'sampling', and for sentences among texts alone"
                    )
                directions[f"{side}_to_{side}"] = neighbours.direction()
        return directions


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


class LogisticRecipe(Struct, tag="logistic", tag_field="kind", frozen=True, forbid_unknown_fields=True):
    """Eq. 7, the loss of the similarity network."""


class LogisticLoss(nn.Module):
    """Eq. 7 of paper 1: Σ log(1 + exp(−z p)) over pairs with logits p and labels z of +1 and −1, as many of each.

    A label of 0 is none: such a pair is padding.
    """

    def forward(self, logits: Tensor, labels: Tensor) -> Loss:
        right, padding = labels * logits.float(), labels == 0
        share = (right.detach() > 0).sum() / (len(labels) - padding.sum())
        return Loss(functional.softplus(-right).masked_fill(padding, 0).sum(), {"right": share})


LossRecipe = RankingRecipe | HardestNegativeRecipe | InfoNCERecipe | LogisticRecipe


def make_loss(recipe: LossRecipe) -> RankingLoss | HardestNegativeLoss | InfoNCELoss | LogisticLoss:
    """The loss of a recipe; its parameters, where it has any, are learned with the model's."""
    match recipe:
        case RankingRecipe():
            return RankingLoss(recipe)
        case HardestNegativeRecipe():
            return HardestNegativeLoss(recipe)
        case InfoNCERecipe():
            return InfoNCELoss(recipe)
        case LogisticRecipe():
            return LogisticLoss()
