"""Losses over images and texts: eq. 6 and eq. 7 of paper 1, and two later ones with the same interface.

A ranking loss is given unit rows of images and of texts, and a `Contrast`: which pairs match, and what each may be told
apart from. Who is whose negative is the sampler's business (`deixis.training.sampling`), so every loss here knows
several matches of one image, phrase or chain. Nothing loops over pairs.
"""

from __future__ import annotations

import math
from typing import Annotated

from msgspec import Meta, Struct
from torch import Tensor, nn
from torch.nn import functional

from deixis.errors import DeixisError
from deixis.training.contrastive import (
    Contrast,
    Direction,
    HardestNegativeLoss,
    HardestNegativeRecipe,
    InfoNCELoss,
    InfoNCERecipe,
    _cosines,
    _hardest,
)
from deixis.training.task import Loss


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
