"""Learned proposals: a small one-stage detector of what captions mention, on an EfficientNet-Lite.

The papers use EdgeBoxes or selective search. This network is trained on the boxes of a corpus, so results that use it
have seen ground-truth boxes and must say so. For each anchor it predicts a box and its quality for each of the eight
entity types; boxes are ranked by the best quality. Training is in `deixis.training.tools.proposer_training`.

Shapes: pictures `(batch, 3, side, side)`, squashed to a square; boxes `(…, 4)` as x1, y1, x2, y2 in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from PIL import Image as Pillow
from torch import Tensor, nn
from torch.nn import functional as F

from deixis.corpus import TYPES
from deixis.vision.backbones import as_bytes
from deixis.vision.crops import BILINEAR, squash
from deixis.vision.efficientnet_lite import EfficientNetLite

#: Strides of the pyramid's levels in pixels, sizes of the anchors in strides, and their shapes (height/width).
STRIDES = (8, 16, 32, 64)
ANCHOR_SIZES = (3.0, 4.0, 5.5)
ANCHOR_SHAPES = (0.5, 1.0, 2.0)
ANCHORS_PER_CELL = len(ANCHOR_SIZES) * len(ANCHOR_SHAPES)
#: Groups of the group norm; the width is a multiple of it.
GROUPS = 16


class ProposerOutput(NamedTuple):
    """The output for each anchor."""

    logits: Tensor  # (batch, anchors, types): the quality of the box as one of that type
    boxes: Tensor  # (batch, anchors, 4), float32, not clipped to the picture
    anchors: Tensor  # (anchors, 4): centre x, centre y, width, height


class Proposer(nn.Module):
    """Backbone, a light feature pyramid, and one head shared by all levels."""

    def __init__(self, backbone: EfficientNetLite, backbone_name: str, width: int = 128) -> None:
        super().__init__()
        self.backbone, self.backbone_name, self.width = backbone, backbone_name, width
        channels = backbone.pyramid_channels
        self.lateral = nn.ModuleList([nn.Conv2d(channel, width, 1) for channel in channels])
        self.smooth = nn.ModuleList([_separable(width) for _ in channels])
        self.coarsest = _separable(width, stride=2)
        self.quality_tower = nn.Sequential(_separable(width), _separable(width))
        self.box_tower = nn.Sequential(_separable(width), _separable(width))
        self.quality = nn.Conv2d(width, ANCHORS_PER_CELL * len(TYPES), 1)
        self.offsets = nn.Conv2d(width, ANCHORS_PER_CELL * 4, 1)
        # Nearly all anchors are background: begin with a prior of 1%.
        nn.init.normal_(self.quality.weight, std=0.01)
        nn.init.constant_(self.quality.get_parameter("bias"), -math.log(99))
        nn.init.normal_(self.offsets.weight, std=0.01)
        nn.init.zeros_(self.offsets.get_parameter("bias"))

    def forward(self, pictures: Tensor) -> ProposerOutput:
        return self.read_pyramid(self.backbone.pyramid(pictures), pictures.shape[-1])

    def read_pyramid(self, pyramid: Sequence[Tensor], side: int) -> ProposerOutput:
        """The output for pictures of `side` pixels from the maps of the backbone."""
        logits, offsets, anchors = self.predict(pyramid, side)
        return ProposerOutput(logits, decode(offsets, anchors), anchors)

    def predict(self, pyramid: Sequence[Tensor], side: int) -> tuple[Tensor, Tensor, Tensor]:
        """The logits of all anchors, the offsets of their boxes `(batch, anchors, 4)`, and the anchors."""
        maps = [lateral(level) for lateral, level in zip(self.lateral, pyramid, strict=True)]
        for index in range(len(maps) - 1, 0, -1):
            maps[index - 1] = maps[index - 1] + F.interpolate(maps[index], size=maps[index - 1].shape[-2:])
        maps = [smooth(level) for smooth, level in zip(self.smooth, maps, strict=True)]
        maps.append(self.coarsest(maps[-1]))
        logits = torch.cat([_by_anchor(self.quality(self.quality_tower(level)), len(TYPES)) for level in maps], 1)
        offsets = torch.cat([_by_anchor(self.offsets(self.box_tower(level)), 4) for level in maps], 1)
        anchors = make_anchors(side, [level.shape[-1] for level in maps], logits.device)
        return logits, offsets.float(), anchors


def normalize(pictures: Tensor) -> Tensor:
    """The backbone's input from bytes: (x − 127) / 128."""
    return (pictures.float() - 127) / 128


def squashed(picture: Pillow.Image, side: int, jpeg: int = 0) -> Tensor:
    """The whole picture resized to a square, bytes `(3, side, side)`; `jpeg` as in `squash`."""
    return as_bytes(squash(picture, side, BILINEAR, jpeg))


def make_anchors(side: int, cells: list[int], device: torch.device) -> Tensor:
    """All anchors `(anchors, 4)` as centre x, centre y, width, height in [0, 1], in the order of the outputs."""
    levels = []
    for stride, count in zip(STRIDES, cells, strict=True):
        centres = (torch.arange(count, device=device, dtype=torch.float32) + 0.5) / count
        y, x = torch.meshgrid(centres, centres, indexing="ij")
        shapes = [
            (size * stride / side / math.sqrt(shape), size * stride / side * math.sqrt(shape))
            for size in ANCHOR_SIZES
            for shape in ANCHOR_SHAPES
        ]
        # Without waiting for a GPU that is busy.
        sizes = torch.tensor(shapes).to(device, non_blocking=True).expand(count, count, -1, -1)
        points = torch.stack([x, y], -1)[:, :, None].expand(-1, -1, ANCHORS_PER_CELL, -1)
        levels.append(torch.cat([points, sizes], -1).reshape(-1, 4))
    return torch.cat(levels)


def decode(offsets: Tensor, anchors: Tensor) -> Tensor:
    """Boxes from offsets: the centre moves in units of the anchor's size, the size is scaled by an exponential."""
    centre = anchors[..., :2] + offsets[..., :2] * anchors[..., 2:]
    half = anchors[..., 2:] * offsets[..., 2:].clamp(-4, 4).exp() / 2
    return torch.cat([centre - half, centre + half], -1)


def corners(anchors: Tensor) -> Tensor:
    """Anchors as x1, y1, x2, y2."""
    return torch.cat([anchors[:, :2] - anchors[:, 2:] / 2, anchors[:, :2] + anchors[:, 2:] / 2], -1)


def _separable(width: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(width, width, 3, stride, padding=1, groups=width, bias=False),
        nn.Conv2d(width, width, 1, bias=False),
        nn.GroupNorm(GROUPS, width),
        nn.ReLU(inplace=True),
    )


def _by_anchor(output: Tensor, values: int) -> Tensor:
    """`(batch, anchors of a cell × values, height, width)` → `(batch, anchors, values)`."""
    batch = output.shape[0]
    return output.permute(0, 2, 3, 1).reshape(batch, -1, values)
