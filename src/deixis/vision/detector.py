"""A region classifier in the manner of Fast R-CNN (Girshick 2015), on an EfficientNet-Lite.

The two-branch paper takes its region features from a Fast R-CNN that was fine-tuned for detection: the last hidden
layer of its region head (fc7). This network replaces it. Its file (safetensors) is a backbone, `detector:FILE`,
whose regions are described by that layer (`features = "head"`). It has seen ground-truth boxes of its training corpus,
and results that use it say so. Training is in `deixis.training.tools.detector_training`.

Shapes: pictures `(batch, 3, height, width)`, normalized; boxes `(batch, boxes, 4)` as x1, y1, x2, y2 in [0, 1].
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deixis.errors import InputError
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite
from deixis.vision.regions import roi_align_each
from deixis.vision.weights import fill_network, read_network, save_network

_KIND = "deixis detector 1"
#: Channels of the map at stride 8 from which regions are cut, bins per side of a region, and width of the head.
MAP_CHANNELS, BINS, WIDTH = 128, 7, 1024
#: Pixels from one cell of the map to the next.
STRIDE = 8
#: The ImageNet classifier and the last convolution before it are not used and not stored.
_NOT_KEPT = ("backbone._fc.", "backbone._conv_head.", "backbone._bn1.")


class RegionOutput(NamedTuple):
    """For each region: logits `(batch, boxes, 1 + classes)`, background first, and the offsets `(batch, boxes, 4)`."""

    logits: Tensor
    offsets: Tensor


class RegionDetector(nn.Module):
    """Pyramid → one map at stride 8 → RoIAlign → two hidden layers → class and offsets of each region."""

    def __init__(self, backbone: EfficientNetLite, backbone_name: str, classes: int, side: int) -> None:
        super().__init__()
        self.backbone, self.backbone_name, self.classes, self.side = backbone, backbone_name, classes, side
        self.lateral = nn.ModuleList([nn.Conv2d(channels, MAP_CHANNELS, 1) for channels in backbone.pyramid_channels])
        self.smooth = nn.Conv2d(MAP_CHANNELS, MAP_CHANNELS, 3, padding=1)
        self.fc6 = nn.Linear(BINS * BINS * MAP_CHANNELS, WIDTH)
        self.fc7 = nn.Linear(WIDTH, WIDTH)
        self.classify = nn.Linear(WIDTH, 1 + classes)
        self.move = nn.Linear(WIDTH, 4)

    def map(self, pictures: Tensor) -> Tensor:
        """`(batch, MAP_CHANNELS, height / 8, width / 8)`."""
        levels = self.backbone.pyramid(pictures)
        maps = [lateral(level) for lateral, level in zip(self.lateral, levels, strict=True)]
        for index in range(len(maps) - 1, 0, -1):
            maps[index - 1] = maps[index - 1] + F.interpolate(maps[index], size=maps[index - 1].shape[-2:])
        return F.relu(self.smooth(F.relu(maps[0])))

    def regions(self, maps: Tensor, boxes: Tensor) -> Tensor:
        """The features of regions `(batch, boxes, WIDTH)`: the last hidden layer."""
        # Boxes stay in single precision: in bfloat16 they would move by up to 0.4% of the picture.
        pooled = roi_align_each(maps, boxes.to(maps.device), bins=BINS).flatten(2)
        return F.relu(self.fc7(F.relu(self.fc6(pooled))))

    def forward(self, pictures: Tensor, boxes: Tensor) -> RegionOutput:
        features = self.regions(self.map(pictures), boxes)
        return RegionOutput(self.classify(features), self.move(features))


def save_detector(detector: RegionDetector, path: str | Path) -> None:
    """Save weights as float16, with the settings of the detector as metadata."""
    settings = {"backbone": detector.backbone_name, "classes": str(detector.classes), "side": str(detector.side)}
    save_network(detector, path, {"kind": _KIND, **settings}, skip=_NOT_KEPT)


def load_detector(path: str | Path) -> RegionDetector:
    """Open a file written by `save_detector`; anything else is an `InputError`."""
    if not Path(path).exists():
        raise InputError(path, "is not there; `deixis proposals train-detector CORPUS --out FILE` trains a detector")
    description, tensors = read_network(path, _KIND, "a trained detector")
    try:
        name, classes, side = description["backbone"], int(description["classes"]), int(description["side"])
    except (KeyError, ValueError) as fault:
        raise InputError(path, f"its description is damaged ({fault})", "metadata") from None
    if name not in VARIANTS or not 1 <= classes <= 10_000 or not 32 <= side <= 2048:
        raise InputError(path, f"no detector on {name!r} of {classes} classes and {side} pixels is known", "metadata")
    detector = RegionDetector(EfficientNetLite(VARIANTS[name]), name, classes, side)
    fill_network(detector, tensors, path, skip=_NOT_KEPT)
    return detector.eval()


@torch.no_grad()
def region_features(detector: RegionDetector, maps: Tensor, boxes: list[Tensor]) -> Tensor:
    """The features `(all boxes, WIDTH)` of each picture's boxes `(boxes, 4)` in [0, 1]."""
    padded = nn.utils.rnn.pad_sequence(boxes, batch_first=True).to(maps.device)
    region_rows = detector.regions(maps, padded)
    return torch.cat([rows[: len(image_boxes)] for rows, image_boxes in zip(region_rows, boxes, strict=True)])
