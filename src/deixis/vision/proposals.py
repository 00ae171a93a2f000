"""Region proposals by several methods behind one protocol.

`learned` was trained on ground-truth boxes (`saw_boxes`); the other methods have seen none. All methods rank boxes and
select them with `diversified`. The allowed overlap of each was chosen on validation pictures of Flickr8k: the
largest one that costs at most half a point of recall at 100 boxes and IoU 0.5, since larger ones fit boxes better.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from deixis.corpus.boxes import Boxes, suppress
from deixis.errors import DeixisError

if TYPE_CHECKING:
    from deixis.vision import EdgeBoxesSettings

#: Names of the methods; the file of a trained proposer (.safetensors) is also accepted.
METHODS = ("learned", "edge-boxes", "selective-search", "selective-search-quality", "grid")


class Proposals(NamedTuple):
    """Boxes `(n, 4)` in the picture's pixels, best first, and their scores `(n,)`."""

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]


class ProposalMethod(Protocol):
    """Finds boxes in a picture. The same picture always gives the same boxes; methods are thread-safe."""

    name: str
    saw_boxes: bool
    #: What determines the boxes beside the name: parameters, and the hash of trained weights.
    settings: Mapping[str, str | int | float]

    def propose(self, picture: Pillow.Image, count: int) -> Proposals:
        """At most `count` boxes of an RGB picture, ranked, that overlap at most as much as the method allows."""


def diversified(boxes: Boxes, scores: NDArray[np.floating], overlap: float, count: int) -> Proposals:
    """The best `count` boxes, without those whose IoU with a better one is more than `overlap`."""
    indices = suppress(boxes, scores, overlap, count)
    return Proposals(boxes[indices].astype(np.float32), scores[indices].astype(np.float32))


def load_method(
    name: str | Path,
    *,
    edge_model: str | Path | None = None,
    edge_boxes: EdgeBoxesSettings | None = None,
    device: str = "cpu",
    exported: bool = False,
) -> ProposalMethod:
    """A method by name, or a trained proposer by its file.

    Args:
        name: one of `METHODS`, or a path that ends in .safetensors.
        edge_model: the structured forest of `edge-boxes`.
        edge_boxes: parameters of `edge-boxes`; by default those chosen on validation pictures.
        device: where the learned proposer runs.
        exported: on a CPU, run it with onnxruntime: takes seconds to start, then about twice as fast.
    """
    if edge_model is not None and name != "edge-boxes":
        raise DeixisError(f"an edge model is for edge-boxes only, not {name}")
    if edge_boxes is not None and name != "edge-boxes":
        raise DeixisError(f"parameters of EdgeBoxes are for edge-boxes only, not {name}")
    # Imported on demand: PyTorch and OpenCV take a second each.
    if name == "learned" or str(name).endswith(".safetensors"):
        from deixis.vision.learned_proposals import BUNDLED, LearnedProposals

        return LearnedProposals.load(BUNDLED if name == "learned" else name, device=device, exported=exported)
    if name == "edge-boxes":
        from deixis.vision.edge_boxes import EdgeBoxes

        return EdgeBoxes(edge_model, edge_boxes)
    if name in ("selective-search", "selective-search-quality"):
        from deixis.vision.edge_boxes import SelectiveSearch

        return SelectiveSearch(quality=name == "selective-search-quality")
    if name == "grid":
        from deixis.vision.grid_proposals import GridProposals

        return GridProposals()
    raise DeixisError(f"unknown proposals {str(name)!r}; known: {', '.join(METHODS)}, or a .safetensors file")
