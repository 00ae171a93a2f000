"""Runs of the small tools: a run folder beside the file that is exported, so that an interrupted training continues.

The proposer and the detector also share their recipe, schedule and batches of pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from deixis.corpus import Corpus, Image
from deixis.corpus.leak_guard import TrainingSet
from deixis.training.recipe import Recipe
from deixis.training.recipe_files import to_toml
from deixis.training.run_records import TrainingReport, make_run_plan
from deixis.training.runs import RunFolder, read_weights
from deixis.training.schedule import Clip, Cosine, ParameterGroup, Schedule
from deixis.training.task import Batches, Task
from deixis.training.trainer import Progress, train

#: Every 25th training image is held out to validate on.
HELD_OUT = 25


class ToolRecipe(Recipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a tool. Its corpus is given on the command line, and it needs no features."""

    corpus: str = "any"
    features: None = None  # type: ignore[assignment]


class Tool(Protocol):
    def save(self, path: str | Path) -> None: ...


class ToolTask(Task[Any], Protocol):
    """A task that trains a tool."""

    def export(self) -> Tool:
        """The tool with the weights as they are now."""
        ...


def hold_out(training: TrainingSet) -> tuple[TrainingSet, tuple[Image, ...]]:
    """The images to learn from, and those to validate on."""
    images = training.corpus.images
    learned = training.corpus.with_images(image for index, image in enumerate(images) if index % HELD_OUT)
    return TrainingSet(learned, training.excluded), images[::HELD_OUT]


def train_tool(
    task: Task[Any],
    recipe: ToolRecipe,
    corpus: Corpus,
    folder: str | Path,
    device: torch.device,
    *,
    progress: Callable[[Progress], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> TrainingReport:
    """Train a task into a run folder, or continue it there. Afterwards its module has the weights of the best epoch."""
    plan = make_run_plan(recipe, corpus, ())
    with RunFolder(folder, plan, to_toml(plan.recipe)) as run:
        report = train(task, recipe.schedule, run, seed=recipe.seed, device=device, progress=progress, say=say)
    task.module.load_state_dict(read_weights(folder))
    return report


class BoxRecipe(ToolRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A network on a backbone that learns from boxes; `zoom` is that of `random_views`."""

    backbone: str = "efficientnet-lite2"
    side: int = 384
    batch_size: int
    zoom: float

    @property
    def learns_from_boxes(self) -> bool:
        return True


def box_schedule(epochs: int, *, warm_up: float, final: float, figure: str, validate_every: int = 1) -> Schedule:
    return Schedule(
        epochs=epochs,
        learning_rate=1e-3,
        optimizer="adamw",
        weight_decay=0.02,
        groups=(ParameterGroup("backbone", rate=0.3),),
        decay=Cosine(warm_up=min(warm_up, 0.1 * epochs), final=final),
        clip=Clip("norm", 5.0),
        precision="mixed",
        averaging=0.998,
        validate_every=validate_every,
        figure=figure,
    )


class PictureRows(NamedTuple):
    """A batch: rows of the training pictures."""

    rows: Tensor
    #: Seed of the augmentation, and of whatever else is drawn.
    seed: int


def picture_batches(pictures: int, recipe: BoxRecipe, epoch: int) -> Batches[PictureRows]:
    """Full batches only; the pictures left out differ from epoch to epoch."""
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + epoch)
    order = torch.randperm(pictures, generator=generator)
    size = min(recipe.batch_size, pictures)
    count = pictures // size
    seeds = torch.randint(2**62, (count,), generator=generator).tolist()
    return Batches(count, map(PictureRows, order[: count * size].reshape(count, size), seeds))
