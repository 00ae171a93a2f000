"""A finished run of the kind `pictures` as an encoder bundle: both towers as ONNX, vocabulary, manifest.

Both graphs are written from the trained modules, layer by layer: a batch of any size, texts of any length. A recurrence
is one node, told the texts' lengths, so that padding never reaches a state that counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from deixis.errors import DeixisError
from deixis.learning.end_to_end import TOWER, PictureRecipe, TextTower, load_text_tower
from deixis.learning.judging import read_recipe
from deixis.learning.runs import read_model
from deixis.search.bundles import PICTURES, TEXTS, VOCABULARY, Manifest, Weights, file_record, write_manifest
from deixis.search.onnx_graph import Graph, Precision
from deixis.text.features import TokenIds
from deixis.vision.efficientnet_lite import EfficientNetLite
from deixis.vision.tower import PictureTower, load_tower

#: The order of gates: ONNX's as places in PyTorch's (GRU: z, r, h of r, z, n; LSTM: i, o, f, c of i, f, g, o).
_GATES = {"gru": (1, 0, 2), "lstm": (0, 3, 1, 2)}


def export_onnx(run: Path, out: Path, *, weights: Weights = "mixed") -> Manifest:
    """Write a bundle into the folder `out`, which is made where it is not there."""
    model, recipe = read_model(run), read_recipe(run)
    if not isinstance(recipe, PictureRecipe):
        raise DeixisError(f"{run}: only runs of the kind 'pictures' become encoders, not {recipe.kind!r}")
    texts, features = load_text_tower(run, recipe)
    if not isinstance(features, TokenIds):
        raise DeixisError(f"{run}: its text branch reads no token ids")
    tower = load_tower(run / TOWER)
    out.mkdir(parents=True, exist_ok=True)
    write_picture_graph(tower, out / PICTURES, "float32" if weights == "float32" else "float16")
    write_text_graph(texts, out / TEXTS, "int8" if weights == "mixed" else weights)
    features.vocabulary.save(out / VOCABULARY)
    files = {name: file_record(out / name) for name in (PICTURES, TEXTS, VOCABULARY)}
    manifest = Manifest(
        name=recipe.name,
        weights_sha256=model.weights_sha256,
        weights=weights,
        dim=tower.dim,
        side=tower.side,
        files=files,
    )
    write_manifest(out, manifest)
    return manifest


def write_picture_graph(tower: PictureTower, path: Path, precision: Precision) -> None:
    """Bytes `pictures` (batch, 3, side, side) to unit `rows`. The tower's normalizations are folded on the way."""
    tower.backbone.fuse()
    graph = Graph(precision)
    scaled = graph.node("Cast", "pictures", to=1)
    scaled = graph.node("Div", graph.node("Sub", scaled, graph.value(127.0)), graph.value(128.0))
    maps = _backbone(graph, tower.backbone, scaled, tower.side)
    cells = graph.node("Flatten", graph.node("Transpose", maps, perm=[0, 2, 3, 1]), axis=3)
    side = -(-tower.side // 32)
    cells = graph.node("Reshape", cells, graph.value([-1, side * side, tower.backbone.channels]))
    weights = graph.node("Softmax", _linear(graph, tower.keys, cells), axis=1)
    weights = graph.node("Transpose", weights, perm=[0, 2, 1])
    attended = graph.node("MatMul", weights, _linear(graph, tower.values, cells))
    attended = graph.node("Reshape", attended, graph.value([-1, tower.queries * tower.dim]))
    # GELU: x/2 · (1 + erf(x/√2))
    error = graph.node("Erf", graph.node("Div", attended, graph.value(2**0.5)))
    half = graph.node("Mul", attended, graph.value(0.5))
    activated = graph.node("Mul", half, graph.node("Add", error, graph.value(1.0)))
    mean = graph.node("ReduceMean", cells, graph.value([1]), keepdims=0)
    pooled = graph.node("Add", _linear(graph, tower.mean, mean), _linear(graph, tower.mix, activated))
    shape = ("uint8", ("batch", 3, tower.side, tower.side))
    graph.save(path, {"pictures": shape}, _unit(graph, pooled), tower.dim)


def write_text_graph(texts: TextTower, path: Path, precision: Precision) -> None:
    """Token `ids` (batch, longest), padded at the end, and `lengths` (batch,) of at least 1, to unit `rows`."""
    graph, encoder = Graph(precision), texts.encoder
    recurrence = encoder.recurrence
    ids = graph.node("Transpose", "ids", perm=[1, 0])
    words = graph.node("Gather", graph.weight(_array(encoder.words.weight)), ids)  # (longest, batch, word)
    lengths = graph.node("Cast", "lengths", to=6)
    kind = "gru" if isinstance(recurrence, nn.GRU) else "lstm"
    directions = 2 if recurrence.bidirectional else 1
    options: dict[str, Any] = {
        "hidden_size": recurrence.hidden_size,
        "direction": "bidirectional" if recurrence.bidirectional else "forward",
    }
    if kind == "gru":
        options["linear_before_reset"] = 1
    gates = [graph.weight(_gates(recurrence, kind, name, directions)) for name in ("weight_ih", "weight_hh")]
    biases = [_gates(recurrence, kind, name, directions) for name in ("bias_ih", "bias_hh")]
    bias = graph.value(np.concatenate(biases, 1))
    states = graph.node(kind.upper(), words, *gates, bias, lengths, outputs=2, **options)
    pooled = _pooled(graph, states, encoder.pooling, directions * recurrence.hidden_size)
    embedded = _linear(graph, texts.project, pooled)
    inputs = {"ids": ("int64", ("batch", "longest")), "lengths": ("int64", ("batch",))}
    graph.save(path, inputs, _unit(graph, embedded), texts.project.out_features)


def _pooled(graph: Graph, states: str, pooling: str, dim: int) -> str:
    """One vector a text from states (longest, directions, batch, hidden), which are zero after a text's end."""
    if pooling == "last":
        return graph.node("Reshape", graph.node("Transpose", f"{states}.1", perm=[1, 0, 2]), graph.value([-1, dim]))
    flat = graph.node("Transpose", states, perm=[2, 0, 1, 3])
    flat = graph.node("Reshape", flat, graph.value([0, 0, dim]))  # (batch, longest, dim)
    counts = graph.node("Unsqueeze", "lengths", graph.value([1]))
    if pooling == "mean":
        total = graph.node("ReduceSum", flat, graph.value([1]), keepdims=0)
        return graph.node("Div", total, graph.node("Cast", counts, to=1))
    longest = graph.node("Squeeze", graph.node("Shape", "ids", start=1), graph.value([0]))
    zero, one = (graph.value(np.array(number, np.int64)) for number in (0, 1))
    inside = graph.node("Less", graph.node("Range", zero, longest, one), counts)  # (batch, longest)
    inside = graph.node("Unsqueeze", inside, graph.value([2]))
    kept = graph.node("Where", inside, flat, graph.value(float(np.finfo(np.float32).min)))
    return graph.node("ReduceMax", kept, graph.value([1]), keepdims=0)


def _backbone(graph: Graph, network: EfficientNetLite, pictures: str, side: int) -> str:
    """The map of an EfficientNet-Lite whose normalizations are folded (`EfficientNetLite.map`)."""
    x, side = _convolution(graph, network._conv_stem, pictures, side, activated=True)
    for block in network._blocks:
        before = x
        if block._widens:
            x, side = _convolution(graph, block._expand_conv, x, side, activated=True)
        x, side = _convolution(graph, block._depthwise_conv, x, side, activated=True)
        x, side = _convolution(graph, block._project_conv, x, side, activated=False)
        x = graph.node("Add", before, x) if block._adds else x
    return _convolution(graph, network._conv_head, x, side, activated=True)[0]


def _convolution(graph: Graph, layer: Any, x: str, side: int, *, activated: bool) -> tuple[str, int]:
    """Padded as TensorFlow's "SAME" (ONNX: SAME_UPPER), then ReLU6; the outcome's name and side."""
    kernel, stride = layer.kernel_size[0], layer.stride[0]
    after = -(-side // stride)
    missing = max((after - 1) * stride + kernel - side, 0)
    first, last = (missing // 2, missing - missing // 2) if stride > 1 else (kernel // 2, kernel // 2)
    x = graph.node(
        "Conv",
        x,
        graph.weight(_array(layer.weight)),
        graph.weight(_array(layer.bias)),
        kernel_shape=[kernel] * 2,
        strides=[stride] * 2,
        pads=[first, first, last, last],
        group=layer.groups,
    )
    return (graph.node("Clip", x, graph.value(0.0), graph.value(6.0)) if activated else x), after


def _linear(graph: Graph, layer: nn.Linear, x: str) -> str:
    weight = graph.node("Transpose", graph.weight(_array(layer.weight)), perm=[1, 0])
    return graph.node("Add", graph.node("MatMul", x, weight), graph.weight(_array(layer.bias)))


def _unit(graph: Graph, rows: str) -> str:
    length = graph.node("ReduceL2", rows, graph.value([1]), keepdims=1)
    return graph.node("Div", rows, graph.node("Max", length, graph.value(1e-12)))


def _gates(recurrence: nn.RNNBase, kind: str, name: str, directions: int) -> NDArray[np.float32]:
    """Weights or biases of all gates in ONNX's order, `(directions, gates · hidden, …)`."""
    order, parts = _GATES[kind], []
    for suffix in ("_l0", "_l0_reverse")[:directions]:
        blocks = np.split(_array(getattr(recurrence, name + suffix)), len(order))
        parts.append(np.concatenate([blocks[place] for place in order]))
    return np.stack(parts)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    values: NDArray[np.float32] = tensor.detach().float().cpu().numpy()
    return values
