"""Train a region classifier (`deixis.vision.detector`) on pictures with labelled boxes, such as COCO's.

Regions are not proposals but shifted and rescaled copies of the ground-truth boxes and random boxes, so no proposal
method has to run on the training pictures. As in Fast R-CNN, a region with an IoU of at least 0.5 with a box has that
box's class, any other is background, and regions with a class also learn the offset to their box. The trainer's task
is in `detector_task`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from deixis.training.augmentation import random_colours, random_views, recoloured, view_boxes, view_pictures
from deixis.vision.box_tensors import pairwise_iou
from deixis.vision.detector import RegionDetector

#: IoU with a ground-truth box from which on a region has its class.
FOREGROUND = 0.5
#: Regions of a picture: close to a box, far from a box, anywhere.
CLOSE, FAR, ANYWHERE = 20, 24, 20
#: Weight of the offsets' loss.
OFFSETS = 2.0
#: Offsets are predicted in these units (Fast R-CNN): of the centre, of the logarithm of the size.
UNITS = (0.1, 0.1, 0.2, 0.2)


def detector_loss(
    detector: RegionDetector,
    pictures: Tensor,
    boxes: Tensor,
    classes: Tensor,
    generator: torch.Generator,
    *,
    zoom: float = 0.5,
) -> tuple[Tensor, Tensor]:
    """Loss of a batch of augmented pictures, and the share of regions with a class whose class is right.

    Args:
        pictures: bytes `(n, 3, height, width)`.
        boxes: `(n, g, 4)` in [0, 1], padded with zeros.
        classes: `(n, g)` from 0.
        generator: makes all random choices, on the pictures' device.
        zoom: as in `random_views`.
    """
    with torch.no_grad(), torch.autocast(pictures.device.type, enabled=False):
        views = random_views(len(pictures), zoom, generator)
        x = recoloured(view_pictures(pictures, views, detector.side), random_colours(len(pictures), generator))
        seen = view_boxes(boxes, views)
        regions = sample_regions(seen, generator)
        labels, targets, foreground = region_targets(regions, seen, classes)
    logits, offsets = detector(x.contiguous(memory_format=torch.channels_last), regions)
    logits, offsets = logits.float(), offsets.float()
    classify = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    move = F.smooth_l1_loss(offsets, targets, reduction="none").mean(-1)
    move = torch.where(foreground, move, 0.0).sum() / foreground.sum().clamp(min=1)
    right = ((logits.argmax(-1) == labels) & foreground).sum() / foreground.sum().clamp(min=1)
    return classify + OFFSETS * move, right.detach()


def sample_regions(boxes: Tensor, generator: torch.Generator) -> Tensor:
    """Regions `(n, CLOSE + FAR + ANYWHERE, 4)` in [0, 1] for pictures with boxes `(n, g, 4)`, zeros for padding."""
    count, device = len(boxes), boxes.device

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, device=device, generator=generator)

    real = (boxes[..., 2:] > boxes[..., :2]).all(-1)
    # A picture without boxes gets random regions throughout.
    weights = torch.where(real.any(1, keepdim=True), real.float(), 1.0)
    chosen = torch.multinomial(weights, CLOSE + FAR, replacement=True, generator=generator)
    base = boxes.gather(1, chosen[..., None].expand(-1, -1, 4))
    spread = torch.cat([torch.full((CLOSE,), 0.35, device=device), torch.full((FAR,), 1.2, device=device)])[:, None]
    centre, size = (base[..., :2] + base[..., 2:]) / 2, base[..., 2:] - base[..., :2]
    centre = centre + (uniform(count, CLOSE + FAR, 2) - 0.5) * spread * size
    size = size * torch.exp((uniform(count, CLOSE + FAR, 2) - 0.5) * 1.5 * spread)
    near = torch.cat([centre - size / 2, centre + size / 2], -1).clamp(0, 1)
    corners = uniform(count, CLOSE + FAR + ANYWHERE, 2, 2)
    anywhere = torch.cat([corners.amin(-1), corners.amax(-1)], -1)
    fits = (near[..., 2:] - near[..., :2]).amin(-1) > 0.01
    near = torch.where(fits[..., None], near, anywhere[:, : CLOSE + FAR])
    return torch.cat([near, anywhere[:, CLOSE + FAR :]], 1)


def region_targets(regions: Tensor, boxes: Tensor, classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Labels `(n, r)`, 0 for background, else 1 + class; offsets `(n, r, 4)` to the box; which regions have a class."""
    overlap = pairwise_iou(regions, boxes)
    overlap = overlap.masked_fill(~(boxes[..., 2:] > boxes[..., :2]).all(-1)[:, None], -1)
    best, which = overlap.max(-1)
    foreground = best >= FOREGROUND
    labels = torch.where(foreground, 1 + classes.gather(1, which), 0)
    target = boxes.gather(1, which[..., None].expand(-1, -1, 4))
    centre, size = (regions[..., :2] + regions[..., 2:]) / 2, (regions[..., 2:] - regions[..., :2]).clamp(min=1e-4)
    moved = ((target[..., :2] + target[..., 2:]) / 2 - centre) / size
    scaled = ((target[..., 2:] - target[..., :2]).clamp(min=1e-4) / size).log()
    offsets = torch.cat([moved, scaled], -1) / regions.new_tensor(UNITS)
    return labels, torch.where(foreground[..., None], offsets, 0.0), foreground
