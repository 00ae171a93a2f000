"""The H-LSTM over the levels of a whole batch, against the levels of each tree, and node by node.

    deixis text trees CORPUS --out trees.jsonl
    python benchmarks/tree_lstm.py trees.jsonl [--device cuda] [--out results/benchmarks/tree_lstm.json]

Forward and backward, 300-d words, 512-d states, on texts of at least eight tokens. Nodes are counted in the trees as
given, although whole batches share equal subtrees. All three must give the same roots and gradients. Tree by tree and
node by node run on the first trees of a batch only; this does not affect nodes per second. "products" are the matrix
products of a batch alone; "plan" is preparing a batch, which is part of its time. The lower bound is the operations or
bytes of a batch at rates measured in the same run.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import roofline
import torch
from reporting import write_report
from torch import Tensor

from deixis.papers.hm_lstm.fast.forest import Forest, Plan
from deixis.papers.hm_lstm.fast.levels import fused_levels
from deixis.papers.hm_lstm.tree_lstm import TreeLSTM
from deixis.text.trees import Tree, read_trees

WORD, HIDDEN, LEAST_TOKENS = 300, 512, 8
#: Trees that are taken tree by tree and node by node.
FEW = 16
Batch = Sequence[tuple[Tree, list[int]]]


def node_by_node(lstm: TreeLSTM, vectors: Tensor, batch: Batch) -> Tensor:
    """Eqs. 2–8, a node at a time, all gates of a child in one product."""

    def visit(node: Tree, words: list[int]) -> tuple[Tensor, Tensor]:
        gates = lstm.bias + (vectors[words[node.token]] @ lstm.weight if node.is_leaf else 0)
        kept: Any = 0
        total = gates[: 3 * HIDDEN]
        for child in node.children:
            hidden, cell = visit(child, words)
            noun = child.label == "NP" and not child.is_leaf
            product = hidden @ lstm.recurrent[0 if noun else 1]
            total = total + product[: 3 * HIDDEN]
            kept = kept + torch.sigmoid(gates[3 * HIDDEN :] + product[3 * HIDDEN :]) * cell
        entry, out = torch.split(torch.sigmoid(total[: 2 * HIDDEN]), HIDDEN)
        cell = entry * torch.tanh(total[2 * HIDDEN :]) + kept
        return out * torch.tanh(cell), cell

    return torch.stack([visit(tree, words)[0] for tree, words in batch])


def bare_products(plan: Plan, lstm: TreeLSTM) -> None:
    """As many rows through as many matrices, level by level: three products a level, as forward and backward take."""
    hidden = lstm.bias.new_ones(plan.rows, HIDDEN)
    gates = lstm.bias.new_ones(plan.rows, 4 * HIDDEN)
    words = lstm.bias.new_ones(len(plan.word), WORD)
    with torch.no_grad():
        _ = words @ lstm.weight, words.T @ gates[: len(words)]
        for level in plan.levels:
            for kind, (start, end) in enumerate([(level.start, level.nouns_end), (level.nouns_end, level.end)]):
                if end > start:
                    _ = hidden[start:end] @ lstm.recurrent[kind], gates[start:end] @ lstm.recurrent[kind].T
        _ = hidden.T @ gates


def floor(plan: Plan, ceiling: roofline.Roofline) -> dict[str, Any]:
    """What a batch takes at least, forward and back, in float32.

    A word goes through all gates, and a node through its parent's; back, each product becomes two. A node's state and
    memory are written and read again forward, read back, and their gradients written and read.
    """
    below = sum(level.end - level.start for level in plan.levels)
    operations = 3 * 2 * 4 * HIDDEN * (len(plan.word) * WORD + below * HIDDEN)
    weights = 4 * HIDDEN * (WORD + 2 * HIDDEN)
    moved = 4 * (3 * weights + 10 * plan.rows * HIDDEN + 2 * len(plan.word) * WORD)
    return ceiling.floor(operations, moved, "float32")


def measure(
    batch: Batch, forest: Forest, lstm: TreeLSTM, vectors: Tensor, repeats: int, ceiling: roofline.Roofline
) -> dict[str, Any]:
    device = vectors.device
    numbers, few = np.arange(len(batch)), np.arange(min(FEW, len(batch)))

    def by_levels(chosen: np.ndarray) -> Tensor:
        plan = forest.plan(chosen).to(device)
        hidden: Tensor = lstm(vectors[plan.word], plan)
        return hidden[plan.root]

    slow: dict[str, Callable[[], Tensor]] = {
        "tree_by_tree": lambda: torch.cat([by_levels(few[each : each + 1]) for each in few]),
        "node_by_node": lambda: node_by_node(lstm, vectors, batch[: len(few)]),
    }

    def step(way: Callable[[], Tensor]) -> Tensor:
        roots = way()
        roots.sum().backward()  # type: ignore[no-untyped-call]
        return roots

    values = {}
    for name, way in {"batch": lambda: by_levels(few), **slow}.items():
        lstm.zero_grad()
        roots = step(way)
        assert lstm.recurrent.grad is not None
        values[name] = (roots.detach(), lstm.recurrent.grad.clone())
        for mine, theirs in zip(values[name], values["batch"], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max()))
    nodes, nodes_of_few = (sum(1 for tree, _ in part for _ in tree.subtrees()) for part in (batch, batch[: len(few)]))
    plan = forest.plan(numbers)
    seconds = roofline.seconds(lambda: step(lambda: by_levels(numbers)), device, repeats)
    rates = {name: nodes_of_few / roofline.seconds(partial(step, way), device, 3) for name, way in slow.items()}
    products = roofline.seconds(lambda: bare_products(plan, lstm), device, repeats)
    least = floor(plan, ceiling)
    planning = roofline.seconds(lambda: forest.plan(numbers), device, repeats)
    return {
        "nodes": nodes,
        "different_nodes": plan.rows,
        "levels": len(plan.levels),
        "batch_nodes_per_second": round(nodes / seconds),
        **{f"{name}_nodes_per_second": round(rate) for name, rate in rates.items()},
        **{f"times_{name}": round(nodes / seconds / rate, 1) for name, rate in rates.items()},
        "milliseconds": round(1000 * seconds, 2),
        **least,
        "share_of_floor": round(least["floor_s"] / seconds, 4),
        "share_of_products": round(products / seconds, 3),
        "share_of_plan": round(planning / seconds, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out")
    options = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device(options.device)
    torch.set_float32_matmul_precision("highest")
    ids: dict[str, int] = {}
    batch = [
        (tree, [ids.setdefault(token.lower(), len(ids) + 1) for token in tokens])
        for tokens, tree in read_trees(options.trees)
        if len(tokens) >= LEAST_TOKENS
    ][: max(options.batches)]
    lstm = TreeLSTM(WORD, HIDDEN).to(device)
    vectors = torch.randn(len(ids) + 1, WORD, device=device)
    ceiling = roofline.measure(device, "float32")
    found = {}
    for size in options.batches:
        if size > len(batch):
            parser.error(f"{options.trees} has only {len(batch)} texts of {LEAST_TOKENS} tokens and more")
        forest = Forest()
        for tree, words in batch[:size]:
            forest.add(tree, words)
        found[f"batch_{size}"] = measure(batch[:size], forest, lstm, vectors, options.repeats, ceiling)
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    report = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": machine,
        **ceiling.record(),
        "kernels": fused_levels(device) is not None,
        **found,
    }
    write_report(report, options.out)


if __name__ == "__main__":
    main()
