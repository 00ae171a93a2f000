"""Validate a region classifier on pictures with labelled boxes: classes of regions, and average precision.

The detector proposes nothing itself. For average precision it classifies and moves windows of several sizes and shapes
that cover the picture, so the figure can be measured without running a proposal method on the pictures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from deixis.corpus.boxes import iou_matrix
from deixis.metrics.precision import average_precision
from deixis.training.tools.detector_training import UNITS, region_targets, sample_regions
from deixis.vision.box_tensors import suppress_batch
from deixis.vision.detector import RegionDetector
from deixis.vision.proposer import normalize

#: Sides of square windows, their aspect ratios, and the step between windows as a share of their sides.
SIDES, ASPECTS, STEP = (0.12, 0.25, 0.5, 0.8), (0.5, 1.0, 2.0), 0.5
#: Detections per picture, and the overlap above which a weaker one of the same class is dropped.
DETECTIONS, OVERLAP = 50, 0.5
#: Pictures in one pass.
BATCH = 8


@torch.no_grad()
def detection_figures(detector: RegionDetector, pictures: Tensor, boxes: Tensor, classes: Tensor) -> dict[str, float]:
    """Figures in percent: `class_accuracy` of regions that overlap a box, and `ap50`, the mean over classes.

    Args:
        detector: in evaluation mode, on the pictures' device.
        pictures: bytes `(n, 3, height, width)`.
        boxes: `(n, g, 4)` in [0, 1], padded with zeros.
        classes: `(n, g)` from 0.
    """
    generator = torch.Generator(pictures.device).manual_seed(0)
    right = regions_seen = 0
    detected: list[tuple[Tensor, Tensor, Tensor]] = []
    window_boxes = windows().to(pictures.device)
    for rows in torch.split(torch.arange(len(pictures), device=pictures.device), BATCH):
        x = F.interpolate(normalize(pictures[rows]), size=(detector.side, detector.side), mode="bilinear")
        maps = detector.map(x.contiguous(memory_format=torch.channels_last))
        regions = sample_regions(boxes[rows], generator)
        labels, _, foreground = region_targets(regions, boxes[rows], classes[rows])
        predicted = detector.classify(detector.regions(maps, regions)).argmax(-1)
        right += int(((predicted == labels) & foreground).sum())
        regions_seen += int(foreground.sum())
        detected += detections(detector, maps, window_boxes)
    aps = class_precisions(detected, boxes, classes)
    return {
        "class_accuracy": 100 * right / max(1, regions_seen),
        "ap50": 100 * float(np.mean(list(aps.values()))) if aps else 0.0,
    }


def windows() -> Tensor:
    """Windows `(windows, 4)` in [0, 1] that cover a picture."""
    boxes = []
    for side in SIDES:
        for aspect in ASPECTS:
            width, height = min(1.0, side * math.sqrt(aspect)), min(1.0, side / math.sqrt(aspect))
            x, y = (torch.linspace(0, 1 - size, math.ceil((1 - size) / (STEP * size)) + 1) for size in (width, height))
            corner = torch.cartesian_prod(x, y)
            boxes.append(torch.cat([corner, corner + torch.tensor([width, height])], 1))
    return torch.cat([*boxes, torch.tensor([[0.0, 0.0, 1.0, 1.0]])])


def detections(detector: RegionDetector, maps: Tensor, candidates: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Boxes `(n, 4)`, scores and classes of each picture's detections among candidate boxes `(candidates, 4)`."""
    regions = candidates.expand(len(maps), -1, -1)
    features = detector.regions(maps, regions)
    chances = detector.classify(features).float().softmax(-1)[..., 1:]
    moved = move_boxes(regions, detector.move(features).float())
    scores, classes = chances.max(-1)
    # Boxes of different classes are moved apart, so that they do not suppress each other.
    apart = moved + 2 * classes[..., None]
    indices, counts = suppress_batch(apart, scores, OVERLAP, DETECTIONS)
    return [
        (moved[row][rows], scores[row][rows], classes[row][rows])
        for row, rows in enumerate(indices[row, :count] for row, count in enumerate(counts.tolist()))
    ]


def move_boxes(boxes: Tensor, offsets: Tensor) -> Tensor:
    """The boxes that offsets of `region_targets` lead to, clipped to the picture."""
    centre, size = (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]
    scaled = offsets * offsets.new_tensor(UNITS)
    centre = centre + scaled[..., :2] * size
    size = size * scaled[..., 2:].clamp(max=2).exp()
    return torch.cat([centre - size / 2, centre + size / 2], -1).clamp(0, 1)


def class_precisions(
    detected: list[tuple[Tensor, Tensor, Tensor]], boxes: Tensor, classes: Tensor
) -> Mapping[int, float]:
    """The average precision of each class that has a box: a detection is right if it is the first with IoU ≥ 0.5."""
    real = (boxes[..., 2:] > boxes[..., :2]).all(-1).cpu()
    truths = [
        (picture_boxes[valid].double().numpy(), named[valid].numpy())
        for picture_boxes, named, valid in zip(boxes.cpu(), classes.cpu(), real, strict=True)
    ]
    scores: dict[int, list[float]] = {}
    hits: dict[int, list[bool]] = {}
    for (detected_boxes, chances, named), (truth, labels) in zip(detected, truths, strict=True):
        taken = np.zeros(len(truth), bool)
        overlaps = (
            iou_matrix(detected_boxes.double().cpu().numpy(), truth)
            if len(truth)
            else np.zeros((len(detected_boxes), 0))
        )
        for overlap, score, label in zip(overlaps, chances.tolist(), named.tolist(), strict=True):
            free = np.where((labels == label) & ~taken, overlap, 0.0)
            best = int(free.argmax()) if len(free) else -1
            hit = best >= 0 and free[best] >= 0.5
            if hit:
                taken[best] = True
            scores.setdefault(label, []).append(score)
            hits.setdefault(label, []).append(bool(hit))
    totals = np.bincount(np.concatenate([labels for _, labels in truths])) if truths else np.zeros(0, int)
    return {
        label: average_precision(scores[label], hits[label], total=int(total)) if label in scores else 0.0
        for label, total in enumerate(totals)
        if total
    }
