"""Plans of one form promise: the states and gradients of plans that were not padded."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from deixis.papers.hm_lstm.fast.forest import Forest, Shape
from deixis.papers.hm_lstm.fast.plan_padding import PaddedSizes
from deixis.papers.hm_lstm.tree_lstm import TreeLSTM
from deixis.text.trees import Tree

INPUTS, HIDDEN, WORDS = 5, 4, 40
SHAPES: tuple[Shape, ...] = ("h-lstm", "tree-lstm", "chain")


def drawn_tree(random: np.random.Generator, first: int, words: int) -> Tree:
    if words == 1:
        return Tree("NN", token=first)
    cuts = np.sort(random.choice(np.arange(1, words), min(words - 1, int(random.integers(1, 4))), replace=False))
    bounds = [0, *cuts.tolist(), words]
    below = tuple(drawn_tree(random, first + a, b - a) for a, b in pairwise(bounds))
    return Tree("NP" if random.random() < 0.5 else "VP", below)


def drawn_forest(shape: Shape, trees: int = 200) -> Forest:
    random, forest = np.random.default_rng(3), Forest(shape)
    for _ in range(trees):
        words = int(random.integers(1, 13))
        forest.add(drawn_tree(random, 0, words), random.integers(1, WORDS, words).tolist())
    return forest


def batches(count: int, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.choice(200, 16, replace=False) for _ in range(count)]


@pytest.mark.parametrize("shape", SHAPES)
def test_states_and_gradients_are_those_of_the_plan(shape: Shape) -> None:
    torch.manual_seed(0)
    forest, lstm, vectors = drawn_forest(shape), TreeLSTM(INPUTS, HIDDEN, shape).double(), torch.randn(WORDS, INPUTS)
    vectors = vectors.double()
    vectors[0] = 0
    sizes = PaddedSizes(map(forest.plan, batches(20, 0)))
    padded, forms = 0, set()
    for trees in batches(10, 1):
        plan = forest.plan(trees)
        filled = sizes.pad(plan)
        if filled is None:
            continue
        padded += 1
        forms.add((filled.levels, filled.rows, *(tuple(own.shape) for own in filled[2:-2] if isinstance(own, Tensor))))
        assert filled.rows > plan.rows
        assert torch.equal(filled.phrase_tree[: len(plan.phrase)], plan.phrase_tree)
        found = []
        for own in (plan, filled):
            hidden = lstm(vectors[own.word], own)
            hidden = hidden[torch.cat([own.root[: len(plan.root)], own.phrase[: len(plan.phrase)]])]
            weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
            found.append([hidden, *torch.autograd.grad((hidden * weights).sum(), list(lstm.parameters()))])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other)
    assert padded >= 8
    assert len(forms) == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_looking_up_from_above_and_below_is_one(shape: Shape) -> None:
    """What the kernel of a GPU goes by: the edges of a row to its children, and those to its parents."""
    forest = drawn_forest(shape)
    sizes = PaddedSizes(map(forest.plan, batches(20, 0)))
    plan = next(filled for trees in batches(10, 1) if (filled := sizes.pad(forest.plan(trees))) is not None)
    rows = torch.arange(plan.rows)
    assert torch.equal(torch.repeat_interleave(rows, plan.down_start.diff()), plan.parent)
    assert torch.equal(torch.repeat_interleave(rows, plan.up_start.diff()), plan.child[plan.upward])
    assert torch.equal(plan.word_row[plan.word_of[plan.word_row]], plan.word_row)
    assert torch.equal(torch.cat([plan.nouns, plan.others]).sort().values, rows)
    assert (plan.child < plan.parent).all()
    for level in plan.levels:
        own = slice(level.first_edge, level.last_edge)
        assert ((plan.parent[own] >= level.start) & (plan.parent[own] < level.end)).all()
        assert (plan.child[own] < level.start).all()
        nouns = (plan.nouns >= level.start) & (plan.nouns < level.end)
        assert torch.equal(plan.nouns[nouns], torch.arange(level.start, level.nouns_end))


def test_what_is_larger_has_no_room() -> None:
    forest = drawn_forest("h-lstm")
    sizes = PaddedSizes([forest.plan(np.arange(4))])
    assert sizes.pad(forest.plan(np.arange(4))) is not None
    assert sizes.pad(forest.plan(np.arange(200))) is None


def test_sizes_grow_with_what_they_are_given_and_never_shrink() -> None:
    forest = drawn_forest("h-lstm")
    small, large = forest.plan(np.arange(4)), forest.plan(np.arange(200))
    first, sizes = small.padded(None)
    second, larger = large.padded(sizes)
    again, kept = small.padded(larger)
    assert kept is larger is not sizes
    assert first.rows < second.rows == again.rows
    assert again.levels == second.levels
