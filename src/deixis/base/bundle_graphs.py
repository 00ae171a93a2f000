"""The graphs of a bundle, exported from its PyTorch networks; weights stay in the bundle's one file of weights.

There is a graph of the backbone, for pictures of any size, and one of each head (`deixis.adapters.bundles`). A weight
is external data: a place in the file. Weights kept in fewer bits than float32 are turned into float32 by nodes of the
graph, which onnxruntime computes once, when it opens it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deixis.adapters.bundles import (
    BACKBONE,
    CAPTION_START,
    CAPTION_STEP,
    GROUNDING_BACKBONE,
    PHRASES,
    PICTURES,
    PROPOSALS,
    REGIONS,
    TEXTS,
)
from deixis.adapters.weight_files import SCALE, WeightFile
from deixis.base.grounding_model import GroundingModel
from deixis.base.grounding_network import Captions, GroundingNetwork, GroundingRecipe, Regions
from deixis.base.region_colours import thumbnail
from deixis.base.text_tower import TextTower
from deixis.corpus import TYPES
from deixis.corpus.boxes import suppress
from deixis.files import atomic_write
from deixis.papers.dvsa.captioner_model import CaptionerModel
from deixis.text.vocabulary import Vocabulary
from deixis.vision.efficientnet_lite import EfficientNetLite
from deixis.vision.onnx_export import Axes, export
from deixis.vision.proposer import decode, normalize
from deixis.vision.tower import PictureTower

#: What `export` puts before the names of weights.
_PREFIX = "network."


class Networks(NamedTuple):
    """What goes into a bundle; the batch norm of every backbone is folded."""

    tower: PictureTower
    texts: TextTower
    vocabulary: Vocabulary
    grounder: GroundingModel | None = None
    captioner: CaptionerModel | None = None

    def modules(self) -> nn.ModuleDict:
        """The networks by the prefixes of their weights in the bundle."""
        parts: dict[str, nn.Module] = {"pictures": self.tower, "texts": self.texts}
        if self.grounder is not None:
            parts["grounding"] = self.grounder.network
        if self.captioner is not None:
            parts["captioner"] = self.captioner.network
        return nn.ModuleDict(parts).cpu().eval()


class Graph(NamedTuple):
    """What is exported as one graph."""

    function: Callable[..., Any]
    inputs: Mapping[str, Tensor]
    outputs: list[str]
    axes: Axes


def write_graphs(folder: Path, networks: Networks, weights: WeightFile) -> list[str]:
    """Write the graphs of networks beside their weights; returns the names of the files."""
    graphs = {
        BACKBONE: backbone_graph(networks.tower.backbone),
        PICTURES: picture_graph(networks.tower),
        TEXTS: text_graph(networks.texts),
    }
    if networks.grounder is not None:
        network = networks.grounder.network
        graphs |= _grounding(network)
        if not _same_pyramid(network.proposer.backbone, networks.tower.backbone):
            graphs[GROUNDING_BACKBONE] = backbone_graph(network.proposer.backbone, whole=False)
    if networks.captioner is not None:
        graphs |= _captioning(networks.captioner, networks.tower)
    modules = networks.modules()
    for name, graph in graphs.items():
        write_graph(folder / name, modules, graph, weights)
    return list(graphs)


def write_graph(path: Path, modules: nn.ModuleDict, graph: Graph, weights: WeightFile) -> None:
    """Write one graph of `modules`, whose names are the prefixes of their weights in the file."""
    exported = export(modules, *graph, fold=False)
    with atomic_write(path) as stream:
        stream.write(with_shared_weights(exported, weights))


def backbone_graph(network: EfficientNetLite, *, whole: bool = True) -> Graph:
    """Bytes to the pyramid's maps and, if `whole`, the map of the last convolution."""

    def see(pictures: Tensor) -> list[Tensor]:
        levels = network.pyramid(normalize(pictures))
        return [*levels, network.head(levels[-1])] if whole else levels

    outputs = [*_LEVELS, "map"] if whole else _LEVELS
    axes = {"pictures": {0: "batch", 2: "height", 3: "width"}}
    axes |= {name: {0: "batch", 2: f"rows of {name}", 3: f"columns of {name}"} for name in outputs}
    return Graph(see, {"pictures": torch.zeros(2, 3, 64, 64, dtype=torch.uint8)}, outputs, axes)


_LEVELS = ["level_8", "level_16", "level_32"]


def picture_graph(tower: PictureTower) -> Graph:
    """The map of a picture of the tower's side to unit `rows` and, where the tower has any, unit `cells`."""

    def embed(maps: Tensor) -> tuple[Tensor, ...]:
        rows = F.normalize(tower.pooled(maps))
        return (rows, tower.few_cells(tower.embed_cells(maps))) if tower.fine else (rows,)

    outputs = ["rows", "cells"] if tower.fine else ["rows"]
    example = {"map": torch.zeros(2, tower.backbone.channels, tower.map_side, tower.map_side)}
    return Graph(embed, example, outputs, _batches("map", *outputs))


def text_graph(texts: TextTower) -> Graph:
    """Token `ids`, padded with 0 at the end, to unit `rows` and, where the branch has them, weighted `words`."""
    outputs = ["rows", "words"] if texts.words is not None else ["rows"]
    axes = {"ids": {0: "batch", 1: "longest"}, "rows": {0: "batch"}, "words": {0: "batch", 1: "longest"}}
    ids = torch.tensor([[1, 2, 3], [1, 2, 0]])
    return Graph(texts.query, {"ids": ids}, outputs, {name: axes[name] for name in ("ids", *outputs)})


def _grounding(network: GroundingNetwork) -> dict[str, Graph]:
    """Of one picture: the regions that are proposed; what is seen in them; phrases among these regions."""
    side, strides = network.recipe.side, (8, 16, 32)
    channels = network.proposer.backbone.pyramid_channels
    cells = [-(-side // stride) for stride in strides]
    levels = {
        name: torch.zeros(1, count, size, size) for name, count, size in zip(_LEVELS, channels, cells, strict=True)
    }

    def propose(*pyramid: Tensor) -> tuple[Tensor, ...]:
        return proposals(*network.proposer.predict(pyramid, side), network.recipe)

    def encode(*inputs: Tensor) -> Tensor:
        *pyramid, boxes, types = inputs[: len(levels) + 2]
        thumbnails = [thumbnail(normalize(pictures)) for pictures in inputs[len(levels) + 2 :]]
        return network.encode_regions(pyramid, _all_real(boxes, types), *thumbnails)

    def point(encoded: Tensor, boxes: Tensor, *captions: Tensor) -> tuple[Tensor, Tensor]:
        answer = network.point(
            encoded, Regions(boxes, boxes[..., :0], boxes[..., 0] >= 0, all_real=True), Captions(*captions)
        )
        return answer.scores, answer.boxes

    regions = {"boxes": torch.rand(1, 5, 4).sort(-1).values, "types": torch.zeros(1, 5, len(TYPES))}
    phrases = {
        "tokens": torch.tensor([[[1, 2, 3, 1], [1, 2, 0, 0]]]),
        "caption": torch.tensor([[0, 0, 1]]),
        "start": torch.tensor([[0, 2, 0]]),
        "end": torch.tensor([[1, 4, 2]]),
    }
    seen = {"encoded": torch.zeros(1, 5, network.recipe.width + network.recipe.colours), "boxes": regions["boxes"]}
    pictures = {"pictures": torch.zeros(1, 3, side, side, dtype=torch.uint8)} if network.recipe.colours else {}
    by_region = {name: {1: "regions"} for name in ("boxes", "types", "encoded")}
    by_phrase = {name: {1: "phrases"} for name in ("caption", "start", "end")}
    both = {name: {1: "phrases", 2: "regions"} for name in ("scores", "moved")}
    proposed = {name: {1: "regions"} for name in ("region_boxes", "region_types")}
    return {
        PROPOSALS: Graph(propose, levels, list(proposed), proposed),
        REGIONS: Graph(encode, levels | regions | pictures, ["encoded"], by_region),
        PHRASES: Graph(
            point,
            seen | phrases,
            ["scores", "moved"],
            {**by_region, **by_phrase, **both, "tokens": {1: "captions", 2: "words"}},
        ),
    }


def proposals(logits: Tensor, offsets: Tensor, anchors: Tensor, recipe: GroundingRecipe) -> tuple[Tensor, Tensor]:
    """`GroundingNetwork.propose` for one picture: boxes and types of the anchors that are left, best first."""
    scores, best = logits[0].amax(-1).topk(min(recipe.candidates, logits.shape[1]))
    boxes = decode(offsets[0][best], anchors[best]).clamp(0, 1)
    chosen = _Suppression.apply(boxes, scores, recipe.overlap, recipe.regions)  # type: ignore[no-untyped-call]
    return boxes[chosen][None], logits[0][best[chosen]][None]


class _Suppression(torch.autograd.Function):
    """Non-maximum suppression as a node of ONNX: the indexes of the boxes that are left, best first."""

    @staticmethod
    def forward(ctx: Any, boxes: Tensor, scores: Tensor, overlap: float, count: int) -> Tensor:
        return torch.from_numpy(suppress(boxes.numpy(), scores.numpy(), overlap, count))

    @staticmethod
    def symbolic(g: Any, boxes: Any, scores: Any, overlap: float, count: int) -> Any:
        def constant(values: Any) -> Any:
            return g.op("Constant", value_t=torch.tensor(values))

        batch, group = constant([0]), constant([0, 1])
        most, threshold = constant([count]), constant([float(overlap)])
        # (boxes left, 3): picture, class, index.
        left = g.op(
            "NonMaxSuppression",
            g.op("Unsqueeze", boxes, batch),
            g.op("Unsqueeze", scores, group),
            most,
            threshold,
        )
        return g.op("Gather", left, g.op("Constant", value_t=torch.tensor(2)), axis_i=1)


def _all_real(boxes: Tensor, types: Tensor) -> Regions:
    """The regions of one picture, none of them padding."""
    return Regions(boxes, types, boxes[..., 0] >= 0, all_real=True)


def _captioning(model: CaptionerModel, tower: PictureTower) -> dict[str, Graph]:
    """The map of a picture to the states after the start; a word and the states before it to those after it.

    Both give the logits of the next word.
    """
    network = model.network

    def begin(maps: Tensor) -> tuple[Tensor, ...]:
        states = network.begin(tower.pooled(maps))
        return network.output(states[0]), *states

    def step(words: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        hidden, after = network.read(words[:, None], states)
        return network.output(hidden[:, 0]), *after

    count = 1 if isinstance(network.recurrence, nn.RNN) else 2
    before = {f"state_{number}": torch.zeros(3, network.recurrence.hidden_size) for number in range(count)}
    outputs = ["logits", *(f"next_{number}" for number in range(count))]
    map_axes = {"map": {0: "batch", 2: "rows", 3: "columns"}}
    maps = {"map": torch.zeros(2, tower.backbone.channels, 2, 2)}
    words = {"words": torch.tensor([1, 2, 3])}
    return {
        CAPTION_START: Graph(begin, maps, outputs, map_axes | _batches(*outputs)),
        CAPTION_STEP: Graph(step, words | before, outputs, _batches("words", *before, *outputs)),
    }


def _batches(*names: str) -> dict[str, dict[int, str]]:
    return {name: {0: "batch"} for name in names}


def _same_pyramid(one: EfficientNetLite, other: EfficientNetLite) -> bool:
    """Whether two backbones with folded batch norm give the same maps; their last convolutions may differ."""
    first, second = (
        {name: value for name, value in network.state_dict().items() if not name.startswith(("_conv_head", "_fc"))}
        for network in (one, other)
    )
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def with_shared_weights(graph: bytes, weights: WeightFile) -> bytes:
    """A graph whose weights are places in a bundle's file of weights instead of values."""
    import onnx
    from onnx import TensorProto, helper

    kinds = {"F32": TensorProto.FLOAT, "F16": TensorProto.FLOAT16, "I8": TensorProto.INT8}
    model = onnx.load_from_string(graph)
    values, converted = [], []

    def place(name: str) -> Any:
        kind, shape, offset, length = weights.place(name)
        tensor = TensorProto(name=name, data_type=kinds[kind], dims=shape, data_location=TensorProto.EXTERNAL)
        where = {"location": weights.path.name, "offset": offset, "length": length}
        for key, value in where.items():
            tensor.external_data.add(key=key, value=str(value))
        values.append(tensor)
        return tensor

    for initializer in model.graph.initializer:
        name = initializer.name.removeprefix(_PREFIX)
        if name == initializer.name:
            values.append(initializer)
        elif place(name).data_type == TensorProto.FLOAT:
            values[-1].name = initializer.name
        elif name + SCALE in weights:
            place(name + SCALE)
            converted.append(helper.make_node("Cast", [name], [f"{name} as float"], to=TensorProto.FLOAT))
            converted.append(helper.make_node("Mul", [f"{name} as float", name + SCALE], [initializer.name]))
        else:
            converted.append(helper.make_node("Cast", [name], [initializer.name], to=TensorProto.FLOAT))
    nodes = list(model.graph.node)
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.initializer.extend(values)
    model.graph.node.extend(converted + nodes)
    model.producer_name, model.producer_version = "deixis", ""
    return bytes(model.SerializeToString())
