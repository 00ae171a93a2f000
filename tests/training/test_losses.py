"""Losses against explicit loops over all triplets and pairs: values and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from deixis.errors import DeixisError
from deixis.papers.two_branch.loss import LogisticRecipe, LossRecipe, RankingRecipe, make_loss
from deixis.training.contrastive import Contrast, Direction, HardestNegativeRecipe, InfoNCERecipe, Neighbours

IMAGES, TEXTS, DIM = 9, 11, 5


def rows(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    # Near each other, so that the margin of 0.05 is violated by some triplets and kept by others.
    centre = torch.randn(DIM, generator=generator, dtype=torch.float64)
    images = centre + 0.1 * torch.randn(IMAGES, DIM, generator=generator, dtype=torch.float64)
    texts = centre + 0.1 * torch.randn(TEXTS, DIM, generator=generator, dtype=torch.float64)
    return images.requires_grad_(), texts.requires_grad_()


def contrast(seed: int) -> Contrast:
    """A batch of every shape: all rows as candidates one way, padded lists of them the other; neighbours both ways."""
    generator = torch.Generator().manual_seed(1000 + seed)

    def draw(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator)

    def neighbours(count: int) -> Neighbours:
        kind = draw(3, count)
        equal = kind[:, None] == kind
        same = (equal & ~torch.eye(count).bool()).nonzero(as_tuple=True)
        return Neighbours(torch.randperm(count, generator=generator), *same, ~equal)

    return Contrast(
        Direction(draw(IMAGES, 12), draw(TEXTS, 12), draw(4, 12, TEXTS) > 0),
        Direction(draw(TEXTS, 7), draw(IMAGES, 7), draw(3, 7, 6) > 0, draw(IMAGES, 7, 6)),
        neighbours(6),
        neighbours(8),
    )


def triplets(direction: Direction, others: int) -> list[tuple[int, int, list[int]]]:
    """Anchor, positive and the list of negatives of each pair."""
    found = []
    for number in range(len(direction.anchor)):
        candidates = range(others) if direction.candidates is None else direction.candidates[number].tolist()
        negatives = [row for row, apart in zip(candidates, direction.negative[number].tolist(), strict=True) if apart]
        found.append((int(direction.anchor[number]), int(direction.positive[number]), negatives))
    return found


def neighbour_triplets(neighbours: Neighbours) -> list[tuple[int, int, list[int]]]:
    """Eqs. 4 and 5: every i, every j in its neighbourhood, every k outside of it."""
    members, found = neighbours.rows.tolist(), []
    for i, j in zip(neighbours.anchor.tolist(), neighbours.positive.tolist(), strict=True):
        outside = [member for k, member in enumerate(members) if neighbours.apart[i, k]]
        found.append((members[i], members[j], outside))
    return found


def equation_6(images: Tensor, texts: Tensor, batch: Contrast, recipe: RankingRecipe) -> tuple[Tensor, int]:
    """The sum and how many cross-modal triplets cost something."""
    images, texts = functional.normalize(images), functional.normalize(texts)
    assert batch.images is not None
    assert batch.texts is not None
    terms = [
        (images, texts, triplets(batch.image_to_text, TEXTS)),
        (texts, images, triplets(batch.text_to_image, IMAGES)),
        (images, images, neighbour_triplets(batch.images)),
        (texts, texts, neighbour_triplets(batch.texts)),
    ]
    total, kept = torch.zeros((), dtype=torch.float64), 0
    for number, ((anchors, others, found), weight) in enumerate(zip(terms, recipe.weights, strict=True)):
        for anchor, positive, negatives in found:
            near = torch.linalg.vector_norm(anchors[anchor] - others[positive])
            losses = [
                recipe.margin + near - torch.linalg.vector_norm(anchors[anchor] - others[negative])
                for negative in negatives
            ]
            highest = sorted((loss for loss in losses if loss > 0), key=Tensor.item, reverse=True)[: recipe.hardest]
            total = total + weight * sum(highest, torch.zeros(()))
            kept += len(highest) if number < 2 else 0
    return total, kept


def hardest_negative(images: Tensor, texts: Tensor, batch: Contrast, margin: float) -> Tensor:
    images, texts = functional.normalize(images), functional.normalize(texts)
    total = torch.zeros((), dtype=torch.float64)
    for anchors, others, direction in ((images, texts, batch.image_to_text), (texts, images, batch.text_to_image)):
        for anchor, positive, negatives in triplets(direction, len(others)):
            costs = [margin - anchors[anchor] @ others[positive] + anchors[anchor] @ others[row] for row in negatives]
            if costs and max(costs) > 0:
                total = total + max(costs)
    return total


def info_nce(images: Tensor, texts: Tensor, batch: Contrast, log_scale: Tensor) -> Tensor:
    images, texts = functional.normalize(images), functional.normalize(texts)
    sums = []
    for anchors, others, direction in ((images, texts, batch.image_to_text), (texts, images, batch.text_to_image)):
        costs = []
        for anchor, positive, negatives in triplets(direction, len(others)):
            match = (log_scale.exp() * (anchors[anchor] @ others[positive])).exp()
            wrong = sum(((log_scale.exp() * (anchors[anchor] @ others[row])).exp() for row in negatives), match * 0)
            costs.append(-(match / (match + wrong)).log())
        sums.append(torch.stack(costs).mean())
    return (sums[0] + sums[1]) / 2


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
        lambda images, texts: loss(functional.normalize(images), functional.normalize(texts), batch).total,
        lambda images, texts: equation_6(images, texts, batch, recipe)[0],
        seed,
    )


def test_parts_are_the_unweighted_sums_and_the_number_of_triplets() -> None:
    recipe, batch = RankingRecipe((1.0, 4.0, 0.1, 0.2), hardest=3), contrast(0)
    images, texts = rows(0)
    loss = make_loss(recipe)(functional.normalize(images), functional.normalize(texts), batch)
    names = ("image_to_text", "text_to_image", "image_to_image", "text_to_text")
    torch.testing.assert_close(
        sum(weight * loss.parts[name] for name, weight in zip(names, recipe.weights, strict=True)), loss.total.detach()
    )
    assert int(loss.parts["triplets"]) == equation_6(images, texts, batch, recipe)[1]


@pytest.mark.parametrize("seed", range(6))
def test_hardest_negative(seed: int) -> None:
    loss, batch = make_loss(HardestNegativeRecipe(margin=0.1)), contrast(seed)
    same_value_and_gradients(
        lambda images, texts: loss(functional.normalize(images), functional.normalize(texts), batch).total,
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
        lambda images, texts: loss(functional.normalize(images), functional.normalize(texts), batch).total,
        lambda images, texts: info_nce(images, texts, batch, oracle_scale),
        seed,
    )
    torch.testing.assert_close(next(loss.parameters()).grad, oracle_scale.grad)


def test_equation_7() -> None:
    logits = torch.randn(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    labels = torch.tensor([1.0, -1.0] * 10)
    loss = make_loss(LogisticRecipe())(logits, labels)
    wanted = sum(math.log(1 + math.exp(-z * p)) for z, p in zip(labels.tolist(), logits.tolist(), strict=True))
    assert loss.total.item() == pytest.approx(wanted, rel=1e-6)
    right = [z * p > 0 for z, p in zip(labels.tolist(), logits.tolist(), strict=True)]
    assert loss.parts["right"].item() == pytest.approx(sum(right) / 20)


@pytest.mark.parametrize(
    "recipe",
    [RankingRecipe((1, 1, 1, 1)), HardestNegativeRecipe(), InfoNCERecipe()],
    ids=lambda recipe: recipe.__class__,
)
@pytest.mark.parametrize("candidates", [0, 2])
def test_pairs_without_negatives_and_equal_rows_cost_a_finite_gradient(recipe: LossRecipe, candidates: int) -> None:
    images = torch.ones(3, 4, requires_grad=True)
    texts = torch.ones(3, 4, requires_grad=True)
    order = torch.arange(3)
    none = torch.zeros(3, 3, dtype=torch.bool)
    lists = Direction(order, order, torch.zeros(3, candidates).bool(), torch.zeros(3, candidates).long())
    everyone = (~none).nonzero(as_tuple=True)
    alone, met = Neighbours(order, order[:0], order[:0], ~none), Neighbours(order, *everyone, none)
    batch = Contrast(Direction(order, order, none), lists, met, alone)
    loss = make_loss(recipe)
    total = loss(functional.normalize(images), functional.normalize(texts), batch).total
    total.backward()
    assert total.item() == 0
    assert all(value.grad is not None and value.grad.isfinite().all() for value in (images, texts, *loss.parameters()))


def test_mixed_precision_leaves_distances_exact() -> None:
    images, texts = (functional.normalize(value.detach().float()) for value in rows(0))
    loss, batch = make_loss(RankingRecipe()), contrast(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = loss(images, texts, batch).total
    assert mixed.item() == loss(images, texts, batch).total.item()


def test_constraints_are_left_out_where_a_batch_says_so() -> None:
    images, texts = (functional.normalize(value.detach()) for value in rows(0))
    loss = make_loss(RankingRecipe((1, 4, 0.1, 0.1)))
    assert "text_to_text" not in loss(images, texts, contrast(0)._replace(constrained=False)).parts
    assert "text_to_text" in loss(images, texts, contrast(0)).parts


def test_constraints_without_neighbours_are_refused() -> None:
    images, texts = (functional.normalize(value.detach()) for value in rows(0))
    with pytest.raises(DeixisError, match=r"among images.*sampler\.neighbourhood"):
        make_loss(RankingRecipe((1, 4, 0.1, 0.1)))(images, texts, contrast(0)._replace(images=None))


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


def test_recipes_are_told_apart_by_kind() -> None:
    for text, wanted in {
        'kind = "ranking"\nweights = [1, 1.5, 0, 0.05]\nhardest = 10': RankingRecipe((1, 1.5, 0, 0.05), hardest=10),
        'kind = "hardest-negative"': HardestNegativeRecipe(),
        'kind = "infonce"\ntemperature = 0.1': InfoNCERecipe(0.1),
        'kind = "logistic"': LogisticRecipe(),
    }.items():
        assert msgspec.toml.decode(text, type=LossRecipe) == wanted
    with pytest.raises(msgspec.ValidationError, match="margin"):
        msgspec.toml.decode('kind = "ranking"\nmargin = 0', type=LossRecipe)
