"""The levels by kernels are the H-LSTM node by node too: on a GPU, or with `TRITON_INTERPRET=1`."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="the kernels need Triton")
if os.environ.get("TRITON_INTERPRET") != "1" and not torch.cuda.is_available():
    pytest.skip("the kernels need a GPU, or TRITON_INTERPRET=1", allow_module_level=True)

from deixis.papers.hm_lstm import kernel as tree_lstm_kernel
from deixis.papers.hm_lstm import tree_lstm
from deixis.papers.hm_lstm.fast.forest import Forest, Shape
from deixis.papers.hm_lstm.tree_lstm import TreeLSTM
from deixis.text.trees import Tree
from tests.papers.hm_lstm import test_tree_lstm as oracle

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

RUNS = Tree("VP", (Tree("VB", token=2), Tree("NP", (Tree("DT", token=3), Tree("NN", token=4)))))
SENTENCE = Tree("S", (Tree("NP", (Tree("DT", token=0), Tree("NN", token=1))), RUNS))
SHARED = [(SENTENCE, [1, 2, 3, 1, 2]), (SENTENCE, [1, 2, 3, 1, 4]), (Tree("NP", SENTENCE.children), [2, 2, 3, 1, 2])]


@pytest.mark.parametrize("shape", oracle.SHAPES)
@pytest.mark.parametrize("block", [4, 8])
def test_they_are_the_equations_gradients_too(shape: Shape, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, where a row has several parents, one or none, and blocks as wide as a state or wider."""
    if not INTERPRETED:
        pytest.skip("runs on the CPU, with TRITON_INTERPRET=1")
    monkeypatch.setattr(tree_lstm, "fused_levels", lambda device: tree_lstm_kernel.FusedLevels)
    monkeypatch.setattr(tree_lstm_kernel, "BLOCK", block)
    oracle.compare(shape, SHARED)
    oracle.test_odd_trees(shape)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("shape", oracle.SHAPES)
def test_a_gpu_agrees_with_the_cpu(shape: Shape) -> None:
    torch.manual_seed(0)
    lstm, forest = TreeLSTM(300, 512, shape), Forest(shape)
    numbers = np.array([forest.add(tree, words) for tree, words in SHARED])
    plan = forest.plan(numbers)
    words, signs = torch.randn(len(plan.word), 300), torch.randn(plan.rows, 512)
    found: list[list[torch.Tensor]] = []
    for device in ("cpu", "cuda"):
        lstm.to(device).zero_grad()
        assert device == "cpu" or tree_lstm.fused_levels(torch.device("cuda", torch.cuda.current_device()))
        states = lstm(words.to(device), plan.to(device))
        (states * signs.to(device)).sum().backward()
        found.append([states, *(value.grad.clone() for value in lstm.parameters() if value.grad is not None)])
    for mine, theirs in zip(found[0], found[1], strict=True):
        torch.testing.assert_close(mine.cpu(), theirs.cpu(), rtol=1e-3, atol=1e-3)
