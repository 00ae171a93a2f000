"""What the trainings of the proposer and of the detector share: recipe, schedule, and batches of pictures."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deixis.training.schedule import Clip, Cosine, ParameterGroup, Schedule
from deixis.training.task import Batches
from deixis.training.tools.tool_runs import ToolRecipe


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
