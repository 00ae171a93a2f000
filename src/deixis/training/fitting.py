"""Runs of what is worked out in one go, without gradients: the same folder, the same files, no epochs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from deixis.training.run_records import Note, TrainingReport
from deixis.training.runs import RunFolder, read_model


@runtime_checkable
class Fits(Protocol):
    """Something that is fitted (`deixis.papers.entities_cca.task`), as a `Task` is something that is descended."""

    def weights(self) -> Mapping[str, Tensor]:
        """What the run keeps as `model.safetensors`, once fitted."""
        ...

    def parameters(self) -> int:
        """How many numbers were fitted."""
        ...

    def fit(self, say: Callable[[str], None]) -> Mapping[str, float]:
        """Fit, tell of each try, and give the figures on the validation split."""
        ...

    def save(self, folder: Path) -> None:
        """Write the model into the run folder."""
        ...


def fit(task: Fits, run: RunFolder, *, device: torch.device, say: Callable[[str], None]) -> TrainingReport:
    """Fit into a run folder; a finished run is left as it is, one that was killed begins anew."""
    if run.finished:
        return read_model(run.folder).report
    start = time.monotonic()
    run.resume(device)

    def note(text: str) -> None:
        run.log(Note(text))
        say(text)

    figures = dict(task.fit(note))
    task.save(run.folder)
    seconds = time.monotonic() - start
    report = TrainingReport(0, 0, figures, stopped_early=False, seconds=seconds, parameters=task.parameters())
    run.finish(task.weights(), report)
    return report
