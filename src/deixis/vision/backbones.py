"""Pretrained networks behind one protocol: a vector of the whole picture, and a map from which regions are pooled.

Pictures are passed as bytes and converted to floats on the device. The default network needs no download; others have a
prefix: `torchvision:vgg19`, `timm:resnet50`, `open_clip:ViT-B-32/openai`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from PIL import Image as Pillow
from torch import Tensor, nn

from deixis.errors import DeixisError
from deixis.vision import DETECTOR, TOWER
from deixis.vision.crops import BILINEAR, centre_crop, fit, squash, ten_crops
from deixis.vision.detector import STRIDE as DETECTOR_STRIDE
from deixis.vision.detector import RegionDetector, load_detector, region_features
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite, load_efficientnet_lite
from deixis.vision.onnx_export import cached_function
from deixis.vision.regions import Maps
from deixis.vision.tower import PictureTower, load_tower
from deixis.vision.weights import state_sha256

DEFAULT = "efficientnet-lite2"
#: Suffix of a network whose map has stride 16 (`EfficientNetLite.dilate`): the output of the last block, with fewer
#: channels than that of the last convolution, so that regions can be divided into bins.
STRIDE_16 = "-stride16"
Crops = Literal["centre", "ten", "squash"]


class Backbone(Protocol):
    """A network for extraction. Batches are bytes `(pictures, 3, height, width)`."""

    @property
    def name(self) -> str: ...

    @property
    def weights_sha256(self) -> str:
        """Hash of the weights' names and values (`state_sha256`)."""

    @property
    def side(self) -> int:
        """Side in pixels of the squares it was trained on."""

    @property
    def channels(self) -> int:
        """Dimension of a vector."""

    @property
    def map_channels(self) -> int: ...

    @property
    def stride(self) -> float:
        """Input pixels from one cell of the map to the next."""

    def preprocess(self, picture: Pillow.Image, crops: Crops | None = None) -> Tensor:
        """The picture's crops as bytes, `(crops, 3, side, side)`; by default those of the network."""

    def whole(self, picture: Pillow.Image, side: int | None = None) -> Tensor:
        """The whole picture as bytes, `(3, height, width)`, about `side`² pixels, to compute a map from."""

    def vectors(self, batch: Tensor) -> Tensor:
        """One vector per picture, `(pictures, channels)`."""

    def maps(self, batch: Tensor) -> Maps:
        """One map per picture, `(pictures, map_channels, rows, columns)`."""


@dataclass(frozen=True)
class NetworkInput:
    """The input of a network.

    `share` is the part of the shorter side that the crop covers; `mean` and `std` are per channel, in bytes (0–255).
    """

    side: int
    share: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    resampling: Pillow.Resampling = Pillow.Resampling.BICUBIC
    crops: Crops = "centre"
    #: Whether pictures may have other sizes than `side` × `side`.
    any_size: bool = True


class NetworkBackbone:
    """A `Backbone` made of a torch network and two functions on its normalized input."""

    def __init__(
        self,
        name: str,
        network: nn.Module,
        input: NetworkInput,
        *,
        vectors: Callable[[Tensor], Tensor],
        maps: Callable[[Tensor], Tensor],
        weights_sha256: str,
        device: str = "cpu",
        stride: float | None = None,
        origin: Callable[[int], float] | None = None,
    ) -> None:
        self.name, self.weights_sha256 = name, weights_sha256
        self.input, self.side = input, input.side
        self.network = network.eval().to(device)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._vectors, self._maps = vectors, maps
        self._mean = torch.tensor(input.mean, device=device)[:, None, None]
        self._std = torch.tensor(input.std, device=device)[:, None, None]
        self._origin = origin
        blank = torch.zeros(1, 3, self.side, self.side, dtype=torch.uint8)
        self.channels = self.vectors(blank).shape[1]
        shape = self._map_values(blank).shape
        self.map_channels = shape[1]
        self.stride = stride or self.side / shape[-1]

    def preprocess(self, picture: Pillow.Image, crops: Crops | None = None) -> Tensor:
        how, kind = self.input, crops or self.input.crops
        if kind == "ten":
            return torch.stack([as_bytes(c) for c in ten_crops(picture, how.side, how.share, how.resampling)])
        if kind == "squash":
            return as_bytes(squash(picture, how.side, how.resampling))[None]
        return as_bytes(centre_crop(picture, how.side, how.share, how.resampling))[None]

    def whole(self, picture: Pillow.Image, side: int | None = None) -> Tensor:
        how = self.input
        if not how.any_size:
            if side not in (None, how.side):
                raise DeixisError(f"{self.name} takes pictures of {how.side} × {how.side} pixels only, not {side}")
            return as_bytes(squash(picture, how.side, how.resampling))
        return as_bytes(fit(picture, side or how.side, round(self.stride), how.resampling))

    def vectors(self, batch: Tensor) -> Tensor:
        with torch.no_grad():
            return self._vectors(self._normalized(batch))

    def maps(self, batch: Tensor) -> Maps:
        height, width = batch.shape[-2:]
        middle = self.stride / 2
        origin = (self._origin(width), self._origin(height)) if self._origin else (middle, middle)
        return Maps(self._map_values(batch), self.stride, origin)

    def _map_values(self, batch: Tensor) -> Tensor:
        with torch.no_grad():
            return self._maps(self._normalized(batch))

    def _normalized(self, batch: Tensor) -> Tensor:
        floats = batch.to(self._mean.device).to(torch.float32, memory_format=torch.channels_last)
        return (floats - self._mean) / self._std


def as_bytes(picture: Pillow.Image) -> Tensor:
    """An RGB picture as a tensor of bytes, `(3, height, width)`."""
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def stacked(pictures: Sequence[Tensor], device: str = "cpu") -> Tensor:
    """`torch.stack` on a device that keeps the memory layout of `as_bytes`, channels last."""
    pixels = [picture.movedim(-3, -1) for picture in pictures]
    if device == "cpu":
        return torch.stack(pixels).movedim(-1, -3)
    # Pinned memory comes from a pool, without page faults, and is copied while the next batch is stacked.
    together = torch.empty((len(pixels), *pixels[0].shape), dtype=pixels[0].dtype, pin_memory=True)
    return torch.stack(pixels, out=together).to(device, non_blocking=True).movedim(-1, -3)


def mean_vectors(backbone: Backbone, batch: Tensor) -> Tensor:
    """The mean vector of several crops per picture: `(pictures, crops, 3, side, side)` to `(pictures, channels)`."""
    return backbone.vectors(batch.flatten(0, 1)).reshape(*batch.shape[:2], -1).mean(1)


def load_backbone(
    name: str = DEFAULT, *, weights: str | Path | None = None, device: str = "cpu", exported: bool = False
) -> Backbone:
    """A pretrained network by name.

    Args:
        name: `efficientnet-lite0`, `-lite1` or `-lite2`, each also with `-stride16`; a trained tower (`tower:` and its
            file) or detector (`detector:` and its file); or a network of an optional package, `package:network`.
        weights: a file of other weights; by default the published ones.
        device: where it runs, `cpu` or `cuda`.
        exported: on a CPU, run the networks of Deixis itself with onnxruntime. They are exported once, which takes
            seconds, and are then about twice as fast.
    """
    if name in VARIANTS:
        return efficientnet_lite_backbone(name, load_efficientnet_lite(name, weights), device, exported)
    if name.removesuffix(STRIDE_16) in VARIANTS:
        plain = name.removesuffix(STRIDE_16)
        return dilated_backbone(plain, load_efficientnet_lite(plain, weights), device)
    if name.startswith(TOWER):
        return tower_backbone(load_tower(name.removeprefix(TOWER)), device, exported)
    if name.startswith(DETECTOR):
        return DetectorBackbone(load_detector(name.removeprefix(DETECTOR)), device)
    from deixis.vision.extra_backbones import FAMILIES

    family, _, network = name.partition(":")
    if family not in FAMILIES or not network:
        known = ", ".join([*VARIANTS, *(f"{family}:…" for family in FAMILIES)])
        raise DeixisError(f"unknown backbone {name!r}; known: {known}")
    return FAMILIES[family](network, weights, device)


def efficientnet_lite_backbone(
    name: str, network: EfficientNetLite, device: str = "cpu", exported: bool = False
) -> NetworkBackbone:
    """Wrap an EfficientNet-Lite, which is fused and so taken over. Its input is (x − 127) / 128.

    The crop is that of the published evaluation: the shorter side to `side` + 32 pixels, the middle `side` of them.
    """
    weights_sha256, side = state_sha256(network), VARIANTS[name].side
    maps = _maps(network, weights_sha256, exported and device == "cpu")
    return NetworkBackbone(
        name,
        network,
        NetworkInput(side, side / (side + 32), (127.0, 127.0, 127.0), (128.0, 128.0, 128.0)),
        vectors=lambda batch: maps(batch).mean((-2, -1)),
        maps=maps,
        weights_sha256=weights_sha256,
        device=device,
        stride=network.stride,
        origin=network.map_origin,
    )


def dilated_backbone(name: str, network: EfficientNetLite, device: str = "cpu") -> NetworkBackbone:
    """Wrap an EfficientNet-Lite with a map of stride 16, which is fused and so taken over."""
    weights_sha256, side = state_sha256(network), VARIANTS[name].side
    network.fuse()
    network.dilate()
    return NetworkBackbone(
        name + STRIDE_16,
        network,
        NetworkInput(side, side / (side + 32), (127.0, 127.0, 127.0), (128.0, 128.0, 128.0)),
        vectors=lambda batch: network.pyramid(batch)[-1].mean((-2, -1)),
        maps=lambda batch: network.pyramid(batch)[-1],
        weights_sha256=weights_sha256,
        device=device,
        stride=network.stride,
        origin=network.map_origin,
    )


class DetectorBackbone(NetworkBackbone):
    """A trained detector; `region_vectors` are those of its region head."""

    def __init__(self, detector: RegionDetector, device: str = "cpu") -> None:
        self.detector = detector
        super().__init__(
            f"{DETECTOR}{detector.backbone_name}",
            detector,
            NetworkInput(detector.side, 1.0, (127.0, 127.0, 127.0), (128.0, 128.0, 128.0), BILINEAR, crops="squash"),
            vectors=lambda batch: detector.map(batch).mean((-2, -1)),
            maps=detector.map,
            weights_sha256=state_sha256(detector),
            device=device,
            stride=DETECTOR_STRIDE,
        )

    def whole(self, picture: Pillow.Image, side: int | None = None) -> Tensor:
        # A square, as in training, of a multiple of the last level's stride, so that all levels cover the same picture.
        stride = round(self.detector.backbone.stride)
        side = max(1, round((side or self.side) / stride)) * stride
        return as_bytes(squash(picture, side, self.input.resampling))

    def region_vectors(self, maps: Maps, boxes: Sequence[Tensor]) -> Tensor:
        """The head's features `(all boxes, channels)` of each picture's boxes `(boxes, 4)` in input pixels."""
        rows, columns = maps.values.shape[-2:]
        size = torch.tensor([columns, rows, columns, rows]) * self.stride
        return region_features(self.detector, maps.values, [image_boxes / size for image_boxes in boxes])


def tower_backbone(tower: PictureTower, device: str = "cpu", exported: bool = False) -> NetworkBackbone:
    """Wrap a trained tower: vectors are its rows (`PictureTower.rows`), of pictures squashed as in its training."""
    weights_sha256, network = state_sha256(tower), tower.backbone
    maps = _maps(network, weights_sha256, exported and device == "cpu")
    return NetworkBackbone(
        f"{TOWER}{tower.backbone_name}",
        tower,
        # Resampled as in training (`deixis.vision.proposer.squashed`).
        NetworkInput(tower.side, 1.0, (127.0, 127.0, 127.0), (128.0, 128.0, 128.0), BILINEAR, crops="squash"),
        vectors=lambda batch: tower.rows_of_maps(maps(batch)),
        maps=maps,
        weights_sha256=weights_sha256,
        device=device,
        stride=network.stride,
        origin=network.map_origin,
    )


def _maps(network: EfficientNetLite, weights_sha256: str, exported: bool) -> Callable[[Tensor], Tensor]:
    """`network.map` with its batch norm folded, by PyTorch or by onnxruntime."""
    network.fuse()
    if not exported:
        return network.map
    axes = {"pictures": {0: "batch", 2: "height", 3: "width"}, "maps": {0: "batch", 2: "rows", 3: "columns"}}
    example = {"pictures": torch.zeros(2, 3, 64, 64)}
    graph = cached_function(f"maps-{weights_sha256[:32]}", network, network.map, example, ["maps"], axes)
    return lambda pictures: graph(pictures=pictures)[0]
