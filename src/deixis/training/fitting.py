"""Runs of models that are fitted in one go, without gradients: the same folder and files, no epochs."""

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
    """Something that is fitted in closed form (`deixis.papers.entities_cca.task`), where a `Task` is trained."""

    def weights(self) -> Mapping[str, Tensor]:
        """The weights for `model.safetensors`, once fitted."""
        ...

    def parameters(self) -> int:
        """The number of fitted parameters."""
        ...

    def fit(self, say: Callable[[str], None]) -> Mapping[str, float]:
        """Fit, report each try with `say`, and return the figures on the validation split."""
        ...

    def save(self, folder: Path) -> None:
        """Write the model into the run folder."""
        ...


def fit(task: Fits, run: RunFolder, *, device: torch.device, say: Callable[[str], None]) -> TrainingReport:
    """Fit into a run folder. A finished run is left as it is; one that was killed starts again."""
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
