from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from deixis.learning import runs


@pytest.fixture
def quick_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs in one thread, without waiting for the disk (a killed process leaves what it wrote) and without curves."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(runs, "write_curves", lambda folder: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def with_curves(quick_runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick runs that draw their curves after all."""
    monkeypatch.setattr(runs, "write_curves", runs_write_curves)


runs_write_curves = runs.write_curves
