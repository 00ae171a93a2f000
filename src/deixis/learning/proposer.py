"""Train the learned proposals (`deixis.vision.proposer`) on the boxes of a corpus.

Targets are the boxes of each chain and, for a chain with several, also the box around all of them, since a plural
phrase is localized as one merged box (papers 0 and 1). Pictures stay on the device as bytes and are augmented there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from deixis.corpus import TYPES, Image
from deixis.corpus.training import TrainingSet
from deixis.vision.proposer import Proposer, corners, make_anchors, normalize, squashed
from deixis.vision.reading import read_picture

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


def box_set(training: TrainingSet, side: int, device: torch.device) -> BoxSet:
    """Decode the pictures of a training set and gather their boxes; images without any box are left out."""
    corpus = training.corpus
    images = [image for image in corpus if image.boxes and image.width and image.height]
    with ThreadPoolExecutor() as pool:
        pixels = pool.map(lambda image: squashed(read_picture(corpus, image), side), images)
        rows = [(picture, box_targets(image)) for image, picture in zip(images, pixels, strict=True)]
    most = max(len(targets) for _, targets in rows)
    pictures = torch.empty(len(rows), 3, side, side, dtype=torch.uint8)
    boxes = torch.zeros(len(rows), most, 4)
    types = torch.zeros(len(rows), most, len(TYPES), dtype=torch.bool)
    for row, (pixels, targets) in enumerate(rows):
        pictures[row] = pixels
        for column, (box, names) in enumerate(targets.items()):
            boxes[row, column] = torch.tensor(box)
            types[row, column] = torch.tensor([name in names for name in TYPES])
    return BoxSet(pictures.to(device), boxes.to(device), types.to(device))


def box_targets(image: Image) -> dict[tuple[float, ...], set[str]]:
    """What to find in an image: box in [0, 1] → types. Chains with several boxes add the box around them all."""
    targets: dict[tuple[float, ...], set[str]] = {}
    types = image.chain_types()
    for chain in image.chains:
        own = [(box.x1, box.y1, box.x2, box.y2) for box in image.chain_boxes(chain.id, (1, 1))]
        if len(own) > 1:
            low, high = zip(*own, strict=True), zip(*own, strict=True)
            x1, y1, _, _ = map(min, low)
            _, _, x2, y2 = map(max, high)
            own.append((x1, y1, x2, y2))
        for box in own:
            targets.setdefault(box, set()).update(types[chain.id] or ("other",))
    return targets


@dataclass(frozen=True)
class Schedule:
    epochs: int = 36
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
    backbone = set(model.backbone.parameters())
    groups = [
        {"params": [p for p in model.parameters() if p not in backbone], "lr": schedule.learning_rate},
        {"params": list(backbone), "lr": schedule.learning_rate * schedule.backbone_rate},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=schedule.weight_decay)
    steps = schedule.epochs * (len(data) // schedule.batch_size)
    warm_up = min(200, max(1, steps // 10))
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))) + 0.005),
    )
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(schedule.averaging), use_buffers=True
    )
    for epoch in range(schedule.epochs):
        model.train()
        order = torch.randperm(len(data), device=device, generator=generator)
        total = torch.zeros((), device=device)
        batches = order[: len(order) // schedule.batch_size * schedule.batch_size].split(schedule.batch_size)
        for rows in batches:
            pictures, boxes, types = augment(
                data.pictures[rows], data.boxes[rows], data.types[rows], schedule, generator
            )
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                logits, predicted = model(pictures)
            loss = proposer_loss(logits.float(), predicted, boxes, types, schedule.side)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            scheduler.step()
            average.update_parameters(model)
            total += loss.detach()
        yield epoch, float(total / len(batches)), average.module


def augment(
    pictures: Tensor, boxes: Tensor, types: Tensor, schedule: Schedule, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Mirror, zoom in or out and shift, change colours; boxes that keep less than 40% of their area are dropped."""
    count, device = len(pictures), pictures.device

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, device=device, generator=generator)

    # The window of the source that becomes the new picture: sides in [1 − zoom, 1.15], aspect changed a little.
    size = 1.15 - (schedule.zoom + 0.15) * uniform(count, 1)
    sides = size * torch.exp((uniform(count, 2) - 0.5) * 0.3)
    start = (1 - sides) * uniform(count, 2)
    flip = torch.where(uniform(count) < 0.5, -1.0, 1.0)
    x = normalize(pictures)
    # Affine maps in grid_sample's units, where the source runs from −1 to 1.
    middle = 2 * start + sides - 1
    theta = torch.zeros(count, 2, 3, device=device)
    theta[:, 0, 0], theta[:, 1, 1] = sides[:, 0] * flip, sides[:, 1]
    theta[:, :, 2] = middle
    grid = F.affine_grid(theta, [count, 3, schedule.side, schedule.side], align_corners=False)
    x = F.grid_sample(x, grid, align_corners=False)
    brightness, contrast, saturation = (1 + 0.4 * (uniform(count, 1, 1, 1) - 0.5) for _ in range(3))
    grey = x.mean(1, keepdim=True)
    x = ((x - grey) * saturation + grey) * contrast + (brightness - 1)

    moved = (boxes.reshape(count, -1, 2, 2) - start[:, None, None]) / sides[:, None, None]
    moved = moved.reshape(count, -1, 4)
    mirrored = torch.stack([1 - moved[..., 2], moved[..., 1], 1 - moved[..., 0], moved[..., 3]], -1)
    moved = torch.where(flip[:, None, None] < 0, mirrored, moved)
    clipped = moved.clamp(0, 1)
    kept = (_area(clipped) > 0.4 * _area(moved)) & (_area(boxes) > 0)
    kept &= (clipped[..., 2:] - clipped[..., :2]).amin(-1) > 0.01
    return x, clipped * kept[..., None], types & kept[..., None]


def proposer_loss(logits: Tensor, predicted: Tensor, boxes: Tensor, types: Tensor, side: int) -> Tensor:
    """Quality focal loss over types + generalized IoU over anchors with a box."""
    cells = [math.ceil(side / 8), math.ceil(side / 16), math.ceil(side / 32), math.ceil(math.ceil(side / 32) / 2)]
    anchors = corners(make_anchors(side, cells, logits.device))
    with torch.no_grad():
        real = _area(boxes) > 0
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
    chosen, wanted = predicted[positive], target_boxes[positive]
    iou, generalized = aligned_iou(chosen, wanted)
    quality = torch.zeros_like(logits)
    quality[positive] = target_types[positive] * iou.detach()[:, None].clamp(0, 1)
    focal = (quality - logits.sigmoid()).abs().square() * F.binary_cross_entropy_with_logits(
        logits, quality, reduction="none"
    )
    focal = (focal * ~ignored[..., None]).sum()
    scale = positive.sum().clamp(min=1)
    return focal / scale * 2.0 + (1 - generalized).sum() / scale


def pairwise_iou(a: Tensor, b: Tensor) -> Tensor:
    """`(batch, n, 4)`, `(batch, m, 4)` → `(batch, n, m)`."""
    low = torch.maximum(a[:, :, None, :2], b[:, None, :, :2])
    high = torch.minimum(a[:, :, None, 2:], b[:, None, :, 2:])
    inner = (high - low).clamp(min=0).prod(-1)
    return inner / (_area(a)[:, :, None] + _area(b)[:, None] - inner).clamp(min=1e-9)


def aligned_iou(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """IoU and generalized IoU of boxes pair by pair."""
    inner = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(-1)
    union = _area(a) + _area(b) - inner
    hull = (torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])).prod(-1)
    iou = inner / union.clamp(min=1e-9)
    return iou, iou - (hull - union) / hull.clamp(min=1e-9)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)
