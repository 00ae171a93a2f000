"""Train the learned proposals (`deixis.vision.proposer`) on the boxes of a corpus.

Targets are the boxes of each chain and, for a chain with several, also the box around all of them, since a plural
phrase is localized as one merged box. Pictures stay on the device as bytes and are augmented there.
Losses: quality focal loss (Li et al. 2020), generalized IoU (Rezatofighi et al. 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from deixis.corpus import TYPES, Image
from deixis.corpus.boxes import Boxes, box_array, merge
from deixis.corpus.leak_guard import TrainingSet
from deixis.errors import DeixisError
from deixis.metrics.proposal_recall import proposal_recall
from deixis.text.expressions import LABEL_TYPES
from deixis.training.augmentation import (
    SquashedPictures,
    random_colours,
    random_views,
    recoloured,
    squashed_pictures,
    view_boxes,
    view_pictures,
)
from deixis.training.task import Batches, Loss
from deixis.training.tools.tool_runs import BoxRecipe, PictureRows, box_schedule, picture_batches
from deixis.vision.box_tensors import aligned_iou, box_area, pairwise_iou
from deixis.vision.efficientnet_lite import load_efficientnet_lite
from deixis.vision.learned_proposals import LearnedProposals
from deixis.vision.proposer import Proposer, ProposerOutput, corners
from deixis.vision.reading import Skipped

#: IoU of an anchor with a box: from the first on it is a positive, below the second background.
POSITIVE_IOU, NEGATIVE_IOU = 0.5, 0.4
#: Pictures in a pass of the validation.
VALIDATION_BATCH = 32


@dataclass(frozen=True)
class BoxSet:
    """Pictures (n, 3, side, side) uint8, boxes (n, g, 4) in [0, 1] padded with zeros, and their types (n, g, types)."""

    pictures: Tensor
    boxes: Tensor
    types: Tensor
    image_ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.pictures)


def box_set(training: TrainingSet, side: int, device: torch.device, skipped: Skipped) -> BoxSet:
    """The pictures of a training set and their boxes; images without any box of a chain are left out."""
    boxed = [image for image in training if any(chain.boxes for chain in image.chains)]
    if not boxed:
        raise DeixisError(f"corpus {training.corpus.name or '(unnamed)'} has no boxes in its training split")
    read = squashed_pictures(training.corpus, boxed, side, skipped)
    if not read.images:
        raise DeixisError(f"none of the {len(boxed)} training pictures can be read; the first: {_first(skipped)}")
    boxes, types = padded_targets(read)
    image_ids = tuple(image.id for image in read.images)
    return BoxSet(read.pixels.to(device), boxes.to(device), types.to(device), image_ids)


def padded_targets(read: SquashedPictures, most: int | None = None) -> tuple[Tensor, Tensor]:
    """`box_targets` of pictures as `boxes` (n, g, 4) in [0, 1] and `types` (n, g, types), padded with zeros.

    Args:
        most: only so many boxes per picture, the largest.
    """
    targets = [
        largest_targets(box_targets(*image_and_size), most)
        for image_and_size in zip(read.images, read.sizes, strict=True)
    ]
    most = max(map(len, targets))
    boxes = torch.zeros(len(targets), most, 4)
    types = torch.zeros(len(targets), most, len(TYPES), dtype=torch.bool)
    for row, target in enumerate(targets):
        boxes[row, : len(target)] = torch.tensor(list(target))
        types[row, : len(target)] = torch.tensor([[name in names for name in TYPES] for names in target.values()])
    return boxes, types


def _first(skipped: Skipped) -> str:
    return next(iter(skipped.reasons.values()))


def largest_targets(targets: dict[tuple[float, ...], set[str]], most: int | None) -> dict[tuple[float, ...], set[str]]:
    """At most so many of the targets of a picture, the largest."""
    if most is None or len(targets) <= most:
        return targets
    largest = sorted(targets, key=lambda box: (box[0] - box[2]) * (box[3] - box[1]))[:most]
    return {box: targets[box] for box in largest}


def box_targets(image: Image, size: tuple[int, int]) -> dict[tuple[float, ...], set[str]]:
    """The boxes to find in an image, in [0, 1], and their types. A chain of several boxes adds the merged box."""
    targets: dict[tuple[float, ...], set[str]] = {}
    types = image.chain_types()
    for chain in image.chains:
        boxes: Boxes = box_array(image.chain_boxes(chain.id)) / np.tile(size, 2)
        if len(boxes) > 1:
            boxes = np.concatenate([boxes, merge(boxes)[None]])
        for box in boxes.tolist():
            # Types other than the eight become "other".
            named = set(types[chain.id]) & set(TYPES) or {LABEL_TYPES.get(chain.label, "other")}
            targets.setdefault(tuple(box), set()).update(named)
    return targets


def new_proposer(backbone: str, seed: int) -> Proposer:
    """An untrained head on a backbone with its ImageNet weights."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return Proposer(load_efficientnet_lite(backbone), backbone)


class ProposerRecipe(BoxRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a proposer's training."""

    name: str = "proposer"
    kind: str = "proposer"
    about: str = "Proposes boxes of a picture."
    batch_size: int = 64
    zoom: float = 0.45


def proposer_recipe(epochs: int = 30, seed: int = 0, **settings: Any) -> ProposerRecipe:
    schedule = box_schedule(epochs, warm_up=2.0, final=0.005, figure="recall_at_100", validate_every=6)
    return ProposerRecipe(seed=seed, schedule=schedule, **settings)


class ProposerTask:
    """The trainer's task (`deixis.training.task.Task`).

    Args:
        model: trained in place, on the device of `training`.
        training: pictures and their boxes.
        validation: pictures, at the recipe's size, whose proposals are compared with the boxes of their phrases.
        recipe: all settings.
    """

    def __init__(self, model: Proposer, training: BoxSet, validation: SquashedPictures, recipe: ProposerRecipe) -> None:
        self.module, self._training, self._validation, self._recipe = model, training, validation, recipe

    def batches(self, epoch: int) -> Batches[PictureRows]:
        return picture_batches(len(self._training), self._recipe, epoch)

    def loss(self, batch: PictureRows) -> Loss:
        data = self._training
        device = data.pictures.device
        generator, rows = torch.Generator(device).manual_seed(batch.seed), batch.rows.to(device)
        pictures, boxes, types = augment(
            data.pictures[rows], data.boxes[rows], data.types[rows], self._recipe.zoom, self._recipe.side, generator
        )
        return Loss(proposer_loss(self.module(pictures), boxes, types))

    def validate(self) -> dict[str, float]:
        """Recall in percent at 100 boxes and IoU 0.5."""
        held = self._validation
        proposer = LearnedProposals(self.module, self._recipe.side)
        batches = torch.split(held.pixels, VALIDATION_BATCH)
        boxes = [proposals.boxes for batch in batches for proposals in proposer.propose_batch(batch, 100)]
        pairs = [
            (image, proposed * np.tile(size, 2))
            for image, size, proposed in zip(held.images, held.sizes, boxes, strict=True)
        ]
        return {"recall_at_100": proposal_recall(pairs, ious=(0.5,))[0.5].overall.recall[100]}

    def describe(self, batch: PictureRows) -> str:
        return "images " + ", ".join(self._training.image_ids[row] for row in batch.rows.tolist())


def augment(
    pictures: Tensor, boxes: Tensor, types: Tensor, zoom: float, side: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Mirror, zoom in or out and shift, change colours; boxes that keep less than 40% of their area are dropped."""
    views = random_views(len(pictures), zoom, generator)
    colours = random_colours(len(pictures), generator)
    x = recoloured(view_pictures(pictures, views, side), colours)
    seen = view_boxes(boxes, views)
    return x, seen, types & (box_area(seen) > 0)[..., None]


def proposer_loss(output: ProposerOutput, boxes: Tensor, types: Tensor, background: Tensor | None = None) -> Tensor:
    """Quality focal loss over types + generalized IoU over anchors with a box.

    `boxes` `(batch, g, 4)` are zeros and `types` `(batch, g, types)` false where a picture has fewer than g.
    `background` `(batch, types)` is true where anchors without a box are known to show nothing of that type; by default
    all are.
    """
    logits, predicted, anchors = output.logits.float(), output.boxes, corners(output.anchors)
    with torch.no_grad():
        real = box_area(boxes) > 0
        overlap = pairwise_iou(anchors.expand(len(boxes), -1, -1), boxes)  # (batch, anchors, boxes)
        overlap = overlap.masked_fill(~real[:, None], -1)
        best, which = overlap.max(-1)
        # The best anchors of a box are positives even if none reaches the threshold.
        forced = (overlap >= 0.9 * overlap.amax(1, keepdim=True)) & (overlap > 0.2)
        which = torch.where(forced.any(-1), (overlap * forced).argmax(-1), which)
        positive = (best >= POSITIVE_IOU) | forced.any(-1)
        ignored = (best >= NEGATIVE_IOU) & ~positive
        target_boxes = boxes.gather(1, which[..., None].expand(-1, -1, 4))
        target_types = types.gather(1, which[..., None].expand(-1, -1, types.shape[-1]))
    # Masked instead of indexed: boolean indexing waits for the GPU.
    iou, generalized = aligned_iou(predicted, target_boxes)
    quality = target_types * (iou.detach().clamp(0, 1) * positive)[..., None]
    focal = (quality - logits.sigmoid()).abs().square() * F.binary_cross_entropy_with_logits(
        logits, quality, reduction="none"
    )
    counted = ~ignored[..., None]
    if background is not None:
        counted = counted & (positive[..., None] | background[:, None])
    focal = (focal * counted).sum()
    scale = positive.sum().clamp(min=1)
    return focal / scale * 2.0 + torch.where(positive, 1 - generalized, 0.0).sum() / scale
