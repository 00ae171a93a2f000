"""The H-LSTM by levels equals the H-LSTM node by node (`papers/hm_lstm/reference.py`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from deixis.papers.hm_lstm.fast.forest import Forest, Shape
from deixis.papers.hm_lstm.reference import is_noun_phrase, node_states
from deixis.papers.hm_lstm.tree_lstm import TreeLSTM
from deixis.text.trees import Tree

INPUTS, HIDDEN, WORDS = 5, 4, 7
SHAPES: tuple[Shape, ...] = ("h-lstm", "tree-lstm", "chain")


def expected(lstm: TreeLSTM, vectors: Tensor, shape: Shape, tree: Tree, words: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The state of the root, and those of the noun phrases, outer ones first."""
    spans = tree.spans("NP")
    if shape == "chain":
        cells = nn.LSTM(INPUTS, HIDDEN, dtype=torch.float64)
        order = [0, 3, 2, 1]  # ours is i, o, u, f; torch's i, f, u, o

        def arranged(value: Tensor) -> Tensor:
            parts = value.split(HIDDEN, -1)
            return torch.cat([parts[number] for number in order], -1)

        weights = {
            "weight_ih_l0": arranged(lstm.weight).T,
            "weight_hh_l0": arranged(lstm.recurrent[0]).T,
            "bias_ih_l0": arranged(lstm.bias),
            "bias_hh_l0": torch.zeros(4 * HIDDEN, dtype=torch.float64),
        }

        def read(start: int, end: int) -> Tensor:
            ids = list(words[start:end])
            rows = vectors[ids] if ids else torch.zeros(1, INPUTS, dtype=torch.float64)
            return torch.func.functional_call(cells, weights, (rows,))[0][-1]

        return read(0, len(words)), _stack([read(*span) for span in spans])
    states = node_states(lstm, vectors, tree, words)
    outer = {node.span: states[id(node)][0] for node in reversed(list(tree.subtrees())) if is_noun_phrase(node)}
    return states[id(tree)][0], _stack([outer[span] for span in spans])


def _stack(rows: list[Tensor]) -> Tensor:
    return torch.stack(rows) if rows else torch.zeros(0, HIDDEN, dtype=torch.float64)


@st.composite
def trees(draw: st.DrawFn) -> tuple[Tree, list[int]]:
    """A tree of any shape and the ids of its tokens; leaves may stand at any height, nodes have one child or many."""
    words: list[int] = []

    def grow(depth: int) -> Tree:
        if depth == 0 or (depth < 4 and draw(st.booleans())):
            words.append(draw(st.integers(1, WORDS - 1)))
            return Tree("NN", token=len(words) - 1)
        children = tuple(grow(depth - 1) for _ in range(draw(st.integers(1, 3))))
        return Tree(draw(st.sampled_from(("NP", "VP", "S"))), children)

    return grow(4), words


def make(shape: Shape, *, difference: bool = False) -> tuple[TreeLSTM, Tensor]:
    torch.manual_seed(0)
    lstm = TreeLSTM(INPUTS, HIDDEN, shape, difference=difference).double()
    with torch.no_grad():
        lstm.bias += torch.randn_like(lstm.bias)
        if lstm.difference is not None:
            lstm.difference += torch.randn_like(lstm.difference)
    vectors = torch.randn(WORDS, INPUTS, dtype=torch.float64, requires_grad=True)
    return lstm, vectors


def compare(shape: Shape, batch: Sequence[tuple[Tree, Sequence[int]]], *, difference: bool = False) -> None:
    lstm, vectors = make(shape, difference=difference)
    forest = Forest(shape)
    numbers = [forest.add(tree, words) for tree, words in batch]
    plan = forest.plan(np.array(numbers, np.int64))
    found = lstm(vectors[plan.word], plan)
    ours = torch.cat([found[plan.root], found[plan.phrase]])
    states = [expected(lstm, vectors, shape, tree, words) for tree, words in batch]
    theirs = torch.cat([torch.stack([root for root, _ in states]), *(phrases for _, phrases in states)])
    assert plan.phrase_tree.tolist() == [n for n, (_, phrases) in enumerate(states) for _ in phrases]
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)

    signs = torch.randn(ours.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    parameters = [vectors, *lstm.parameters()]
    for mine, other in zip(
        torch.autograd.grad((ours * signs).sum(), parameters, allow_unused=True),
        torch.autograd.grad((theirs * signs).sum(), parameters, allow_unused=True),
        strict=True,
    ):
        zero = torch.zeros(())
        torch.testing.assert_close(
            zero if mine is None else mine, torch.zeros_like(mine) if other is None else other, rtol=1e-8, atol=1e-10
        )


#: Every shape, and the H-LSTM whose Û is Ū plus a difference.
NETWORKS = [*((shape, False) for shape in SHAPES), ("h-lstm", True)]


@pytest.mark.parametrize(("shape", "difference"), NETWORKS)
@settings(max_examples=40)
@given(batch=st.lists(trees(), min_size=1, max_size=4))
def test_levels_are_the_equations_gradients_too(
    shape: Shape, difference: bool, batch: list[tuple[Tree, list[int]]]
) -> None:
    rooted = [(tree if not tree.is_leaf else Tree("S", (tree,)), words) for tree, words in batch]
    compare(shape, rooted, difference=difference)


@pytest.mark.parametrize(("shape", "difference"), NETWORKS)
def test_odd_trees(shape: Shape, difference: bool) -> None:
    """A tree of one word, of none, one of depth 60, and words without an id, side by side."""
    one = Tree("NP", (Tree("NN", token=0),))
    deep = Tree("NN", token=0)
    for number in range(59):
        deep = Tree("NP" if number % 2 else "S", (deep,))
    compare(shape, [(one, [3]), (Tree("S"), []), (deep, [2]), (one, [3])], difference=difference)


def test_equal_phrases_are_worked_out_once() -> None:
    """Two sentences that share "a man": its noun phrase and its words are one row each, and a plan holds no others."""
    man = (Tree("NP", (Tree("DT", token=0), Tree("NN", token=1))), Tree("VB", token=2))
    forest = Forest()
    numbers = [forest.add(Tree("S", man), words) for words in ([1, 2, 3], [1, 2, 4])]
    forest.add(Tree("S", man), [5, 6, 6])
    plan = forest.plan(np.array(numbers))
    assert plan.rows == len(["a", "man", "runs", "sits", "a man", "S", "S"])
    assert forest.nodes == plan.rows + len(["5", "6", "5 6", "S"])
    assert plan.phrase.tolist() == [plan.phrase[0].item()] * 2
    assert [level.end - level.start for level in plan.levels] == [4, 1, 2]
