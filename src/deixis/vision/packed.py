"""Convolutions for inference with networks whose normalizations are folded, each as its device runs it best.

On a processor oneDNN has weights in its own layout and the activation inside. PyTorch's own compiler does the same, but
needs a C++ compiler and time for every shape; its operators are used here directly, and where they are missing nothing
changes. On a GPU cuDNN plans for seconds whenever pictures of a new shape come; what is used there needs no plans.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class PackedConv2d(nn.Module):
    """A convolution padded as TensorFlow's "SAME", followed by ReLU6 where `activated`.

    With stride 2 and even sizes that padding is one larger below and on the right. It is had without a padded copy of
    the input by a kernel that is one larger above and on the left, where it is zero.
    """

    def __init__(self, convolution: nn.Conv2d, *, activated: bool) -> None:
        super().__init__()
        kernel, stride = convolution.kernel_size[0], convolution.stride[0]
        self._kernel, self._stride, self._groups = kernel, stride, convolution.groups
        self._after = ("hardtanh", [0.0, 6.0]) if activated else ("none", [])
        weight = convolution.weight.detach()
        self._bias = None if convolution.bias is None else convolution.bias.detach()
        self._even = self._packed(F.pad(weight, (1, 0, 1, 0)), kernel // 2) if stride > 1 else None
        self._any = self._packed(weight, kernel // 2 if stride == 1 else 0)

    def _packed(self, weight: Tensor, padding: int) -> tuple[Tensor, list[int]]:
        strides = [self._stride] * 2
        packed = torch.ops.mkldnn._reorder_convolution_weight(weight, [padding] * 2, strides, [1, 1], self._groups)
        return packed, [padding] * 2

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """The outcome, plus `added` where that is given."""
        weight, padding = self._any
        if self._even is not None and not any(size % 2 for size in x.shape[-2:]):
            weight, padding = self._even
        elif self._stride > 1:
            x = same_padded(x, self._kernel, self._stride)
        rest: list[Any] = [padding, [self._stride] * 2, [1, 1], self._groups]
        if added is not None:
            arguments = [x, added, weight, self._bias, *rest, "add", None, None, [], None]
        else:
            arguments = [x, weight, self._bias, *rest, *self._after, ""]
        outcome: Tensor = torch.ops.mkldnn._convolution_pointwise(*arguments)
        return outcome


class PlanlessConv2d(nn.Module):
    """A convolution padded as "SAME" for a GPU without cuDNN: that of one pixel is a matrix product a picture.

    Weights are kept as a matrix, since all stays in the order channels, rows, columns, in which PyTorch's own kernel
    for single channels works, whatever order the network is otherwise asked for.
    """

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self._kernel, self._stride, self._groups = convolution.kernel_size[0], convolution.stride[0], convolution.groups
        self._padding = self._kernel // 2 if self._stride == 1 else 0
        self.weight: Tensor
        self.bias: Tensor | None
        self.register_buffer("weight", convolution.weight.detach().flatten(1).clone())
        self.register_buffer("bias", None if convolution.bias is None else convolution.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        if self._kernel == 1:
            product: Tensor = torch.matmul(self.weight, x.flatten(2))
            if self.bias is not None:
                # In the product's own precision: under autocast a sum with single precision would be single.
                product = product + self.bias[:, None].to(product.dtype)
            return product.reshape(*product.shape[:2], *x.shape[-2:])
        x = x.contiguous() if self._stride == 1 else same_padded(x.contiguous(), self._kernel, self._stride)
        weight = self.weight.reshape(len(self.weight), -1, self._kernel, self._kernel)
        return F.conv2d(x, weight, self.bias, self._stride, self._padding, groups=self._groups)


def planless_pointwise(network: nn.Module) -> None:
    """Make every convolution of one pixel in a network a `PlanlessConv2d`; those of single channels need no plans."""
    for name, part in list(network.named_children()):
        if isinstance(part, nn.Conv2d) and part.kernel_size == (1, 1):
            setattr(network, name, PlanlessConv2d(part))
        else:
            planless_pointwise(part)


def can_pack() -> bool:
    """Whether this PyTorch has what is needed for `PackedConv2d`."""
    names = ("_reorder_convolution_weight", "_convolution_pointwise")
    return all(hasattr(torch.ops.mkldnn, name) for name in names)


def same_padded(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Padded as TensorFlow's "SAME": ⌈size/stride⌉ outputs, an odd padding row at the bottom or right."""
    height, width = (max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in x.shape[-2:])
    return F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
