"""Proposals by the network of `deixis.vision.proposer`, and the file of its weights.

The packaged weights were trained by `deixis proposals train` on the 6,000 training pictures of Flickr8k with the boxes
of Flickr30k Entities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from PIL import Image as Pillow
from torch import Tensor

from deixis.errors import DeixisError, InputError
from deixis.vision.box_tensors import suppress_batch
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite
from deixis.vision.onnx_export import OnnxFunction, cached_function
from deixis.vision.proposals import Proposals
from deixis.vision.proposer import GROUPS, Proposer, normalize, squashed
from deixis.vision.weights import file_sha256, fill_network, read_network, save_network, state_sha256

BUNDLED = Path(__file__).with_name("models") / "proposer.safetensors"

#: Pictures per pass of the network: on a CPU the maps of more than one do not fit into its cache.
PASS = {"cpu": 1, "cuda": 64}

_KIND = "deixis proposer 1"
#: The backbone's classifier is not used and not stored.
_NOT_KEPT = ("backbone._conv_head.", "backbone._bn1.", "backbone._fc.")


class LearnedProposals:
    """A trained network; `load` opens its file."""

    name = "learned"
    saw_boxes = True
    overlap = 0.6

    def __init__(self, model: Proposer, side: int, weights_sha256: str = "", exported: bool = False) -> None:
        self.model, self.side = model.eval(), side
        self.device = next(model.parameters()).device.type
        # The same function without batch norm, in the layout that convolutions are fastest in.
        network = deepcopy(self.model)
        network.backbone.fuse()
        self._run: Callable[[Tensor], Sequence[Tensor]] = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if exported and self.device == "cpu":
            graph = _exported(network, side)
            self._run = lambda pictures: graph(pictures=pictures)
        self.settings: Mapping[str, str | int | float] = {
            "backbone": model.backbone_name,
            "side": side,
            "overlap": self.overlap,
            "weights_sha256": weights_sha256,
        }

    def propose(self, picture: Pillow.Image, count: int) -> Proposals:
        boxes, scores = self.propose_batch(squashed(picture, self.side)[None], count)[0]
        return Proposals(boxes * np.array([picture.width, picture.height] * 2, dtype=np.float32), scores)

    @torch.inference_mode()
    def propose_batch(self, pictures: Tensor, count: int) -> list[Proposals]:
        """The boxes in [0, 1] of each picture, from bytes `(batch, 3, side, side)`."""
        passes = [self._candidates(part.to(self.device), count) for part in torch.split(pictures, PASS[self.device])]
        boxes, scores = (torch.cat(parts) for parts in zip(*passes, strict=True))
        rows, counts = suppress_batch(boxes, scores, self.overlap, count)
        chosen_boxes = boxes.gather(1, rows[..., None].expand(-1, -1, 4)).cpu().numpy()
        quality = scores.gather(1, rows).cpu().numpy()
        return [
            Proposals(picture_boxes[:picture_count], score[:picture_count])
            for picture_boxes, score, picture_count in zip(chosen_boxes, quality, counts.tolist(), strict=True)
        ]

    def _candidates(self, pictures: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Boxes `(batch, n, 4)` and scores, many more than `count`, since suppression removes most of them."""
        floats = normalize(pictures).to(memory_format=torch.channels_last)
        with torch.autocast(pictures.device.type, torch.bfloat16, enabled=pictures.is_cuda):
            logits, all_boxes, *_ = self._run(floats)
        quality = logits.float().amax(-1)
        top = quality.topk(min(max(2000, 10 * count), quality.shape[1]), dim=1)
        boxes = all_boxes.gather(1, top.indices[..., None].expand(-1, -1, 4)).clamp(0, 1)
        return boxes, top.values.sigmoid()

    @classmethod
    def load(cls, path: str | Path, *, device: str = "cpu", exported: bool = False) -> LearnedProposals:
        """Open a file written by `save_proposer`; anything else is an `InputError`."""
        model, side = _load_proposer(Path(path))
        return cls(model.to(checked_device(device)), side, file_sha256(Path(path)), exported)


def _exported(network: Proposer, side: int) -> OnnxFunction:
    axes = {name: {0: "batch"} for name in ("pictures", "logits", "boxes")}
    key = f"proposer-{side}-{state_sha256(network)[:32]}"
    example = {"pictures": torch.zeros(2, 3, side, side)}
    return cached_function(key, network, lambda pictures: network(pictures)[:2], example, ["logits", "boxes"], axes)


def checked_device(name: str) -> torch.device:
    """The device of a name; `auto` is a GPU if there is one."""
    if name not in ("auto", "cpu", "cuda"):
        raise DeixisError(f"unknown device {name!r}; known: auto, cpu, cuda")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise DeixisError("there is no CUDA device; use --device cpu")
    return torch.device(name)


def save_proposer(model: Proposer, side: int, path: str | Path) -> None:
    """Save weights as safetensors of 8-bit integers, with the settings of the network in the metadata."""
    description = {"kind": _KIND, "backbone": model.backbone_name, "width": str(model.width), "side": str(side)}
    save_network(model, path, description, skip=_NOT_KEPT, integers=True)


def _load_proposer(path: Path) -> tuple[Proposer, int]:
    description, tensors = read_network(path, _KIND, "a trained proposer")
    try:
        backbone, width, side = description["backbone"], int(description["width"]), int(description["side"])
    except (KeyError, ValueError) as fault:
        raise InputError(path, f"its description is damaged ({fault})", "metadata") from None
    if backbone not in VARIANTS or width not in range(GROUPS, 1025, GROUPS):
        raise InputError(path, f"no network {backbone!r} of width {width} is known", "metadata")
    if not 32 <= side <= 2048:
        raise InputError(path, f"a side of {side} pixels is out of range", "metadata")
    model = Proposer(EfficientNetLite(VARIANTS[backbone]), backbone, width)
    fill_network(model, tensors, path, skip=_NOT_KEPT)
    return model, side
