"""Eq. 6 and Algorithm 1, one triplet at a time, as the paper prints them.

Slow, and easy to check against the paper; the tests hold `loss.py` and `phrase_sampling.py` to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from deixis.training.contrastive import Contrast


def structure_preserving_loss(
    images: Tensor,
    texts: Tensor,
    contrast: Contrast,
    *,
    margin: float = 0.05,
    weights: tuple[float, float, float, float] = (1.0, 4.0, 0.0, 0.0),
    hardest: int = 30,
    candidates: Tensor | None = None,
) -> Tensor:
    """Eq. 6, all four sums; weights are λ₁ … λ₄.

    Args:
        images, texts: `(n, d)`, `(m, d)` unit embeddings.
        contrast: which of them match, and which are negatives; the last two sums need all its masks.
        candidates: `(k, d)` the images that texts are contrasted with; by default `images`.
    """
    sums = (
        (images, texts, texts, contrast.match_texts, contrast.negative_texts),
        (texts, images, images if candidates is None else candidates, contrast.match_images, contrast.negative_images),
        (images, images, images, contrast.same_images, contrast.different_images),
        (texts, texts, texts, contrast.same_texts, contrast.different_texts),
    )
    total = images.new_zeros(())
    for weight, (anchors, others, negatives, match, negative) in zip(weights, sums, strict=True):
        if weight:
            if match is None or negative is None:
                raise ValueError("a sum of eq. 6 has a weight above 0 and no masks of what matches")
            losses = hardest_losses(anchors, others, negatives, match, negative, margin, hardest)
            total = total + weight * sum(losses, images.new_zeros(()))
    return total


def hardest_losses(
    anchors: Tensor, others: Tensor, candidates: Tensor, match: Tensor, negative: Tensor, margin: float, hardest: int
) -> list[Tensor]:
    """[m + d(x, y) − d(x, y′)]₊ of the triplets that are kept: of each matching pair the `hardest` that cost most."""
    hardest_of_pairs = []
    for x, y in match.nonzero().tolist():
        losses = []
        for y_prime in negative[x].nonzero()[:, 0].tolist():
            loss = margin + distance(anchors[x], others[y]) - distance(anchors[x], candidates[y_prime])
            if loss > 0:
                losses.append(loss)
        hardest_of_pairs += sorted(losses, key=Tensor.item, reverse=True)[:hardest]
    return hardest_of_pairs


def distance(one: Tensor, other: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(one - other)
    return length


class Entity(NamedTuple):
    """A coreference chain with a box, as Algorithm 1 sees it."""

    #: The image and the corners of the ground-truth box. Two chains may share a box.
    box: tuple[float, ...]
    #: All phrases that name it.
    phrases: frozenset[int]
    #: Regions of the image with IoU ≥ 0.7 with the box (step 2), and those with IoU < 0.3 (step 3.b).
    positives: frozenset[int]
    negatives: frozenset[int]


class Pair(NamedTuple):
    """A positive pair (x, y) of a mini-batch: a region of an entity, and a phrase that names it."""

    entity: Entity
    x: int
    y: int


def region_triplets(pairs: Sequence[Pair]) -> Iterator[tuple[int, int, int]]:
    """Step 3.a: all (x, y, y′) where y′ is a phrase of the mini-batch for another ground-truth region."""
    for pair in pairs:
        for other in pairs:
            if other.entity.box != pair.entity.box and other.y not in pair.entity.phrases:
                yield pair.x, pair.y, other.y


def phrase_triplets(pairs: Sequence[Pair]) -> Iterator[tuple[int, int, int]]:
    """Step 3.b: all (y, x, x′) where x′ is a region of the same image with IoU < 0.3."""
    for pair in pairs:
        for x_prime in pair.entity.negatives:
            yield pair.y, pair.x, x_prime


def regions_with_one_phrase(pairs: Sequence[Pair]) -> set[int]:
    """Step 3.c.i: target regions that get a second phrase of their chain, y₂; those without another phrase get none."""
    phrases: dict[int, set[int]] = {}
    options: dict[int, set[int]] = {}
    for pair in pairs:
        phrases.setdefault(pair.x, set()).add(pair.y)
        options.setdefault(pair.x, set()).update(pair.entity.phrases)
    return {x for x, named in phrases.items() if len(named) == 1 and len(options[x]) > 1}


def phrases_with_one_region(pairs: Sequence[Pair]) -> set[int]:
    """Step 3.c.ii: target phrases that get a second positive region, x₂; those without another region get none."""
    regions: dict[int, set[int]] = {}
    options: dict[int, set[int]] = {}
    for pair in pairs:
        regions.setdefault(pair.y, set()).add(pair.x)
        options.setdefault(pair.y, set()).update(pair.entity.positives)
    return {y for y, named in regions.items() if len(named) == 1 and len(options[y]) > 1}
