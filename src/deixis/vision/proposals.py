"""Proposals: regions nobody drew, by several methods behind one protocol.

`learned` was trained on drawn boxes and says so (`saw_boxes`); the others have seen none.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow

from deixis.corpus.boxes import suppress
from deixis.errors import InputError
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite
from deixis.vision.proposer import Proposer, normalize, squashed


class Proposals(NamedTuple):
    """Boxes `(n, 4)` in the picture's pixels, best first, and their scores `(n,)`."""

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]


class ProposalMethod(Protocol):
    """Finds up to `count` boxes in a picture."""

    name: str
    saw_boxes: bool

    def propose(self, picture: Pillow.Image, count: int) -> Proposals:
        """Boxes inside the picture, ranked, no two overlapping more than the method's budget allows."""


class LearnedProposals:
    """The network of `deixis.vision.proposer`, trained on the boxes of a corpus."""

    saw_boxes = True

    def __init__(self, model: Proposer, side: int, overlap: float, name: str = "learned") -> None:
        self.name, self.side, self.overlap = name, side, overlap
        self.model = model.eval()

    def propose(self, picture: Pillow.Image, count: int) -> Proposals:
        pixels = squashed(picture, self.side)[None].to(next(self.model.parameters()).device)
        boxes, scores = self.propose_batch(pixels, count)[0]
        return Proposals(boxes * np.array([picture.width, picture.height] * 2, dtype=np.float32), scores)

    @torch.inference_mode()
    def propose_batch(self, pixels: torch.Tensor, count: int) -> list[Proposals]:
        """Squashed pictures as bytes `(batch, 3, side, side)` → boxes in [0, 1]."""
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=pixels.device.type == "cuda"):
            logits, boxes = self.model(normalize(pixels))
        quality = logits.float().amax(-1)
        # Many more candidates than wanted, so that suppression never runs dry.
        top = quality.topk(min(10 * count, quality.shape[1]), dim=1)
        found = boxes.float().gather(1, top.indices[..., None].expand(-1, -1, 4)).clamp(0, 1).cpu().numpy()
        scores = top.values.sigmoid().cpu().numpy()
        kept = [suppress(rows, values, self.overlap, count) for rows, values in zip(found, scores, strict=True)]
        return [Proposals(rows[keep], values[keep]) for rows, values, keep in zip(found, scores, kept, strict=True)]

    def save(self, path: str | Path) -> None:
        """Weights as float16 safetensors; what is needed to rebuild the network is in the file's metadata."""
        from safetensors.torch import save

        from deixis.files import atomic_write

        tensors = {
            name: value.detach().cpu().half() if value.is_floating_point() else value.cpu()
            for name, value in self.model.state_dict().items()
            if not name.startswith(("backbone._conv_head", "backbone._bn1.", "backbone._fc"))
        }
        metadata = {"kind": "deixis proposer 1", "side": str(self.side), "overlap": str(self.overlap)}
        metadata |= {"backbone": self.model.backbone_name, "width": str(self.model.width)}
        with atomic_write(path) as stream:
            stream.write(save({name: value.contiguous() for name, value in tensors.items()}, metadata))

    @classmethod
    def load(cls, path: str | Path) -> LearnedProposals:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("kind") != "deixis proposer 1":
                    raise InputError(path, "is not a trained proposer")
                tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as fault:
            raise InputError(path, f"cannot be read ({fault})") from None
        model = Proposer(EfficientNetLite(VARIANTS[metadata["backbone"]]), metadata["backbone"], int(metadata["width"]))
        missing, unexpected = model.load_state_dict(tensors, strict=False)
        if unexpected or any(not name.startswith("backbone._") for name in missing):
            raise InputError(path, "does not fit the proposer's architecture")
        return cls(model, int(metadata["side"]), float(metadata["overlap"]))
