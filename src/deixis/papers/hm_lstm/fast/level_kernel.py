"""The H-LSTM's levels with one kernel (Triton) between two matrix products, on a GPU.

`deixis.papers.hm_lstm.fast.levels` takes some fifteen small operations a level, whose launches cost a GPU more than
their work.
Here a row looks up its children, and in the backward pass its parents, so nothing is added up by several at once: the
same numbers in every run. Names are those of `deixis.papers.hm_lstm.fast.levels`.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator, no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from deixis.papers.hm_lstm.fast.forest import Plan
from deixis.papers.hm_lstm.fast.levels import kinds_of, recurrent_gradient

#: Columns of a state that one program works on.
BLOCK = 128


class FusedLevels(torch.autograd.Function):
    """As `deixis.papers.hm_lstm.fast.levels.Levels`."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, bias: Tensor, recurrent: Tensor, plan: Plan) -> Tensor:
        size = recurrent.shape[1]
        inputs = inputs.contiguous()
        hidden, cell = (bias.new_empty(plan.rows, size) for _ in range(2))
        gates, products = (bias.new_empty(plan.rows, 4 * size) for _ in range(2))
        forget = bias.new_empty(len(plan.child), size)
        parts = triton.cdiv(size, BLOCK)
        looked_up = plan.word_of, plan.down_start, plan.child
        with torch.cuda.device_of(bias):  # type: ignore[no-untyped-call]
            for level in plan.levels:
                _forward[(level.end - level.start, parts)](
                    inputs, bias, products, *looked_up, gates, forget, cell, hidden, level.start, SIZE=size, BLOCK=BLOCK
                )
                for kind, part in kinds_of(level, recurrent):
                    torch.mm(hidden[part], recurrent[kind], out=products[part])
        ctx.plan = plan
        ctx.save_for_backward(recurrent, gates, cell, forget, hidden)
        return hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        recurrent, gates, cell, forget, hidden = ctx.saved_tensors
        plan, size = ctx.plan, recurrent.shape[1]
        d_hidden, d_cell, d_open = grad.clone(), torch.empty_like(cell), torch.empty_like(forget)
        d_gates, d_products = torch.empty_like(gates), torch.empty_like(gates)
        parts = triton.cdiv(size, BLOCK)
        for level in reversed(plan.levels):
            grid = (level.end - level.start, parts)
            above = plan.up_start, plan.upward, plan.parent, forget, d_gates, d_open
            _from_parents[grid](*above, d_cell, d_products, level.start, SIZE=size, BLOCK=BLOCK)
            for kind, part in kinds_of(level, recurrent):
                d_hidden[part].addmm_(d_products[part], recurrent[kind].T)
            below = plan.down_start, plan.child, gates, forget, cell
            _backward[grid](*below, d_hidden, d_cell, d_open, d_gates, level.start, SIZE=size, BLOCK=BLOCK)
        return d_gates[plan.word_row], d_gates.sum(0), recurrent_gradient(plan, recurrent, hidden, d_products), None


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit(do_not_specialize=["start"])
def _forward(
    inputs,
    bias,
    products,
    word_of,
    down_start,
    child,
    gates,
    forget,
    cell,
    hidden,
    start,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Eqs. 2–8 of one row."""
    row = (start + tl.program_id(0)).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < SIZE
    entry = tl.load(bias + column, mask=inside, other=0)
    out = tl.load(bias + SIZE + column, mask=inside, other=0)
    update = tl.load(bias + 2 * SIZE + column, mask=inside, other=0)
    forget_input = tl.load(bias + 3 * SIZE + column, mask=inside, other=0)
    word = tl.load(word_of + row)
    if word >= 0:
        word_input = inputs + word * 4 * SIZE + column
        entry += tl.load(word_input, mask=inside, other=0)
        out += tl.load(word_input + SIZE, mask=inside, other=0)
        update += tl.load(word_input + 2 * SIZE, mask=inside, other=0)
        forget_input += tl.load(word_input + 3 * SIZE, mask=inside, other=0)
    new_cell = entry * 0
    for edge in range(tl.load(down_start + row), tl.load(down_start + row + 1)):
        below = tl.load(child + edge)
        product = products + below * 4 * SIZE + column
        entry += tl.load(product, mask=inside, other=0)
        out += tl.load(product + SIZE, mask=inside, other=0)
        update += tl.load(product + 2 * SIZE, mask=inside, other=0)
        open_ = tl.sigmoid(forget_input + tl.load(product + 3 * SIZE, mask=inside, other=0))
        tl.store(forget + edge * SIZE + column, open_, mask=inside)
        new_cell += open_ * tl.load(cell + below * SIZE + column, mask=inside, other=0)
    entry, out, update = tl.sigmoid(entry), tl.sigmoid(out), _tanh(update)
    new_cell += entry * update
    target = gates + row * 4 * SIZE + column
    tl.store(target, entry, mask=inside)
    tl.store(target + SIZE, out, mask=inside)
    tl.store(target + 2 * SIZE, update, mask=inside)
    tl.store(cell + row * SIZE + column, new_cell, mask=inside)
    tl.store(hidden + row * SIZE + column, out * _tanh(new_cell), mask=inside)


@triton.jit(do_not_specialize=["start"])
def _from_parents(
    up_start,
    upward,
    parent,
    forget,
    d_gates,
    d_open,
    d_cell,
    d_products,
    start,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What the parents of one row ask of its products and of its cell."""
    row = (start + tl.program_id(0)).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < SIZE
    entry = tl.zeros((BLOCK,), d_cell.dtype.element_ty)
    out, update, open_, from_cell = entry, entry, entry, entry
    for index in range(tl.load(up_start + row), tl.load(up_start + row + 1)):
        edge = tl.load(upward + index)
        above = tl.load(parent + edge)
        asked = d_gates + above * 4 * SIZE + column
        entry += tl.load(asked, mask=inside, other=0)
        out += tl.load(asked + SIZE, mask=inside, other=0)
        update += tl.load(asked + 2 * SIZE, mask=inside, other=0)
        open_ += tl.load(d_open + edge * SIZE + column, mask=inside, other=0)
        share = tl.load(forget + edge * SIZE + column, mask=inside, other=0)
        from_cell += share * tl.load(d_cell + above * SIZE + column, mask=inside, other=0)
    target = d_products + row * 4 * SIZE + column
    tl.store(target, entry, mask=inside)
    tl.store(target + SIZE, out, mask=inside)
    tl.store(target + 2 * SIZE, update, mask=inside)
    tl.store(target + 3 * SIZE, open_, mask=inside)
    tl.store(d_cell + row * SIZE + column, from_cell, mask=inside)


@triton.jit(do_not_specialize=["start"])
def _backward(
    down_start,
    child,
    gates,
    forget,
    cell,
    d_hidden,
    d_cell,
    d_open,
    d_gates,
    start,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """From the gradient of one row's state and cell to those of its gates, and of its children's forget gates."""
    row = (start + tl.program_id(0)).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < SIZE
    offset = row * 4 * SIZE + column
    entry = tl.load(gates + offset, mask=inside, other=0)
    out = tl.load(gates + offset + SIZE, mask=inside, other=0)
    update = tl.load(gates + offset + 2 * SIZE, mask=inside, other=0)
    squashed = _tanh(tl.load(cell + row * SIZE + column, mask=inside, other=0))
    above = tl.load(d_hidden + row * SIZE + column, mask=inside, other=0)
    d_this_cell = tl.load(d_cell + row * SIZE + column, mask=inside, other=0)
    d_this_cell += above * out * (1 - squashed * squashed)
    tl.store(d_cell + row * SIZE + column, d_this_cell, mask=inside)
    total = d_this_cell * 0
    for edge in range(tl.load(down_start + row), tl.load(down_start + row + 1)):
        open_ = tl.load(forget + edge * SIZE + column, mask=inside, other=0)
        below = tl.load(cell + tl.load(child + edge) * SIZE + column, mask=inside, other=0)
        asked = d_this_cell * below * (open_ * (1 - open_))
        tl.store(d_open + edge * SIZE + column, asked, mask=inside)
        total += asked
    tl.store(d_gates + offset, d_this_cell * update * (entry * (1 - entry)), mask=inside)
    tl.store(d_gates + offset + SIZE, above * squashed * (out * (1 - out)), mask=inside)
    tl.store(d_gates + offset + 2 * SIZE, d_this_cell * entry * (1 - update * update), mask=inside)
    tl.store(d_gates + offset + 3 * SIZE, total, mask=inside)
