"""A small writer of ONNX graphs whose weights lie in a bundle's safetensors file.

Weights are initializers with external data: a place in that file. Smaller ones than float32 are turned into float32 by
nodes of the graph itself, which the runtime does once, when it loads the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx import checker as onnx_checker

from deixis.adapters.weight_files import SCALE, WeightFile
from deixis.files import atomic_write

#: Read by every onnxruntime since 1.15.
OPSET, IR_VERSION = 18, 8
#: Element types of graph inputs, by NumPy's names, and of weights, by safetensors'.
_TYPES = {"uint8": TensorProto.UINT8, "int64": TensorProto.INT64, "float32": TensorProto.FLOAT}
_KINDS = {"F32": TensorProto.FLOAT, "F16": TensorProto.FLOAT16, "I8": TensorProto.INT8}


class Graph:
    """Nodes in order; every method that adds one answers with the name of its outcome."""

    def __init__(self, weights: WeightFile) -> None:
        self._weights = weights
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

    def weight(self, name: str, part: int = 0, parts: int = 1) -> str:
        """Learned numbers as float32: all of a tensor, or one of so many equal parts of its first axis."""
        values = self._external(name, part, parts)
        kind = self._weights.place(name).kind
        if kind == "F32":
            return values
        values = self.node("Cast", values, to=TensorProto.FLOAT)
        return values if kind == "F16" else self.node("Mul", values, self._external(name + SCALE, part, parts))

    def _external(self, name: str, part: int, parts: int) -> str:
        place = self._weights.place(name)
        length = place.length // parts
        tensor = TensorProto(
            name=f"{name}[{part}/{parts}]" if parts > 1 else name,
            data_type=_KINDS[place.kind],
            dims=(place.shape[0] // parts, *place.shape[1:]),
            data_location=TensorProto.EXTERNAL,
        )
        assert length * parts == place.length == prod(place.shape) * {"F32": 4, "F16": 2, "I8": 1}[place.kind]
        where = {"location": self._weights.path.name, "offset": place.offset + part * length, "length": length}
        for key, told in where.items():
            tensor.external_data.add(key=key, value=str(told))
        self._values.append(tensor)
        return str(tensor.name)

    def save(
        self,
        path: Path,
        inputs: Mapping[str, tuple[str, Sequence[int | str]]],
        outcomes: Mapping[str, tuple[str, Sequence[int | str]]],
    ) -> None:
        """Write the graph beside its weights.

        Args:
            inputs: the type and shape of each; in a shape, a name stands for any size.
            outcomes: what each is inside the graph, and its shape; all are float32.
        """
        self._nodes += [helper.make_node("Identity", [inside], [name]) for name, (inside, _) in outcomes.items()]
        graph = helper.make_graph(
            self._nodes,
            path.stem,
            [helper.make_tensor_value_info(name, _TYPES[kind], shape) for name, (kind, shape) in inputs.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, (_, shape) in outcomes.items()],
            self._values,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="deixis")
        model.ir_version = IR_VERSION
        with atomic_write(path) as stream:
            stream.write(model.SerializeToString())
        # By path, since the weights are looked up beside it.
        onnx_checker.check_model(str(path), full_check=True)
