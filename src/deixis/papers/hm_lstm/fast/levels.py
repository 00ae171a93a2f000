"""Eqs. 2–8 for all nodes of one height at a time, with the gradient written out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from deixis.papers.hm_lstm.fast.forest import Forest, Level, Plan
from deixis.text.trees import Tree


@cache
def fused_levels(device: torch.device) -> Any:
    """The same in fewer, larger kernels, where a GPU has what they need (Triton and a C compiler); else None."""
    if device.type != "cuda" or torch.version.hip is not None:
        return None
    with torch.cuda.device(device):
        try:
            from deixis.papers.hm_lstm.fast.level_kernel import FusedLevels

            # A word alone, forward and backward: what cannot be compiled here is known before anything is learned.
            forest = Forest()
            forest.add(Tree("NP", (Tree("NN", token=0),)), [1])
            plan = forest.plan(np.zeros(1, np.int64)).to(device)
            sizes = ((1, 4), (4,), (2, 1, 4))
            given = [torch.ones(size, device=device, requires_grad=True) for size in sizes]
            with torch.enable_grad():
                FusedLevels.apply(*given, plan).sum().backward()  # type: ignore[no-untyped-call]
        except Exception as fault:  # whatever keeps a compiler from its work
            warnings.warn(f"tree LSTMs run slower than they could: {str(fault).splitlines()[0]}", stacklevel=2)
            return None
    return FusedLevels


class Levels(torch.autograd.Function):
    """Eqs. 2–8 from W x (by word), b and U to hidden states.

    U h of a child is one product for all gates: sums over children commute with it, so eqs. 5–7 add up what eqs. 3–4
    need by child anyway, and each row is multiplied once, by the matrix of its own kind.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, bias: Tensor, recurrent: Tensor, plan: Plan) -> Tensor:
        size = recurrent.shape[1]
        hidden, cell, squashed = (bias.new_empty(plan.rows, size) for _ in range(3))
        gates, products = (bias.new_empty(plan.rows, 4 * size) for _ in range(2))
        forget = bias.new_empty(len(plan.child), size)
        for level in plan.levels:
            rows, edges = slice(level.start, level.end), slice(level.first_edge, level.last_edge)
            level_gates = gates[rows].copy_(bias)
            if level.last_word > level.first_word:
                words = slice(level.first_word, level.last_word)
                gates.index_add_(0, plan.word_row[words], inputs[words])
            level_cell = cell[rows].zero_()
            if level.last_edge > level.first_edge:
                child, parent = plan.child[edges], plan.parent[edges]
                below = products[child]
                gates[:, : 3 * size].index_add_(0, parent, below[:, : 3 * size])  # Û ĥ + Ū h̄, eq. 2
                torch.sigmoid(gates[:, 3 * size :][parent] + below[:, 3 * size :], out=forget[edges])  # eqs. 3, 4
                cell.index_add_(0, parent, forget[edges] * cell[child])
            level_gates[:, : 2 * size].sigmoid_()  # eqs. 5, 6
            level_gates[:, 2 * size : 3 * size].tanh_()  # eq. 7
            entry, out, update = (
                level_gates[:, :size],
                level_gates[:, size : 2 * size],
                level_gates[:, 2 * size : 3 * size],
            )
            level_cell.addcmul_(entry, update)  # eq. 7, the cell
            torch.tanh(level_cell, out=squashed[rows])
            torch.mul(out, squashed[rows], out=hidden[rows])  # eq. 8
            for kind, part in kinds_of(level, recurrent):
                torch.mm(hidden[part], recurrent[kind], out=products[part])
        ctx.plan = plan
        ctx.save_for_backward(recurrent, gates, cell, squashed, forget, hidden)
        return hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        recurrent, gates, cell, squashed, forget, hidden = ctx.saved_tensors
        plan, size = ctx.plan, recurrent.shape[1]
        d_hidden, d_cell = grad.clone(), torch.zeros_like(cell)
        d_gates, d_products = torch.zeros_like(gates), torch.zeros_like(gates)
        for level in reversed(plan.levels):
            rows, edges = slice(level.start, level.end), slice(level.first_edge, level.last_edge)
            for kind, part in kinds_of(level, recurrent):
                d_hidden[part].addmm_(d_products[part], recurrent[kind].T)
            entry, out, update = torch.split(gates[rows, : 3 * size], size, 1)
            d_entry, d_out, d_update = torch.split(d_gates[rows, : 3 * size], size, 1)
            d_level_cell, above, tanh = d_cell[rows], d_hidden[rows], squashed[rows]
            d_level_cell.addcmul_(above * out, 1 - tanh * tanh)
            torch.mul(d_level_cell * update, entry * (1 - entry), out=d_entry)
            torch.mul(above * tanh, out * (1 - out), out=d_out)
            torch.mul(d_level_cell * entry, 1 - update * update, out=d_update)
            if level.last_edge > level.first_edge:
                child, parent, open_ = plan.child[edges], plan.parent[edges], forget[edges]
                from_parent = d_cell[parent]
                d_open = from_parent * cell[child] * (open_ * (1 - open_))
                d_gates[:, 3 * size :].index_add_(0, parent, d_open)
                passed = torch.cat([d_gates[:, : 3 * size][parent], d_open], 1)
                d_products.index_add_(0, child, passed)
                d_cell.index_add_(0, child, from_parent * open_)
        return d_gates[plan.word_row], d_gates.sum(0), recurrent_gradient(plan, recurrent, hidden, d_products), None


def recurrent_gradient(plan: Plan, recurrent: Tensor, hidden: Tensor, d_products: Tensor) -> Tensor:
    kinds = [plan.nouns, plan.others] if len(recurrent) == 2 else [slice(None)]
    return torch.stack([hidden[chosen].T @ d_products[chosen] for chosen in kinds])


def kinds_of(level: Level, recurrent: Tensor) -> Iterator[tuple[int, slice]]:
    """The rows of a level by the matrix that they are multiplied with as somebody's children."""
    if len(recurrent) == 1:
        yield 0, slice(level.start, level.end)
        return
    if level.nouns_end > level.start:
        yield 0, slice(level.start, level.nouns_end)
    if level.end > level.nouns_end:
        yield 1, slice(level.nouns_end, level.end)
