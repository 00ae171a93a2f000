"""Losses against explicit loops over all triplets and pairs: values and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from deixis.papers.two_branch.loss import (
    LogisticRecipe,
    LossRecipe,
    RankingRecipe,
    logistic_loss,
    make_loss,
    neighbourhood_loss,
    ranking_loss,
)
from deixis.papers.two_branch.reference import hardest_losses, structure_preserving_loss
from deixis.training.contrastive import Contrast, HardestNegativeRecipe, InfoNCERecipe, contrast_of
from deixis.training.task import Loss

IMAGES, TEXTS, CANDIDATES, DIM = 9, 11, 6, 5


def rows(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    # Near each other, so that the margin of 0.05 is violated by some triplets and kept by others.
    centre = torch.randn(DIM, generator=generator, dtype=torch.float64)
    images = centre + 0.1 * torch.randn(IMAGES, DIM, generator=generator, dtype=torch.float64)
    texts = centre + 0.1 * torch.randn(TEXTS, DIM, generator=generator, dtype=torch.float64)
    return images.requires_grad_(), texts.requires_grad_()


def contrast(seed: int) -> Contrast:
    """Random masks: one way all texts may be negatives, the other way some other images are (`CANDIDATES`)."""
    generator = torch.Generator().manual_seed(1000 + seed)

    def mask(rows: int, columns: int, share: float) -> Tensor:
        return torch.rand(rows, columns, generator=generator) < share

    def neighbours(count: int) -> tuple[Tensor, Tensor]:
        kind = torch.randint(3, (count,), generator=generator)
        equal = kind[:, None] == kind
        return equal & ~torch.eye(count).bool(), ~equal

    return Contrast(
        mask(IMAGES, TEXTS, 0.15),
        mask(IMAGES, TEXTS, 0.75),
        mask(TEXTS, IMAGES, 0.1),
        mask(TEXTS, CANDIDATES, 0.6),
        *neighbours(IMAGES),
        *neighbours(TEXTS),
    )


def candidates_of(images: Tensor) -> Tensor:
    """Images that texts are contrasted with: some of a batch, one of them twice."""
    return images[torch.tensor([3, 0, 5, 3, 8, 1])]


Triplets = list[tuple[int, int, list[int]]]


def triplets(match: Tensor, negative: Tensor) -> Triplets:
    """Anchor, positive and the list of negatives of each pair."""
    return [(int(i), int(j), negative[i].nonzero()[:, 0].tolist()) for i, j in match.nonzero()]


def terms(images: Tensor, texts: Tensor, batch: Contrast) -> list[tuple[Tensor, Tensor, Tensor, Triplets]]:
    """Of each sum of eq. 6: anchors, what they may match, candidates for negatives, triplets."""
    assert batch.same_images is not None
    assert batch.different_images is not None
    assert batch.same_texts is not None
    assert batch.different_texts is not None
    return [
        (images, texts, texts, triplets(batch.match_texts, batch.negative_texts)),
        (texts, images, candidates_of(images), triplets(batch.match_images, batch.negative_images)),
        (images, images, images, triplets(batch.same_images, batch.different_images)),
        (texts, texts, texts, triplets(batch.same_texts, batch.different_texts)),
    ]


def equation_6(images: Tensor, texts: Tensor, batch: Contrast, recipe: RankingRecipe) -> Tensor:
    images, texts = functional.normalize(images), functional.normalize(texts)
    return structure_preserving_loss(
        images,
        texts,
        batch,
        margin=recipe.margin,
        weights=recipe.weights,
        hardest=recipe.hardest,
        candidates=candidates_of(images),
    )


def hardest_negative(images: Tensor, texts: Tensor, batch: Contrast, margin: float) -> Tensor:
    images, texts = functional.normalize(images), functional.normalize(texts)
    total = torch.zeros((), dtype=torch.float64)
    for anchors, others, candidates, found in terms(images, texts, batch)[:2]:
        for anchor, positive, negatives in found:
            match = anchors[anchor] @ others[positive]
            costs = [margin - match + anchors[anchor] @ candidates[row] for row in negatives]
            if costs and max(costs) > 0:
                total = total + max(costs)
    return total


def info_nce(images: Tensor, texts: Tensor, batch: Contrast, log_scale: Tensor) -> Tensor:
    images, texts = functional.normalize(images), functional.normalize(texts)
    sums = []
    for anchors, others, candidates, found in terms(images, texts, batch)[:2]:
        costs = []
        for anchor, positive, negatives in found:
            match = (log_scale.exp() * (anchors[anchor] @ others[positive])).exp()
            wrong = sum(((log_scale.exp() * (anchors[anchor] @ candidates[row])).exp() for row in negatives), match * 0)
            costs.append(-(match / (match + wrong)).log())
        sums.append(torch.stack(costs).mean())
    return (sums[0] + sums[1]) / 2


def value_of(loss: Callable[..., Loss], batch: Contrast) -> Callable[[Tensor, Tensor], Tensor]:
    def value(images: Tensor, texts: Tensor) -> Tensor:
        images, texts = functional.normalize(images), functional.normalize(texts)
        return loss(images, texts, batch, candidates_of(images)).total

    return value


def same_value_and_gradients(
    got: Callable[[Tensor, Tensor], Tensor], wanted: Callable[[Tensor, Tensor], Tensor], seed: int
) -> None:
    ours, theirs = rows(seed), rows(seed)
    value, oracle = got(*ours), wanted(*theirs)
    torch.testing.assert_close(value, oracle)
    assert oracle > 0
    value.backward()
    oracle.backward()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("weights", [(1.0, 4.0, 0.1, 0.1), (0.0, 1.0, 0.0, 0.0), (1.0, 1.5, 0.0, 0.05)])
@pytest.mark.parametrize("hardest", [2, 30])
def test_equation_6(seed: int, weights: tuple[float, float, float, float], hardest: int) -> None:
    recipe, batch = RankingRecipe(weights, hardest=hardest), contrast(seed)
    loss = make_loss(recipe)
    same_value_and_gradients(
        value_of(loss, batch),
        lambda images, texts: equation_6(images, texts, batch, recipe),
        seed,
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("restricted", [False, True])
def test_the_functions_are_the_sums_of_equation_6(seed: int, restricted: bool) -> None:
    batch, images, texts = contrast(seed), *rows(seed)
    match, negative = batch.match_texts, batch.negative_texts if restricted else None
    images, texts = functional.normalize(images), functional.normalize(texts)
    found = ranking_loss(images, texts, match, negative, weights=(1.0, 1.5), hardest=3)
    both = contrast_of(match, negative)
    torch.testing.assert_close(found, make_loss(RankingRecipe((1.0, 1.5, 0, 0), hardest=3))(images, texts, both).total)
    assert batch.same_texts is not None
    assert batch.different_texts is not None
    whole = make_loss(RankingRecipe((0, 0, 0, 1), hardest=3))(images, texts, batch, candidates_of(images))
    within = neighbourhood_loss(texts, batch.same_texts, batch.different_texts, hardest=3)
    torch.testing.assert_close(within, whole.total)


def test_parts_are_the_unweighted_sums_and_the_number_of_triplets() -> None:
    recipe, batch = RankingRecipe((1.0, 4.0, 0.1, 0.2), hardest=3), contrast(0)
    images, texts = (functional.normalize(value) for value in rows(0))
    loss = make_loss(recipe)(images, texts, batch, candidates_of(images))
    names = ("image_to_text", "text_to_image", "image_to_image", "text_to_text")
    torch.testing.assert_close(
        sum(weight * loss.parts[name] for name, weight in zip(names, recipe.weights, strict=True)), loss.total.detach()
    )
    kept = [
        hardest_losses(*given, recipe.margin, recipe.hardest)
        for given in (
            (images, texts, texts, batch.match_texts, batch.negative_texts),
            (texts, images, candidates_of(images), batch.match_images, batch.negative_images),
        )
    ]
    assert int(loss.parts["triplets"]) == sum(map(len, kept))


@pytest.mark.parametrize("seed", range(6))
def test_hardest_negative(seed: int) -> None:
    loss, batch = make_loss(HardestNegativeRecipe(margin=0.1)), contrast(seed)
    same_value_and_gradients(
        value_of(loss, batch),
        lambda images, texts: hardest_negative(images, texts, batch, 0.1),
        seed,
    )


@pytest.mark.parametrize("seed", range(6))
def test_info_nce_learns_its_temperature(seed: int) -> None:
    loss, batch = make_loss(InfoNCERecipe(temperature=0.2)).double(), contrast(seed)
    oracle_scale = torch.tensor(-math.log(0.2), dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        next(loss.parameters()).copy_(oracle_scale)
    same_value_and_gradients(
        value_of(loss, batch),
        lambda images, texts: info_nce(images, texts, batch, oracle_scale),
        seed,
    )
    torch.testing.assert_close(next(loss.parameters()).grad, oracle_scale.grad)


def test_equation_7() -> None:
    logits = torch.randn(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    labels = torch.tensor([1.0, -1.0] * 10)
    mask = torch.arange(20) < 14
    loss = make_loss(LogisticRecipe())(logits, labels, mask)
    pairs = list(zip(labels.tolist(), logits.tolist(), strict=True))
    wanted = [math.log(1 + math.exp(-z * p)) for z, p in pairs]
    assert loss.total.item() == pytest.approx(sum(wanted[:14]), rel=1e-6)
    assert logistic_loss(logits, labels).item() == pytest.approx(sum(wanted), rel=1e-6)
    assert loss.parts["right"].item() == pytest.approx(sum(z * p > 0 for z, p in pairs[:14]) / 14)


@pytest.mark.parametrize(
    "recipe",
    [RankingRecipe((1, 1, 1, 1)), HardestNegativeRecipe(), InfoNCERecipe()],
    ids=lambda recipe: recipe.__class__,
)
@pytest.mark.parametrize("candidates", [0, 2])
def test_pairs_without_negatives_and_equal_rows_cost_a_finite_gradient(recipe: LossRecipe, candidates: int) -> None:
    images = torch.ones(3, 4, requires_grad=True)
    texts = torch.ones(3, 4, requires_grad=True)
    none, own = torch.zeros(3, 3, dtype=torch.bool), torch.eye(3).bool()
    batch = Contrast(own, none, own, torch.zeros(3, candidates).bool(), ~none, none, none, ~none)
    loss = make_loss(recipe)
    unit = functional.normalize(images)
    total = loss(unit, functional.normalize(texts), batch, unit[:candidates]).total
    total.backward()
    assert total.item() == 0
    assert all(value.grad is not None and value.grad.isfinite().all() for value in (images, texts, *loss.parameters()))


@pytest.mark.parametrize(
    "recipe",
    [RankingRecipe((1, 4, 0.1, 0.1), hardest=3), HardestNegativeRecipe(0.1), InfoNCERecipe()],
    ids=lambda recipe: recipe.__class__,
)
def test_what_is_masked_changes_nothing(recipe: LossRecipe) -> None:
    """More images and texts whose masks are false: the same loss, and no gradient for them."""
    batch, loss = contrast(0), make_loss(recipe).double()
    images, texts = (functional.normalize(value.detach()) for value in rows(0))
    total = loss(images, texts, batch, candidates_of(images)).total
    larger = Contrast(
        **{
            name: functional.pad(mask, (0, 2 if name == "negative_images" else 5, 0, 5))
            for name, mask in batch._asdict().items()
        }
    )
    added = functional.normalize(torch.randn(5, DIM, dtype=torch.float64))
    more = [torch.cat([value, added]).requires_grad_() for value in (images, texts)]
    candidates = torch.cat([candidates_of(more[0]), more[0][-2:]])
    found = loss(*more, larger, candidates).total
    torch.testing.assert_close(found, total)
    for value, count in zip(more, (IMAGES, TEXTS), strict=True):
        (gradient,) = torch.autograd.grad(found, value, retain_graph=True)
        assert (gradient[count:] == 0).all()
        assert gradient.isfinite().all()


def test_mixed_precision_leaves_distances_exact() -> None:
    images, texts = (functional.normalize(value.detach().float()) for value in rows(0))
    loss, batch = make_loss(RankingRecipe()), contrast(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = loss(images, texts, batch, candidates_of(images)).total
    assert mixed.item() == loss(images, texts, batch, candidates_of(images)).total.item()


def test_constraints_are_left_out_where_a_batch_has_none() -> None:
    images, texts = (functional.normalize(value.detach()) for value in rows(0))
    loss, batch = make_loss(RankingRecipe((1, 4, 0.1, 0.1))), contrast(0)
    without = batch._replace(same_texts=None, different_texts=None)
    assert "text_to_text" not in loss(images, texts, without, candidates_of(images)).parts
    assert "text_to_text" in loss(images, texts, batch, candidates_of(images)).parts


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("weights = [0, 0, 0, 0]", "nothing to learn"),
        ("weights = [1, -4, 0, 0]", "0 or more"),
        ("weights = [1, nan, 0, 0]", "0 or more"),
        ("weights = [1, inf, 0, 0]", "0 or more"),
        ("weights = [0, 0, 0.1, 0.1]\nconstraints_after = 8", "need λ₁ or λ₂"),
    ],
)
def test_weights_that_teach_nothing_are_refused(setting: str, problem: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        msgspec.toml.decode(f'kind = "ranking"\n{setting}', type=LossRecipe)


def test_recipes_are_distinguished_by_kind() -> None:
    for text, wanted in {
        'kind = "ranking"\nweights = [1, 1.5, 0, 0.05]\nhardest = 10': RankingRecipe((1, 1.5, 0, 0.05), hardest=10),
        'kind = "hardest-negative"': HardestNegativeRecipe(),
        'kind = "infonce"\ntemperature = 0.1': InfoNCERecipe(0.1),
        'kind = "logistic"': LogisticRecipe(),
    }.items():
        assert msgspec.toml.decode(text, type=LossRecipe) == wanted
    with pytest.raises(msgspec.ValidationError, match="margin"):
        msgspec.toml.decode('kind = "ranking"\nmargin = 0', type=LossRecipe)
