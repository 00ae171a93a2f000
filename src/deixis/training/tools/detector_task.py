"""The training of a detector (`deixis.vision.detector`) on the labelled boxes of a corpus, as a task of the trainer.

`deixis proposals train-detector` runs it. Pictures stay on the device as bytes and are augmented there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from deixis.corpus import Corpus, Image
from deixis.errors import DeixisError
from deixis.training.augmentation import squashed_pictures
from deixis.training.schedule import Clip, Cosine, ParameterGroup, Schedule
from deixis.training.task import Batches, Loss
from deixis.training.tools.detector_training import detector_loss
from deixis.training.tools.detector_validation import detection_figures
from deixis.training.tools.tool_runs import ToolRecipe
from deixis.vision.detector import RegionDetector
from deixis.vision.efficientnet_lite import load_efficientnet_lite
from deixis.vision.reading import Skipped

#: Boxes per picture that are learned, the largest.
MOST_BOXES = 40


class DetectorRecipe(ToolRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a detector's training; `zoom` is that of `random_views`."""

    name: str = "detector"
    kind: str = "detector"
    about: str = "Classifies regions of a picture."
    backbone: str = "efficientnet-lite2"
    side: int = 384
    #: Pictures are kept as squares of this many pixels, and enlarged to `side` when they are augmented.
    stored_side: int = 256
    batch_size: int = 128
    zoom: float = 0.5

    @property
    def learns_from_boxes(self) -> bool:
        return True


def detector_recipe(
    epochs: int = 12,
    seed: int = 0,
    *,
    backbone: str = "efficientnet-lite2",
    side: int = 384,
    stored_side: int = 256,
    batch_size: int = 128,
) -> DetectorRecipe:
    schedule = Schedule(
        epochs=epochs,
        learning_rate=1e-3,
        optimizer="adamw",
        weight_decay=0.02,
        groups=(ParameterGroup("backbone", rate=0.3),),
        decay=Cosine(warm_up=min(0.5, 0.1 * epochs), final=0.01),
        clip=Clip("norm", 5.0),
        precision="mixed",
        averaging=0.998,
        figure="ap50",
    )
    return DetectorRecipe(
        seed=seed, schedule=schedule, backbone=backbone, side=side, stored_side=stored_side, batch_size=batch_size
    )


@dataclass(frozen=True)
class LabelledBoxes:
    """Pictures `(n, 3, side, side)` as bytes, boxes `(n, g, 4)` in [0, 1], padded with zeros, and classes `(n, g)`."""

    pictures: Tensor
    boxes: Tensor
    classes: Tensor
    image_ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.pictures)


def class_names(images: Iterable[Image]) -> tuple[str, ...]:
    """The labels of boxes, in alphabetical order: the classes from 0 on."""
    return tuple(sorted({chain.label for image in images for chain in image.chains if chain.boxes and chain.label}))


def labelled_boxes(
    corpus: Corpus, images: Iterable[Image], names: tuple[str, ...], side: int, device: torch.device, skipped: Skipped
) -> LabelledBoxes:
    """The pictures of images that have a box with one of the labels `names`, as squares of `side` pixels."""
    numbers = {name: index for index, name in enumerate(names)}
    labelled = [image for image in images if any(chain.boxes and chain.label in numbers for chain in image.chains)]
    if not labelled:
        raise DeixisError(f"corpus {corpus.name or '(unnamed)'} has no labelled boxes, such as COCO's instances")
    read = squashed_pictures(corpus, labelled, side, skipped)
    if not read.images:
        raise DeixisError(f"none of the {len(labelled)} pictures can be read; {skipped}")
    boxes = torch.zeros(len(read.images), MOST_BOXES, 4)
    classes = torch.zeros(len(read.images), MOST_BOXES, dtype=torch.long)
    for row, (image, size) in enumerate(zip(read.images, read.sizes, strict=True)):
        objects = [
            (box, numbers[chain.label])
            for chain in image.chains
            if chain.label in numbers
            for box in image.chain_boxes(chain.id)
        ]
        objects = sorted(
            objects,
            key=lambda labelled_box: (
                -(labelled_box[0].x2 - labelled_box[0].x1) * (labelled_box[0].y2 - labelled_box[0].y1)
            ),
        )[:MOST_BOXES]
        for column, (box, label) in enumerate(objects):
            boxes[row, column] = torch.tensor([box.x1, box.y1, box.x2, box.y2]) / torch.tensor([*size, *size])
            classes[row, column] = label
    image_ids = tuple(image.id for image in read.images)
    return LabelledBoxes(read.pixels.to(device), boxes.clamp(0, 1).to(device), classes.to(device), image_ids)


def new_detector(recipe: DetectorRecipe, classes: int) -> RegionDetector:
    """An untrained head on a backbone with its ImageNet weights."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(recipe.seed)
        return RegionDetector(load_efficientnet_lite(recipe.backbone), recipe.backbone, classes, recipe.side)


class DetectorBatch(NamedTuple):
    rows: Tensor
    #: Seed of augmentation and regions.
    seed: int


class DetectorTask:
    """The trainer's task (`deixis.training.task.Task`).

    Args:
        model: trained in place, on the device of `training`.
        training: pictures and boxes to learn from.
        validation: pictures and boxes for `detection_figures`.
        recipe: all settings.
    """

    def __init__(
        self, model: RegionDetector, training: LabelledBoxes, validation: LabelledBoxes, recipe: DetectorRecipe
    ) -> None:
        self.module, self._training, self._validation, self._recipe = model, training, validation, recipe

    def batches(self, epoch: int) -> Batches[DetectorBatch]:
        generator = torch.Generator().manual_seed(self._recipe.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self._training), generator=generator)
        size = min(self._recipe.batch_size, len(order))
        # Full batches only; the pictures left out differ from epoch to epoch.
        count = len(order) // size
        seeds = torch.randint(2**62, (count,), generator=generator).tolist()
        return Batches(count, map(DetectorBatch, order[: count * size].reshape(count, size), seeds))

    def loss(self, batch: DetectorBatch) -> Loss:
        data = self._training
        device = data.pictures.device
        generator, rows = torch.Generator(device).manual_seed(batch.seed), batch.rows.to(device)
        self.module.backbone.eval()  # batch norm keeps the statistics of ImageNet
        total, right = detector_loss(
            self.module, data.pictures[rows], data.boxes[rows], data.classes[rows], generator, zoom=self._recipe.zoom
        )
        return Loss(total, {"classes_right": right})

    def validate(self) -> dict[str, float]:
        held = self._validation
        return detection_figures(self.module, held.pictures, held.boxes, held.classes)

    def describe(self, batch: DetectorBatch) -> str:
        return "images " + ", ".join(self._training.image_ids[row] for row in batch.rows.tolist())
