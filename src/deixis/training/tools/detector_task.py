"""The training of a detector (`deixis.vision.detector`) on the labelled boxes of a corpus, as a task of the trainer.

`deixis proposals train-detector` runs it. Pictures stay on the device as bytes and are augmented there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deixis.corpus import Corpus, Image
from deixis.errors import DeixisError
from deixis.training.augmentation import squashed_pictures
from deixis.training.task import Batches, Loss
from deixis.training.tools.detector_training import detector_loss
from deixis.training.tools.detector_validation import detection_figures
from deixis.training.tools.tool_runs import BoxRecipe, PictureRows, box_schedule, picture_batches
from deixis.vision.detector import RegionDetector
from deixis.vision.efficientnet_lite import load_efficientnet_lite
from deixis.vision.reading import Skipped

#: Boxes per picture that are learned, the largest.
MOST_BOXES = 40


class DetectorRecipe(BoxRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a detector's training."""

    name: str = "detector"
    kind: str = "detector"
    about: str = "Classifies regions of a picture."
    #: Pictures are kept as squares of this many pixels, and enlarged to `side` when they are augmented.
    stored_side: int = 256
    batch_size: int = 128
    zoom: float = 0.5


def detector_recipe(epochs: int = 12, seed: int = 0, **settings: Any) -> DetectorRecipe:
    schedule = box_schedule(epochs, warm_up=0.5, final=0.01, figure="ap50", validate_every=3)
    return DetectorRecipe(seed=seed, schedule=schedule, **settings)


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
    """An untrained head on a backbone with its ImageNet weights, whose early layers keep them, as in Fast R-CNN."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(recipe.seed)
        backbone = load_efficientnet_lite(recipe.backbone)
        backbone.freeze_early_layers()
        return RegionDetector(backbone, recipe.backbone, classes, recipe.side)


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

    def batches(self, epoch: int) -> Batches[PictureRows]:
        return picture_batches(len(self._training), self._recipe, epoch)

    def loss(self, batch: PictureRows) -> Loss:
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

    def describe(self, batch: PictureRows) -> str:
        return "images " + ", ".join(self._training.image_ids[row] for row in batch.rows.tolist())
