"""The maps of an EfficientNet-Lite by onnxruntime in place of PyTorch: the same function, on many processors faster.

The graph is made of the network's own weights when it is asked for, for pictures of any size and number. It needs the
package onnx beside onnxruntime (extra `export`).
"""

from __future__ import annotations

import importlib.util
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from deixis.errors import DeixisError

if TYPE_CHECKING:
    from deixis.vision.efficientnet_lite import EfficientNetLite

#: As in the bundles of search: read by every onnxruntime since 1.15.
_OPSET, _IR_VERSION = 18, 8


def can_run() -> bool:
    """Whether the packages are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("onnx", "onnxruntime"))


class OnnxMaps:
    """`EfficientNetLite.map` and `.pyramid` of a network whose normalizations are folded; may be called by threads."""

    def __init__(self, network: EfficientNetLite) -> None:
        if not can_run():
            raise DeixisError("networks by onnxruntime need onnx and onnxruntime: pip install 'deixis[export]'")
        self._network = network

    def map(self, pictures: Tensor) -> Tensor:
        """Normalized pictures `(batch, 3, height, width)` on a processor."""
        return _run(self._whole, pictures)[0]

    def pyramid(self, pictures: Tensor) -> list[Tensor]:
        return _run(self._levels, pictures)

    @cached_property
    def _whole(self) -> Any:
        return _session(self._network, whole=True)

    @cached_property
    def _levels(self) -> Any:
        return _session(self._network, whole=False)


def _run(session: Any, pictures: Tensor) -> list[Tensor]:
    return [torch.from_numpy(values) for values in session.run(None, {"pictures": pictures.contiguous().numpy()})]


def _session(network: EfficientNetLite, *, whole: bool) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # One thread a batch: extraction has as many batches at once as there are processors.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(_graph(network, whole=whole), options, providers=["CPUExecutionProvider"])


def _graph(network: EfficientNetLite, *, whole: bool) -> bytes:
    """The graph of the whole map, or of the pyramid's levels, weights inside."""
    from onnx import TensorProto, helper, numpy_helper

    nodes: list[Any] = []
    values: list[Any] = [numpy_helper.from_array(torch.tensor(edge).numpy(), f"edge {edge}") for edge in (0.0, 6.0)]

    def convolution(layer: Any, x: str, *, activated: bool) -> str:
        name, kernel = f"convolution {len(nodes)}", layer.kernel_size[0]
        parts = {f"{name} {part}": getattr(layer, part).detach().float().numpy() for part in ("weight", "bias")}
        values.extend(numpy_helper.from_array(array, part) for part, array in parts.items())
        # TensorFlow's "SAME", with which sizes decide the padding, is ONNX's SAME_UPPER.
        padding = {"pads": [kernel // 2] * 4} if layer.stride[0] == 1 else {"auto_pad": "SAME_UPPER"}
        nodes.append(
            helper.make_node(
                "Conv",
                [x, *parts],
                [name],
                kernel_shape=[kernel] * 2,
                strides=layer.stride,
                group=layer.groups,
                **padding,
            )
        )
        if not activated:
            return name
        nodes.append(helper.make_node("Clip", [name, "edge 0.0", "edge 6.0"], [f"{name} activated"]))
        return f"{name} activated"

    x = convolution(network._conv_stem, "pictures", activated=True)
    levels = []
    for number, block in enumerate(network._blocks):
        before = x
        if block._widens:
            x = convolution(block._expand_conv, x, activated=True)
        x = convolution(block._depthwise_conv, x, activated=True)
        x = convolution(block._project_conv, x, activated=False)
        if block._adds:
            nodes.append(helper.make_node("Add", [before, x], [f"{x} added"]))
            x = f"{x} added"
        if number in network._level_ends:
            levels.append(x)
    outcomes = [convolution(network._conv_head, x, activated=True)] if whole else levels
    sizes = ("batch", "channels", "rows", "columns")
    shapes = {name: [f"{size} of {name}" for size in sizes] for name in outcomes}
    graph = helper.make_graph(
        nodes,
        "maps",
        [helper.make_tensor_value_info("pictures", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        values,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], producer_name="deixis")
    model.ir_version = _IR_VERSION
    return bytes(model.SerializeToString())
