"""The losses of two-branch networks: eqs. 4 to 7 of Wang et al. (TPAMI 2018), on unit embeddings and masks.

`ranking_loss` has the first two sums of eq. 6, `neighbourhood_loss` is one of its last two (eqs. 4, 5),
`logistic_loss` is eq. 7. `RankingLoss` and `LogisticLoss` are the same with a recipe's settings and parts to log. The
sampler decides which pairs match (`phrase_sampling.py`, `deixis.training.sampling`).
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from msgspec import Meta, Struct
from torch import Tensor, nn
from torch.nn import functional

from deixis.training.contrastive import (
    Contrast,
    HardestNegativeLoss,
    HardestNegativeRecipe,
    InfoNCELoss,
    InfoNCERecipe,
    contrast_of,
    cosines,
)
from deixis.training.masked_norm import row_count
from deixis.training.task import Loss


def ranking_loss(
    images: Tensor,
    texts: Tensor,
    match: Tensor,
    negative: Tensor | None = None,
    *,
    margin: float = 0.05,
    weights: tuple[float, float] = (1.0, 4.0),
    hardest: int = 30,
) -> Tensor:
    """The first two sums of eq. 6: each matching pair against its nearest negatives, in both directions.

    Args:
        images: `(n, d)` unit embeddings.
        texts: `(m, d)` unit embeddings.
        match: `(n, m)` true where an image and a text belong together.
        negative: `(n, m)` true where they may be contrasted; by default where they do not match.
        margin: m.
        weights: λ₁ and λ₂, of image to text and of text to image.
        hardest: K; each matching pair is compared with its K nearest negatives.

    >>> images = torch.eye(3)
    >>> ranking_loss(images, images, torch.eye(3, dtype=torch.bool))
    tensor(0.)
    """
    image_to_text, text_to_image = cross_modal_triplets(images, texts, contrast_of(match, negative), margin, hardest)
    return weights[0] * image_to_text.sum() + weights[1] * text_to_image.sum()


def cross_modal_triplets(
    images: Tensor, texts: Tensor, contrast: Contrast, margin: float, hardest: int, candidates: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The terms of the first and of the second sum of eq. 6; texts are contrasted with `candidates`, or `images`."""
    distance = pairwise_distance(images, texts)
    to_candidates = None if candidates is None else pairwise_distance(texts, candidates)
    return (
        hardest_triplets(distance, contrast.match_texts, contrast.negative_texts, margin, hardest),
        hardest_triplets(distance.T, contrast.match_images, contrast.negative_images, margin, hardest, to_candidates),
    )


def neighbourhood_loss(
    embeddings: Tensor, same: Tensor, different: Tensor, *, margin: float = 0.05, hardest: int = 30
) -> Tensor:
    """The third or the fourth sum of eq. 6: the constraints within images (eq. 4) or within texts (eq. 5).

    Args:
        embeddings: `(n, d)` unit embeddings of images, or of texts.
        same: `(n, n)` true where two are in one neighbourhood: they match the same text, or the same image.
        different: `(n, n)` true where they are not.
        margin, hardest: as in `ranking_loss`.
    """
    return hardest_triplets(pairwise_distance(embeddings, embeddings), same, different, margin, hardest).sum()


def logistic_loss(logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """Eq. 7: Σ log(1 + exp(−z p)) over pairs with logits p and labels z of +1 and −1, where a mask is true."""
    losses = functional.softplus(-labels * logits.float())
    return losses.sum() if mask is None else losses.masked_fill(~mask, 0).sum()


def pairwise_distance(rows: Tensor, others: Tensor) -> Tensor:
    """Euclidean distances `(rows, others)` of unit vectors: d² = 2 − 2 cos."""
    # The gradient of the root is infinite at 0; below the floor it is 0.
    return (2 - 2 * cosines(rows, others)).clamp(min=1e-12).sqrt()


def hardest_triplets(
    distance: Tensor,
    match: Tensor,
    negative: Tensor,
    margin: float,
    hardest: int,
    candidate_distance: Tensor | None = None,
) -> Tensor:
    """[m + d(x, y) − d(x, y′)]₊ of every anchor x, match y and each of its `hardest` nearest negatives y′.

    Args:
        distance: `(anchors, others)`.
        match: `(anchors, others)`.
        negative: `(anchors, candidates)`.
        candidate_distance: `(anchors, candidates)`; by default `distance`, whose columns are the candidates.

    Returns:
        `(anchors, others, ≤ hardest)`, 0 where there is no match or no such negative.
    """
    candidates = distance if candidate_distance is None else candidate_distance
    far = candidates.masked_fill(~negative, torch.inf)
    nearest = far.topk(min(hardest, far.shape[1]), largest=False, sorted=False).values
    near = distance.masked_fill(~match, -torch.inf)
    return ((margin + near)[:, :, None] - nearest[:, None]).relu()


def triplet_count(match: Tensor, negative: Tensor, hardest: int) -> Tensor:
    """How many triplets `hardest_triplets` keeps, zeros included: each match with its nearest negatives, at most K."""
    return (match.sum(1) * negative.sum(1).clamp(max=hardest)).sum()


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
    """Eq. 6 with the weights of a recipe. Sums with weight 0, or without masks in the batch, are left out.

    Algorithm 1 gives K for the two cross-modal sums; the two sums of the constraints use the same K. The part
    `triplets` counts the cross-modal triplets that are kept, as the paper does (5,378 and 10,756 per batch on average),
    `triplets_above_zero` those with a loss.
    """

    def __init__(self, recipe: RankingRecipe) -> None:
        super().__init__()
        self.recipe = recipe

    def forward(self, images: Tensor, texts: Tensor, contrast: Contrast, candidates: Tensor | None = None) -> Loss:
        margin, hardest = self.recipe.margin, self.recipe.hardest
        to_text, to_image, among_images, among_texts = self.recipe.weights
        total, triplets, above_zero = (images.new_zeros(()) for _ in range(3))
        parts: dict[str, Tensor] = {}
        image_to_text, text_to_image = cross_modal_triplets(images, texts, contrast, margin, hardest, candidates)
        for name, weight, hinges, match, negative in (
            ("image_to_text", to_text, image_to_text, contrast.match_texts, contrast.negative_texts),
            ("text_to_image", to_image, text_to_image, contrast.match_images, contrast.negative_images),
        ):
            if weight:
                parts[name] = hinges.sum()
                total = total + weight * parts[name]
                triplets = triplets + triplet_count(match, negative, hardest)
                above_zero = above_zero + (hinges.detach() > 0).sum()
        for name, weight, embeddings, same, different in (
            ("image_to_image", among_images, images, contrast.same_images, contrast.different_images),
            ("text_to_text", among_texts, texts, contrast.same_texts, contrast.different_texts),
        ):
            if weight and same is not None and different is not None:
                parts[name] = neighbourhood_loss(embeddings, same, different, margin=margin, hardest=hardest)
                total = total + weight * parts[name]
        counts = {"triplets": triplets, "triplets_above_zero": above_zero}
        return Loss(total, {name: value.detach() for name, value in parts.items()} | counts)


class LogisticRecipe(Struct, tag="logistic", tag_field="kind", frozen=True, forbid_unknown_fields=True):
    """Eq. 7, the loss of the similarity network."""


class LogisticLoss(nn.Module):
    """Eq. 7; the part `right` is the share of pairs on the right side of 0."""

    def forward(self, logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Loss:
        right = labels * logits.detach() > 0
        correct = right.sum() if mask is None else (right & mask).sum()
        return Loss(logistic_loss(logits, labels, mask), {"right": correct / row_count(labels, mask)})


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
