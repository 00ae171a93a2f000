from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from deixis.training import graph_capture as graphs
from deixis.training import runs, trainer
from deixis.training.task import Loss
from tests.training.recording import Replaying, needs_gpu

write_curves = runs.write_curves


@pytest.fixture(scope="package", autouse=True)
def _quick_runs() -> Iterator[None]:
    """Runs in one thread, without waiting for the disk (a killed process leaves what it wrote) and without curves."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(runs, "write_curves", lambda folder: None)
        torch.set_num_threads(1)
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def with_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs draw their curves after all."""
    monkeypatch.setattr(runs, "write_curves", write_curves)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where steps are captured; without a GPU they are taken again instead, and padded as they would be there."""
    if request.param == "cpu":
        monkeypatch.setattr(graphs, "_Graph", Replaying)
        monkeypatch.setattr(trainer, "can_capture_graphs", lambda schedule, device: True)
        monkeypatch.setitem(trainer.READ_EVERY, "cpu", trainer.READ_EVERY["cuda"])
    return torch.device(request.param)


@pytest.fixture
def replayed(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each captured step was given, as they are taken."""
    sizes: list[int] = []

    class Counting(graphs._Graph):
        def step(self, batch: Any, factor: float | Tensor) -> tuple[Loss, Tensor]:
            sizes.append(len(graphs._by_dtype(batch)[0][0]))
            return super().step(batch, factor)

    monkeypatch.setattr(graphs, "_Graph", Counting)
    return sizes
