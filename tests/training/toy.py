"""A toy task for the trainer: a small network with dropout and batch normalization on made-up data.

Run as a program it trains the task in processes that are killed: `python -m tests.training.toy JOBS`, each job a run
folder, changes of the schedule, and moments, counted in steps, syncs and renames. Each process goes on where the one
before it was killed. It prints how many of each job were killed, as JSON.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from deixis.features.feature_recipe import FeatureRecipe
from deixis.training import runs
from deixis.training.kind import Kind
from deixis.training.recipe import Recipe
from deixis.training.run_records import RunPlan, TrainingReport
from deixis.training.runs import RunFolder
from deixis.training.schedule import Schedule
from deixis.training.task import Batches, Loss
from deixis.training.trainer import train

CPU = torch.device("cpu")


class ToyRecipe(Recipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    width: int = 8


class ToyTask:
    """Learns y = sin(x · w). `figures` gives the validation figure of each epoch instead of the measured error.

    Its validation is also asked for once before the first epoch, where the schedule names a figure.
    """

    def __init__(self, seed: int = 0, width: int = 8, batches: int = 5, figures: Sequence[float] = ()) -> None:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            self.module: nn.Module = nn.Sequential(
                nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 1)
            )
        self.seed, self.count, self.figures = seed, batches, list(figures)
        self.inputs = torch.randn(16 * batches, 4, generator=torch.Generator().manual_seed(seed))
        self.targets = torch.sin(self.inputs.sum(1, keepdim=True))
        self.validations = 0
        #: Called with each batch before its loss.
        self.before_loss: Callable[[Tensor], None] = lambda rows: None

    def batches(self, epoch: int) -> Batches[Tensor]:
        order = torch.randperm(len(self.inputs), generator=torch.Generator().manual_seed(1000 * self.seed + epoch))
        return Batches(self.count, order.split(16))

    def loss(self, rows: Tensor) -> Loss:
        self.before_loss(rows)
        error = (self.module(self.inputs[rows]) - self.targets[rows]).square().mean()
        return Loss(error, {"error": error, "rows": float(len(rows))})

    def validate(self) -> Mapping[str, float]:
        self.validations += 1
        assert not self.module.training
        error = float((self.module(self.inputs) - self.targets).square().mean())
        return {"error": error, "score": self.figures[max(0, self.validations - 2)] if self.figures else -error}

    def describe(self, rows: Tensor) -> str:
        return f"rows {rows.tolist()}"


def schedule(**changes: Any) -> Schedule:
    return msgspec.convert({"epochs": 3, "learning_rate": 0.05, "figure": "score", **changes}, Schedule)


def plan(**changes: Any) -> RunPlan:
    recipe = {"name": "toy", "kind": "toy", "about": "", "seed": 0, "rows": [], "readings": []}
    return RunPlan(recipe={**recipe, "schedule": msgspec.to_builtins(schedule(**changes))})


def toy_run(folder: Path, task: ToyTask | None = None, **changes: Any) -> TrainingReport:
    """Train the toy task with this schedule, with a checkpoint every second step."""
    with RunFolder(folder, plan(**changes), "# toy\n") as run:
        return train(task or ToyTask(), schedule(**changes), run, seed=7, device=CPU, checkpoint_steps=2)


class ToyKind(Kind[ToyRecipe]):
    recipe_type = ToyRecipe

    def features(self, recipe: ToyRecipe, run: Path | None = None) -> list[FeatureRecipe]:
        return []

    def task(self, recipe: ToyRecipe, corpus: Any, stores: Any, device: torch.device, ranks: Any = None) -> ToyTask:
        return ToyTask(recipe.seed, recipe.width)

    def load_model(self, folder: Path, recipe: ToyRecipe, device: torch.device) -> None:
        raise NotImplementedError

    def protocols(self, evaluation: Any) -> list[Any]:
        return []


def _killed(out: Path, changes: dict[str, Any], moment: int) -> bool:
    """Train in a process of its own that kills itself at a moment; whether it came to that."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or status == 0, status
        return os.WIFSIGNALED(status)
    left = moment

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    rename = os.replace
    os.replace = lambda *names: (count(), rename(*names))  # type: ignore[assignment,return-value]
    torch.set_num_threads(1)
    # What was written outlives a killed process without being synced.
    os.fsync = count  # type: ignore[assignment]
    runs.write_curves = lambda folder: folder  # type: ignore[assignment]
    task = ToyTask()
    task.before_loss = count
    toy_run(out, task, **changes)
    os._exit(0)


if __name__ == "__main__":
    # This process computes nothing itself, so that it can be forked safely; what takes long to import it imports once.
    import_module("torch._dynamo")
    jobs = msgspec.json.decode(sys.argv[1], type=list[tuple[str, dict[str, Any], list[int]]])
    killed = [sum(_killed(Path(out), changes, moment) for moment in moments) for out, changes, moments in jobs]
    sys.stdout.write(msgspec.json.encode(killed).decode())
