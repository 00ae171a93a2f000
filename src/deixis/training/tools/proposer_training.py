"""Train the learned proposals (`deixis.vision.proposer`) on the boxes of a corpus.

Targets are the boxes of each chain and, for a chain with several, also the box around all of them, since a plural
phrase is localized as one merged box. Pictures stay on the device as bytes and are augmented there.
Losses: quality focal loss (Li et al. 2020), generalized IoU (Rezatofighi et al. 2019).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from deixis.corpus import TYPES, Image
from deixis.corpus.boxes import Boxes, box_array, merge
from deixis.corpus.training import TrainingSet
from deixis.errors import DeixisError
from deixis.training.augmentation import (
    SquashedPictures,
    box_area,
    random_colours,
    random_views,
    recoloured,
    squashed_pictures,
    view_boxes,
    view_pictures,
)
from deixis.vision.efficientnet_lite import load_efficientnet_lite
from deixis.vision.proposer import Proposer, ProposerOutput, corners
from deixis.vision.reading import Skipped

#: An anchor learns a box from this overlap on, and background below the second.
POSITIVE_IOU, NEGATIVE_IOU = 0.5, 0.4


@dataclass(frozen=True)
class BoxSet:
    """Pictures and their boxes, padded: `pictures` (n, 3, side, side) uint8; `boxes` (n, g, 4) in [0, 1], zeros where
    there is none; `types` (n, g, types) bool."""

    pictures: Tensor
    boxes: Tensor
    types: Tensor

    def __len__(self) -> int:
        return len(self.pictures)


def box_set(training: TrainingSet, side: int, device: torch.device, skipped: Skipped) -> BoxSet:
    """The pictures of a training set and their boxes; images without any box of a chain are left out."""
    boxed = [image for image in training if any(chain.boxes for chain in image.chains)]
    if not boxed:
        raise DeixisError(
            f"corpus {training.corpus.name or '(unnamed)'} has no boxes to learn from in its training split"
        )
    read = squashed_pictures(training.corpus, boxed, side, skipped)
    if not read.images:
        raise DeixisError(f"none of the {len(boxed)} pictures to learn from can be read; the first: {_first(skipped)}")
    boxes, types = padded_targets(read)
    return BoxSet(read.pixels.to(device), boxes.to(device), types.to(device))


def padded_targets(read: SquashedPictures) -> tuple[Tensor, Tensor]:
    """`box_targets` of pictures as `boxes` (n, g, 4) in [0, 1] and `types` (n, g, types), zeros where there is none."""
    targets = [box_targets(image, size) for image, size in zip(read.images, read.sizes, strict=True)]
    most = max(map(len, targets))
    boxes = torch.zeros(len(targets), most, 4)
    types = torch.zeros(len(targets), most, len(TYPES), dtype=torch.bool)
    for row, own in enumerate(targets):
        boxes[row, : len(own)] = torch.tensor(list(own))
        types[row, : len(own)] = torch.tensor([[name in names for name in TYPES] for names in own.values()])
    return boxes, types


def _first(skipped: Skipped) -> str:
    return next(iter(skipped.reasons.values()))


def box_targets(image: Image, size: tuple[int, int]) -> dict[tuple[float, ...], set[str]]:
    """What to find in an image of this size: box in [0, 1] → types. A chain of several boxes adds their merged one."""
    targets: dict[tuple[float, ...], set[str]] = {}
    types = image.chain_types()
    for chain in image.chains:
        own: Boxes = box_array(image.chain_boxes(chain.id)) / np.tile(size, 2)
        if len(own) > 1:
            own = np.concatenate([own, merge(own)[None]])
        for box in own.tolist():
            # Types beyond the eight are learned as "other".
            targets.setdefault(tuple(box), set()).update(set(types[chain.id]) & set(TYPES) or {"other"})
    return targets


def new_proposer(backbone: str, seed: int) -> Proposer:
    """An untrained head on a backbone with its ImageNet weights."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return Proposer(load_efficientnet_lite(backbone), backbone)


@dataclass(frozen=True)
class Schedule:
    """Learning rates fall by a cosine after a warm-up; `averaging` is the decay of the weights' moving average."""

    epochs: int = 30
    batch_size: int = 64
    learning_rate: float = 1e-3
    backbone_rate: float = 0.3
    weight_decay: float = 0.02
    averaging: float = 0.998
    zoom: float = 0.45
    side: int = 384
    seed: int = 0


def train_proposer(model: Proposer, data: BoxSet, schedule: Schedule) -> Iterator[tuple[int, float, Proposer]]:
    """Train in place; after each epoch give its number, mean loss and a copy with averaged weights."""
    device = data.pictures.device
    generator = torch.Generator(device).manual_seed(schedule.seed)
    backbone = [value for name, value in model.named_parameters() if name.startswith("backbone.")]
    head = [value for name, value in model.named_parameters() if not name.startswith("backbone.")]
    groups = [
        {"params": head, "lr": schedule.learning_rate},
        {"params": backbone, "lr": schedule.learning_rate * schedule.backbone_rate},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=schedule.weight_decay)
    batch_size = min(schedule.batch_size, len(data))
    steps = schedule.epochs * (len(data) // batch_size)
    warm_up = min(200, max(1, steps // 10))
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))) + 0.005),
    )
    moving: Any = torch.optim.swa_utils.get_ema_multi_avg_fn(schedule.averaging)  # type: ignore[no-untyped-call]
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=moving, use_buffers=True)
    for epoch in range(schedule.epochs):
        model.train()
        order = torch.randperm(len(data), device=device, generator=generator)
        total = torch.zeros((), device=device)
        # Whole batches only: the pictures left over are others in each epoch.
        batches = torch.split(order[: len(order) // batch_size * batch_size], batch_size)
        for rows in batches:
            pictures, boxes, types = augment(
                data.pictures[rows], data.boxes[rows], data.types[rows], schedule, generator
            )
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                output = model(pictures)
            loss = proposer_loss(output, boxes, types)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            scheduler.step()
            average.update_parameters(model)
            total += loss.detach()
        yield epoch, float(total / len(batches)), cast(Proposer, average.module)


def augment(
    pictures: Tensor, boxes: Tensor, types: Tensor, schedule: Schedule, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Mirror, zoom in or out and shift, change colours; boxes that keep less than 40% of their area are dropped."""
    views = random_views(len(pictures), schedule.zoom, generator)
    colours = random_colours(len(pictures), generator)
    x = recoloured(view_pictures(pictures, views, schedule.side), colours)
    seen = view_boxes(boxes, views)
    return x, seen, types & (box_area(seen) > 0)[..., None]


def proposer_loss(output: ProposerOutput, boxes: Tensor, types: Tensor) -> Tensor:
    """Quality focal loss over types + generalized IoU over anchors with a box.

    `boxes` `(batch, g, 4)` are zeros and `types` `(batch, g, types)` false where a picture has fewer than g.
    """
    logits, predicted, anchors = output.logits.float(), output.boxes, corners(output.anchors)
    with torch.no_grad():
        real = box_area(boxes) > 0
        overlap = pairwise_iou(anchors.expand(len(boxes), -1, -1), boxes)  # (batch, anchors, boxes)
        overlap = overlap.masked_fill(~real[:, None], -1)
        best, which = overlap.max(-1)
        # The anchors that suit a box best learn it even where none reaches the threshold.
        forced = (overlap >= 0.9 * overlap.amax(1, keepdim=True)) & (overlap > 0.2)
        which = torch.where(forced.any(-1), (overlap * forced).argmax(-1), which)
        positive = (best >= POSITIVE_IOU) | forced.any(-1)
        ignored = (best >= NEGATIVE_IOU) & ~positive
        target_boxes = boxes.gather(1, which[..., None].expand(-1, -1, 4))
        target_types = types.gather(1, which[..., None].expand(-1, -1, types.shape[-1]))
    # Over all anchors, those without a box masked out: choosing rows by a mask would make a GPU wait.
    iou, generalized = aligned_iou(predicted, target_boxes)
    quality = target_types * (iou.detach().clamp(0, 1) * positive)[..., None]
    focal = (quality - logits.sigmoid()).abs().square() * F.binary_cross_entropy_with_logits(
        logits, quality, reduction="none"
    )
    focal = (focal * ~ignored[..., None]).sum()
    scale = positive.sum().clamp(min=1)
    return focal / scale * 2.0 + torch.where(positive, 1 - generalized, 0.0).sum() / scale


def pairwise_iou(a: Tensor, b: Tensor) -> Tensor:
    """`(batch, n, 4)`, `(batch, m, 4)` → `(batch, n, m)`."""
    low = torch.maximum(a[:, :, None, :2], b[:, None, :, :2])
    high = torch.minimum(a[:, :, None, 2:], b[:, None, :, 2:])
    inner = (high - low).clamp(min=0).prod(-1)
    return inner / (box_area(a)[:, :, None] + box_area(b)[:, None] - inner).clamp(min=1e-9)


def aligned_iou(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """IoU and generalized IoU of boxes `(…, 4)` pair by pair."""
    inner = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    union = box_area(a) + box_area(b) - inner
    hull = (torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])).prod(-1)
    iou = inner / union.clamp(min=1e-9)
    return iou, iou - (hull - union) / hull.clamp(min=1e-9)
