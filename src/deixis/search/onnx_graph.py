"""A small writer of ONNX graphs, with weights kept as float32, float16 or int8.

Smaller weights are turned into float32 by nodes of the graph itself, which the runtime does once, when it loads the
file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx import checker as onnx_checker

from deixis.files import atomic_write

Precision = Literal["float32", "float16", "int8"]
#: Read by every onnxruntime since 1.15.
OPSET, IR_VERSION = 18, 8
#: Element types of graph inputs, by NumPy's names.
_TYPES = {"uint8": TensorProto.UINT8, "int64": TensorProto.INT64, "float32": TensorProto.FLOAT}


class Graph:
    """Nodes in order; every method that adds one answers with the name of its outcome."""

    def __init__(self, precision: Precision) -> None:
        self._precision = precision
        self._nodes: list[Any] = []
        self._values: list[Any] = []

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node; where it has several outputs, the first is the answer and the others end in `.1`, `.2`, …"""
        name = f"{kind}_{len(self._nodes)}"
        names = [name, *(f"{name}.{number}" for number in range(1, outputs))]
        self._nodes.append(helper.make_node(kind, list(inputs), names, name=name, **attributes))
        return name

    def value(self, array: NDArray[Any] | Sequence[int] | float) -> str:
        """A constant as it is; plain numbers are float32, lists are int64."""
        if not isinstance(array, np.ndarray):
            array = np.asarray(array, np.float32 if isinstance(array, float) else np.int64)
        name = f"value_{len(self._values)}"
        self._values.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def weight(self, array: NDArray[Any]) -> str:
        """Learned numbers, kept as the graph's precision says; int8 has one scale a row of the output, vectors none."""
        if self._precision == "float32" or (array.ndim == 1 and self._precision == "int8"):
            return self.value(array.astype(np.float32))
        if self._precision == "float16":
            return self.node("Cast", self.value(array.astype(np.float16)), to=TensorProto.FLOAT)
        # Kernels are (out, in, rows, columns); recurrences (directions, out, in); others (out, in).
        axes = (1, 2, 3) if array.ndim == 4 else (array.ndim - 1,)
        scale = np.maximum(np.abs(array).max(axes, keepdims=True) / 127, 1e-12).astype(np.float32)
        small = self.value(np.rint(array / scale).astype(np.int8))
        return self.node("Mul", self.node("Cast", small, to=TensorProto.FLOAT), self.value(scale))

    def save(self, path: Path, inputs: Mapping[str, tuple[str, Sequence[int | str]]], outcome: str, dim: int) -> None:
        """Write the graph. `inputs` have an element type and a shape, where a name stands for any size."""
        self._nodes.append(helper.make_node("Identity", [outcome], ["rows"]))
        graph = helper.make_graph(
            self._nodes,
            path.stem,
            [helper.make_tensor_value_info(name, _TYPES[kind], shape) for name, (kind, shape) in inputs.items()],
            [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["batch", dim])],
            self._values,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="deixis")
        model.ir_version = IR_VERSION
        onnx_checker.check_model(model, full_check=True)
        with atomic_write(path) as stream:
            stream.write(model.SerializeToString())
