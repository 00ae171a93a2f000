"""Proposals: regions nobody drew, by several methods behind one protocol.

`learned` was trained on drawn boxes and says so (`saw_boxes`); the others have seen none. Every method ranks its boxes
and spends its budget through `diversified`. Its overlap was chosen on validation pictures of Flickr8k: the loosest
that costs at most half a point of recall at 100 boxes and IoU 0.5, since looser ones fit boxes better.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from deixis.corpus.boxes import Boxes, suppress
from deixis.errors import DeixisError

#: Names of the methods; the file of a trained proposer (.safetensors) is one more.
METHODS = ("learned", "edge-boxes", "selective-search", "selective-search-quality", "grid")


class Proposals(NamedTuple):
    """Boxes `(n, 4)` in the picture's pixels, best first, and their scores `(n,)`."""

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]


class ProposalMethod(Protocol):
    """Finds boxes in a picture: the same picture gives the same boxes, in any order of calls and in any thread."""

    name: str
    saw_boxes: bool
    #: All that decides the boxes beside the name: parameters, and the hash of trained weights.
    settings: Mapping[str, str | int | float]

    def propose(self, picture: Pillow.Image, count: int) -> Proposals:
        """At most `count` boxes inside an RGB picture, ranked, no two overlapping more than the method's budget."""


def diversified(boxes: Boxes, scores: NDArray[np.floating], overlap: float, count: int) -> Proposals:
    """The best `count` boxes, none with an intersection over union of more than `overlap` with a better one."""
    kept = suppress(boxes, scores, overlap, count)
    return Proposals(boxes[kept].astype(np.float32), scores[kept].astype(np.float32))


def load_method(
    name: str | Path, *, edge_model: str | Path | None = None, device: str = "cpu", exported: bool = False
) -> ProposalMethod:
    """A method by name, or a trained proposer by its file.

    Args:
        name: one of `METHODS`, or a path that ends in .safetensors.
        edge_model: a structured-forest model for `edge-boxes`.
        device: where the learned proposer runs.
        exported: on a CPU, run it with onnxruntime: seconds to begin with, then about twice as fast.
    """
    if edge_model is not None and name != "edge-boxes":
        raise DeixisError(f"an edge model serves edge-boxes alone, not {name}")
    # Each method is imported when it is asked for: PyTorch and OpenCV take a second each.
    if name == "learned" or str(name).endswith(".safetensors"):
        from deixis.vision.learned_proposals import BUNDLED, LearnedProposals

        return LearnedProposals.load(BUNDLED if name == "learned" else name, device=device, exported=exported)
    if name == "edge-boxes":
        from deixis.vision.edge_boxes import EdgeBoxes

        return EdgeBoxes(edge_model)
    if name in ("selective-search", "selective-search-quality"):
        from deixis.vision.selective_search import SelectiveSearch

        return SelectiveSearch(quality=name == "selective-search-quality")
    if name == "grid":
        from deixis.vision.grid_proposals import GridProposals

        return GridProposals()
    raise DeixisError(f"unknown proposals {str(name)!r}; known: {', '.join(METHODS)}, or a .safetensors file")
