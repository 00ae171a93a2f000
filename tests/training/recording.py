"""Captured steps without a GPU, and what is asked of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from deixis.training import graph_capture as graphs
from deixis.training.graph_capture import WARM_UP
from deixis.training.run_records import StepRecord
from deixis.training.task import Loss

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


class Replaying:
    """Stands for a captured step where there is no GPU: its own batch, into which others are copied."""

    def __init__(self, step: graphs.TakeStep, batch: Any, pool: Any) -> None:
        self._step, self._batch, self.pool = step, batch, pool

    def step(self, batch: Any, factor: float | Tensor) -> tuple[Loss, Tensor]:
        for places, values in zip(graphs._by_dtype(self._batch), graphs._by_dtype(batch), strict=True):
            torch._foreach_copy_(places, values)
        return tree_map_only(Tensor, torch.clone, self._step(self._batch, factor))


#: Of parts that are counts: by how much rounding at the margin may change them.
COUNTS = {"triplets": 5, "right": 0.06}


def same_steps(steps: list[StepRecord], right: list[StepRecord], early: float, late: float) -> None:
    """Rounding adds up from epoch to epoch; another draw of dropout would show at once."""
    assert len(steps) == len(right) > 5 * (WARM_UP + 2)
    for one, other in zip(steps, right, strict=True):
        tolerance = early if one.epoch < 3 else late
        assert (one.epoch, one.step, one.learning_rate) == (other.epoch, other.step, other.learning_rate)
        assert one.loss == pytest.approx(other.loss, rel=tolerance)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=10 * tolerance)
        assert one.parts.keys() == other.parts.keys()
        for name, value in one.parts.items():
            slack = {"abs": COUNTS[name]} if name in COUNTS else {"rel": 10 * tolerance}
            assert value == pytest.approx(other.parts[name], **slack), name
