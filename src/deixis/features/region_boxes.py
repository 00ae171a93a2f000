"""Boxes of regions: those of the corpus, from a proposal method, or from an earlier extraction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from torch import Tensor

from deixis.corpus import Image
from deixis.corpus.boxes import box_array, iou_matrix, merge
from deixis.errors import InputError
from deixis.features.store import FeatureStore
from deixis.vision import EdgeBoxesSettings
from deixis.vision.backbones import stacked
from deixis.vision.learned_proposals import LearnedProposals
from deixis.vision.proposals import METHODS, ProposalMethod, load_method
from deixis.vision.proposer import squashed


class BoxSource(Protocol):
    """Gives the boxes of an image."""

    @property
    def provenance(self) -> Mapping[str, Any]:
        """What determines the boxes; `saw_boxes` is whether ground-truth boxes were used."""

    def __call__(self, image: Image, picture: Pillow.Image, count: int) -> NDArray[np.float32]:
        """At most `count` boxes `(boxes, 4)` in the picture's pixels, best first; called from reader threads."""


class DrawnBoxes:
    """The ground-truth boxes of an image."""

    provenance: Mapping[str, Any] = {"boxes": "drawn", "saw_boxes": True}

    def __call__(self, image: Image, picture: Pillow.Image, count: int) -> NDArray[np.float32]:
        boxes = image.scaled_boxes(*picture.size)[:count]
        return np.array([(box.x1, box.y1, box.x2, box.y2) for box in boxes], np.float32).reshape(-1, 4)


class MergedBoxes:
    """One box around the boxes of each chain, in the order of `image.chains`; chains without boxes are left out.

    The ground truth of plural phrases in the Entities and two-branch papers, and so the regions of training pairs.
    """

    provenance: Mapping[str, Any] = {"boxes": "chains", "saw_boxes": True}

    def __call__(self, image: Image, picture: Pillow.Image, count: int) -> NDArray[np.float32]:
        boxes = image.scaled_boxes(*picture.size)
        chains = [box_array(boxes[index] for index in chain.boxes) for chain in image.chains if chain.boxes]
        return np.array([merge(chain_boxes) for chain_boxes in chains[:count]], np.float32).reshape(-1, 4)


class ProposedBoxes:
    """The boxes of a proposal method."""

    def __init__(self, method: ProposalMethod) -> None:
        self._method = method
        self.provenance: Mapping[str, Any] = {
            "boxes": method.name,
            "saw_boxes": method.saw_boxes,
            "settings": dict(method.settings),
        }

    def __call__(self, image: Image, picture: Pillow.Image, count: int) -> NDArray[np.float32]:
        return self._method.propose(picture, count).boxes


class LearnedBoxes(ProposedBoxes):
    """Learned proposals, found for a whole batch at once."""

    def __init__(self, method: LearnedProposals) -> None:
        super().__init__(method)
        self._proposals = method

    def squashed(self, picture: Pillow.Image) -> Tensor:
        """The input of `find`: bytes `(3, side, side)`."""
        return squashed(picture, self._proposals.side)

    def find(self, pictures: Sequence[Tensor], count: int) -> list[NDArray[np.float32]]:
        """The boxes of each squashed picture `(boxes, 4)`, in [0, 1]."""
        proposals = self._proposals
        return [proposed.boxes for proposed in proposals.propose_batch(stacked(pictures, proposals.device), count)]


class StoredBoxes:
    """The boxes of an earlier extraction, such as EdgeBoxes found on a machine with OpenCV."""

    def __init__(self, folder: str | Path) -> None:
        self._store = FeatureStore(folder)
        origin = self._store.plan.provenance.get("regions")
        if not {"boxes", "size"} <= self._store.plan.arrays.keys() or not isinstance(origin, dict):
            raise InputError(folder, "is a feature store without boxes")
        known = ("boxes", "saw_boxes", "settings", "edge_boxes", "near_chains")
        of_boxes = {name: origin[name] for name in known if name in origin}
        self.provenance: Mapping[str, Any] = {**of_boxes, "box_store": self._store.fingerprint}

    def __call__(self, image: Image, picture: Pillow.Image, count: int) -> NDArray[np.float32]:
        boxes = self._store.boxes(image.id)[:count]
        original = self._store["size"][int(self._store.numbers([image.id])[0])]
        return np.asarray(boxes * np.tile(np.divide(picture.size, original), 2), np.float32)


class NearChains:
    """The boxes of a source that overlap the merged box of a chain by at least `overlap`: more training positives."""

    def __init__(self, source: BoxSource, overlap: float) -> None:
        self._source, self._overlap, self._merged = source, overlap, MergedBoxes()
        self.provenance: Mapping[str, Any] = {**source.provenance, "saw_boxes": True}

    def __call__(self, image: Image, picture: Pillow.Image, count: int) -> NDArray[np.float32]:
        boxes = self._source(image, picture, count)
        merged = self._merged(image, picture, len(image.chains))
        near = (iou_matrix(merged, boxes) >= self._overlap).any(0)
        return np.asarray(boxes[near], np.float32)


def load_boxes(
    name: str,
    *,
    edge_boxes: EdgeBoxesSettings | None = None,
    near_chains: float = 0.0,
    device: str = "cpu",
    exported: bool = False,
) -> BoxSource:
    """The boxes that a recipe names: `drawn`, `chains`, a proposal method, its file, or a feature store."""
    source = _source(name, edge_boxes, device, exported)
    return NearChains(source, near_chains) if near_chains else source


def _source(name: str, edge_boxes: EdgeBoxesSettings | None, device: str, exported: bool) -> BoxSource:
    if name == "drawn":
        return DrawnBoxes()
    if name == "chains":
        return MergedBoxes()
    if name not in METHODS and Path(name).is_dir():
        return StoredBoxes(name)
    method = load_method(name, edge_boxes=edge_boxes, device=device, exported=exported)
    return LearnedBoxes(method) if isinstance(method, LearnedProposals) else ProposedBoxes(method)
