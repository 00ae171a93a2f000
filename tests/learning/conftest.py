from __future__ import annotations

import os

import pytest

from deixis.learning import runs


@pytest.fixture
def quick_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without waiting for the disk and without curves: a killed process leaves what it wrote, synced or not."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(runs, "write_curves", lambda folder: None)


@pytest.fixture
def with_curves(quick_runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick runs that draw their curves after all."""
    monkeypatch.setattr(runs, "write_curves", runs_write_curves)


runs_write_curves = runs.write_curves
