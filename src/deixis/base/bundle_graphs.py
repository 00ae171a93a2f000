"""The two graphs of a bundle, written layer by layer from the networks: a batch of any size, texts of any length.

A recurrence is one node, told the texts' lengths, so that padding never reaches a state that counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from deixis.adapters.onnx_graph import Graph
from deixis.adapters.weight_files import WeightFile
from deixis.base.text_tower import TextTower
from deixis.vision.efficientnet_lite import EfficientNetLite
from deixis.vision.tower import POOL, PictureTower

#: The order of gates: ONNX's as places in PyTorch's (GRU: z, r, h of r, z, n; LSTM: i, o, f, c of i, f, g, o).
_GATES = {"gru": (1, 0, 2), "lstm": (0, 3, 1, 2)}


def write_picture_graph(tower: PictureTower, weights: WeightFile, path: Path, prefix: str = "pictures.") -> None:
    """Bytes `pictures` (batch, 3, side, side) to unit `rows` and, where the tower has any, unit `cells`.

    Weights are the folded ones of the file.
    """
    graph = Graph(weights)
    scaled = graph.node("Cast", "pictures", to=1)
    scaled = graph.node("Div", graph.node("Sub", scaled, graph.value(127.0)), graph.value(128.0))
    maps = _backbone(graph, tower.backbone, f"{prefix}backbone.", scaled, tower.side)
    cells = graph.node("Flatten", graph.node("Transpose", maps, perm=[0, 2, 3, 1]), axis=3)
    cells = graph.node("Reshape", cells, graph.value([-1, tower.map_side**2, tower.backbone.channels]))
    looked = graph.node("Softmax", _linear(graph, f"{prefix}keys", cells), axis=1)
    looked = graph.node("Transpose", looked, perm=[0, 2, 1])
    attended = graph.node("MatMul", looked, _linear(graph, f"{prefix}values", cells))
    attended = graph.node("Reshape", attended, graph.value([-1, tower.queries * tower.dim]))
    # GELU: x/2 · (1 + erf(x/√2))
    error = graph.node("Erf", graph.node("Div", attended, graph.value(2**0.5)))
    half = graph.node("Mul", attended, graph.value(0.5))
    activated = graph.node("Mul", half, graph.node("Add", error, graph.value(1.0)))
    mean = graph.node("ReduceMean", cells, graph.value([1]), keepdims=0)
    pooled = graph.node("Add", _linear(graph, f"{prefix}mean", mean), _linear(graph, f"{prefix}mix", activated))
    outcomes: dict[str, tuple[str, Sequence[int | str]]] = {"rows": (_unit(graph, pooled), ("batch", tower.dim))}
    if tower.fine:
        outcomes["cells"] = _few_cells(graph, tower, f"{prefix}cells", cells), ("batch", tower.cell_count, tower.fine)
    graph.save(path, {"pictures": ("uint8", ("batch", 3, tower.side, tower.side))}, outcomes)


def _few_cells(graph: Graph, tower: PictureTower, name: str, cells: str) -> str:
    """`PictureTower.few_cells`."""
    side = tower.map_side
    found = _unit(graph, _linear(graph, name, cells), axis=2)
    found = graph.node("Reshape", found, graph.value([-1, side, side, tower.fine]))
    found = graph.node("Transpose", found, perm=[0, 3, 1, 2])
    found = graph.node("AveragePool", found, kernel_shape=[POOL] * 2, strides=[POOL] * 2, ceil_mode=1)
    found = graph.node("Reshape", found, graph.value([-1, tower.fine, tower.cell_count]))
    return _unit(graph, graph.node("Transpose", found, perm=[0, 2, 1]), axis=2)


def write_text_graph(texts: TextTower, weights: WeightFile, path: Path, prefix: str = "texts.") -> None:
    """Token `ids` (batch, longest), padded at the end, and `lengths` (batch,) of at least 1, to unit `rows`.

    Where the branch has them, also to `words` (batch, longest, fine): unit vectors times their weights, zero past a
    text's end.
    """
    graph, encoder = Graph(weights), texts.encoder
    recurrence = encoder.recurrence
    ids = graph.node("Transpose", "ids", perm=[1, 0])
    words = graph.node("Gather", graph.weight(f"{prefix}encoder.words.weight"), ids)  # (longest, batch, word)
    lengths = graph.node("Cast", "lengths", to=6)
    kind = "gru" if isinstance(recurrence, nn.GRU) else "lstm"
    directions = 2 if recurrence.bidirectional else 1
    options: dict[str, Any] = {
        "hidden_size": recurrence.hidden_size,
        "direction": "bidirectional" if recurrence.bidirectional else "forward",
    }
    if kind == "gru":
        options["linear_before_reset"] = 1
    gates = [
        _gates(graph, kind, f"{prefix}encoder.recurrence.", name, directions)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    ]
    bias = graph.node("Concat", *gates[2:], axis=1)
    states = graph.node(kind.upper(), words, *gates[:2], bias, lengths, outputs=2, **options)
    dim = directions * recurrence.hidden_size
    # (batch, longest, dim), zero after a text's end
    flat = graph.node("Reshape", graph.node("Transpose", states, perm=[2, 0, 1, 3]), graph.value([0, 0, dim]))
    embedded = _linear(graph, f"{prefix}project", _pooled(graph, states, flat, encoder.pooling, dim))
    outcomes: dict[str, tuple[str, Sequence[int | str]]] = {
        "rows": (_unit(graph, embedded), ("batch", texts.project.out_features))
    }
    if texts.words is not None:
        shares = graph.node("Softmax", _where_inside(graph, _linear(graph, f"{prefix}weigh", flat)), axis=1)
        vectors = _unit(graph, _linear(graph, f"{prefix}words", flat), axis=2)
        shares = graph.node("Mul", shares, graph.value(texts.word_weight))
        outcomes["words"] = graph.node("Mul", vectors, shares), ("batch", "longest", texts.words.out_features)
    inputs = {"ids": ("int64", ("batch", "longest")), "lengths": ("int64", ("batch",))}
    graph.save(path, inputs, outcomes)


def _pooled(graph: Graph, states: str, flat: str, pooling: str, dim: int) -> str:
    """One vector a text from the recurrence's outcomes and its states (batch, longest, dim)."""
    if pooling == "last":
        return graph.node("Reshape", graph.node("Transpose", f"{states}.1", perm=[1, 0, 2]), graph.value([-1, dim]))
    if pooling == "mean":
        total = graph.node("ReduceSum", flat, graph.value([1]), keepdims=0)
        counts = graph.node("Unsqueeze", "lengths", graph.value([1]))
        return graph.node("Div", total, graph.node("Cast", counts, to=1))
    return graph.node("ReduceMax", _where_inside(graph, flat), graph.value([1]), keepdims=0)


def _where_inside(graph: Graph, values: str) -> str:
    """Values (batch, longest, …) of words, and the least number there is after a text's end."""
    longest = graph.node("Squeeze", graph.node("Shape", "ids", start=1), graph.value([0]))
    zero, one = (graph.value(np.array(number, np.int64)) for number in (0, 1))
    counts = graph.node("Unsqueeze", "lengths", graph.value([1]))
    inside = graph.node("Less", graph.node("Range", zero, longest, one), counts)  # (batch, longest)
    inside = graph.node("Unsqueeze", inside, graph.value([2]))
    return graph.node("Where", inside, values, graph.value(float(np.finfo(np.float32).min)))


def _backbone(graph: Graph, network: EfficientNetLite, prefix: str, pictures: str, side: int) -> str:
    """The map of an EfficientNet-Lite whose normalizations are folded (`EfficientNetLite.map`)."""
    x, side = _convolution(graph, network._conv_stem, f"{prefix}_conv_stem", pictures, side, activated=True)
    for number, block in enumerate(network._blocks):
        before, own = x, f"{prefix}_blocks.{number}."
        if block._widens:
            x, side = _convolution(graph, block._expand_conv, f"{own}_expand_conv", x, side, activated=True)
        x, side = _convolution(graph, block._depthwise_conv, f"{own}_depthwise_conv", x, side, activated=True)
        x, side = _convolution(graph, block._project_conv, f"{own}_project_conv", x, side, activated=False)
        x = graph.node("Add", before, x) if block._adds else x
    return _convolution(graph, network._conv_head, f"{prefix}_conv_head", x, side, activated=True)[0]


def _convolution(graph: Graph, layer: Any, name: str, x: str, side: int, *, activated: bool) -> tuple[str, int]:
    """Padded as TensorFlow's "SAME" (ONNX: SAME_UPPER), then ReLU6; the outcome's name and side."""
    kernel, stride = layer.kernel_size[0], layer.stride[0]
    after = -(-side // stride)
    missing = max((after - 1) * stride + kernel - side, 0)
    first, last = (missing // 2, missing - missing // 2) if stride > 1 else (kernel // 2, kernel // 2)
    x = graph.node(
        "Conv",
        x,
        graph.weight(f"{name}.weight"),
        graph.weight(f"{name}.bias"),
        kernel_shape=[kernel] * 2,
        strides=[stride] * 2,
        pads=[first, first, last, last],
        group=layer.groups,
    )
    return (graph.node("Clip", x, graph.value(0.0), graph.value(6.0)) if activated else x), after


def _linear(graph: Graph, name: str, x: str) -> str:
    weight = graph.node("Transpose", graph.weight(f"{name}.weight"), perm=[1, 0])
    return graph.node("Add", graph.node("MatMul", x, weight), graph.weight(f"{name}.bias"))


def _unit(graph: Graph, rows: str, axis: int = 1) -> str:
    length = graph.node("ReduceL2", rows, graph.value([axis]), keepdims=1)
    return graph.node("Div", rows, graph.node("Max", length, graph.value(1e-12)))


def _gates(graph: Graph, kind: str, prefix: str, name: str, directions: int) -> str:
    """Weights or biases of all gates in ONNX's order, `(directions, gates · hidden, …)`."""
    order, both = _GATES[kind], []
    for suffix in ("_l0", "_l0_reverse")[:directions]:
        blocks = [graph.weight(f"{prefix}{name}{suffix}", place, len(order)) for place in order]
        both.append(graph.node("Unsqueeze", graph.node("Concat", *blocks, axis=0), graph.value([0])))
    return graph.node("Concat", *both, axis=0)
