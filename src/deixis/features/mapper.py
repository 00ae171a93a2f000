"""The mapper of a feature recipe: pictures through a backbone to `image`, `size` and, with regions, `regions`, `boxes`.

`boxes` are kept in the original picture's pixels, as a corpus' boxes are, also where the picture at hand is a smaller
copy; `size` (width, height) is the original's, or that of the picture at hand where the corpus does not know it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow
from torch import Tensor

from deixis.corpus import Image
from deixis.corpus.boxes import box_array, merge
from deixis.errors import DeixisError
from deixis.features.layout import ArraySpec
from deixis.features.recipe import FeatureRecipe, RegionRecipe
from deixis.features.writing import Features
from deixis.vision.backbones import Backbone, as_bytes, load_backbone, mean_vectors
from deixis.vision.proposals import ProposalMethod, load_method
from deixis.vision.reading import decode_picture, read_size
from deixis.vision.regions import Maps, box_coordinates, box_crops, region_vectors, with_context

#: Raise it when the same recipe comes to give other features.
VERSION = 1
#: Pictures in a batch: on a processor what stays in its cache, on a GPU what fills it.
BATCH_SIZE = {"cpu": 8, "cuda": 64}


class BoxSource(Protocol):
    """Where regions come from."""

    @property
    def provenance(self) -> Mapping[str, Any]:
        """What decides the boxes, and under `saw_boxes` whether drawn boxes had a part in it."""

    def __call__(self, image: Image, picture: Pillow.Image, count: int) -> NDArray[np.float32]:
        """At most `count` boxes `(boxes, 4)` in the picture's pixels, best first."""


class DrawnBoxes:
    """The boxes that the corpus has of an image."""

    provenance: Mapping[str, Any] = {"boxes": "drawn", "saw_boxes": True}

    def __call__(self, image: Image, picture: Pillow.Image, count: int) -> NDArray[np.float32]:
        boxes = image.scaled_boxes(*picture.size)[:count]
        return np.array([(box.x1, box.y1, box.x2, box.y2) for box in boxes], np.float32).reshape(-1, 4)


class MergedBoxes:
    """For each chain of an image that has boxes the one box around them, in the order of `image.chains`.

    What a plural phrase is held to (papers 0 and 1), so these are the regions of training pairs.
    """

    provenance: Mapping[str, Any] = {"boxes": "chains", "saw_boxes": True}

    def __call__(self, image: Image, picture: Pillow.Image, count: int) -> NDArray[np.float32]:
        boxes = image.scaled_boxes(*picture.size)
        chains = [box_array(boxes[number] for number in chain.boxes) for chain in image.chains if chain.boxes]
        return np.array([merge(own) for own in chains[:count]], np.float32).reshape(-1, 4)


class ProposedBoxes:
    """The boxes that a proposal method finds."""

    def __init__(self, method: ProposalMethod) -> None:
        self._method = method
        self.provenance: Mapping[str, Any] = {
            "boxes": method.name,
            "saw_boxes": method.saw_boxes,
            "settings": dict(method.settings),
        }

    def __call__(self, image: Image, picture: Pillow.Image, count: int) -> NDArray[np.float32]:
        return self._method.propose(picture, count).boxes


@dataclass(frozen=True)
class PreparedPicture:
    """A picture as bytes: `crops` and `box_crops` `(n, 3, side, side)`, `whole` `(3, height, width)`."""

    #: Width and height of the original, and of the picture at hand, in whose pixels `boxes` `(boxes, 4)` are.
    size: tuple[int, int]
    decoded: tuple[int, int]
    boxes: NDArray[np.float32]
    crops: Tensor | None
    whole: Tensor | None
    box_crops: Tensor | None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(size for part in (self.crops, self.whole) if part is not None for size in part.shape)

    def original_boxes(self) -> NDArray[np.float32]:
        return self._scaled(self.size)

    def boxes_on_whole(self) -> Tensor:
        assert self.whole is not None
        height, width = self.whole.shape[-2:]
        return torch.from_numpy(self._scaled((width, height)))

    def _scaled(self, size: tuple[int, int]) -> NDArray[np.float32]:
        return np.asarray(self.boxes * np.tile(np.divide(size, self.decoded), 2), np.float32)


class BackboneMapper:
    """Build it with `make_mapper`."""

    def __init__(self, recipe: FeatureRecipe, backbone: Backbone, box_source: BoxSource, device: str = "cpu") -> None:
        self._recipe, self._backbone, self._box_source = recipe, backbone, box_source
        self._device = device
        # The boxes of one picture, each cut out, are a batch by themselves, and large in memory.
        cuts_out = recipe.regions is not None and recipe.regions.features == "crops"
        self.batch_size = 1 if cuts_out else BATCH_SIZE[device]
        # Batches side by side keep all cores busier than one batch cut into pieces; a GPU wants one at a time.
        self.threads = torch.get_num_threads() if device == "cpu" else 1
        vector = backbone.map_channels if recipe.crops == "whole" else backbone.channels
        self.arrays = {"image": ArraySpec((vector,), recipe.dtype), "size": ArraySpec((2,), "float32")}
        if recipe.regions:
            length = backbone.map_channels if recipe.regions.features == "align" else backbone.channels
            length += vector * recipe.regions.context + 5 * recipe.regions.coordinates
            self.arrays["regions"] = ArraySpec((length,), recipe.dtype, ragged=True)
            self.arrays["boxes"] = ArraySpec((4,), "float32", ragged=True)

    @property
    def provenance(self) -> dict[str, Any]:
        settings: dict[str, Any] = msgspec.to_builtins(self._recipe)
        if self._recipe.regions:
            settings["regions"] |= self._box_source.provenance
        return {
            **settings,
            "version": VERSION,
            "side": self._recipe.side or self._backbone.side,
            "weights_sha256": self._backbone.weights_sha256,
        }

    def begin_thread(self) -> None:
        if self._device != "cpu":
            return
        torch.get_num_threads()  # Torch sets a thread up when first asked, and would undo the next line later.
        torch.set_num_threads(1)
        # What was set is this thread's, but also what later threads begin with: one that ends at once sets that back.
        restorer = Thread(target=torch.set_num_threads, args=(self.threads,))
        restorer.start()
        restorer.join()

    def prepare(self, image: Image, data: bytes) -> PreparedPicture:
        recipe, backbone = self._recipe, self._backbone
        name = image.file or image.id
        # Boxes are looked for in all pixels; a vector alone needs no more than twice those that the network sees.
        enough = 0 if recipe.regions else 2 * (recipe.side or backbone.side)
        picture = decode_picture(data, name=name, at_least=enough)
        boxes = np.empty((0, 4), np.float32)
        cut_out = None
        if recipe.regions:
            boxes = self._box_source(image, picture, recipe.regions.count)
            if recipe.regions.features == "crops" and len(boxes):
                crops = box_crops(picture, torch.from_numpy(boxes), backbone.side)
                cut_out = torch.stack([as_bytes(crop) for crop in crops])
        return PreparedPicture(
            size=(image.width, image.height) if image.width and image.height else read_size(data, name=name),
            decoded=picture.size,
            boxes=boxes,
            crops=None if recipe.crops == "whole" else backbone.preprocess(picture, recipe.crops),
            whole=backbone.whole(picture, recipe.side) if recipe.one_pass else None,
            box_crops=cut_out,
        )

    @torch.inference_mode()
    def __call__(self, batch: Sequence[PreparedPicture]) -> list[Features]:
        wholes = [picture.whole for picture in batch if picture.whole is not None]
        crops = [picture.crops for picture in batch if picture.crops is not None]
        maps = self._backbone.maps(torch.stack(wholes)) if wholes else None
        if crops or maps is None:
            vectors = mean_vectors(self._backbone, torch.stack(crops))
        else:
            vectors = maps.values.mean((-2, -1))
        made: list[Features] = [
            {"image": vector, "size": np.array(picture.size, np.float32)}
            for picture, vector in zip(batch, vectors.cpu().numpy(), strict=True)
        ]
        if not self._recipe.regions:
            return made
        regions = self._regions(self._recipe.regions, batch, maps, vectors)
        return [
            {**item, "regions": rows, "boxes": picture.original_boxes()}
            for item, picture, rows in zip(made, batch, regions, strict=True)
        ]

    def _regions(
        self, recipe: RegionRecipe, batch: Sequence[PreparedPicture], maps: Maps | None, vectors: Tensor
    ) -> list[NDArray[Any]]:
        """For each picture its regions' features `(regions, dim)`."""
        counts = [len(picture.boxes) for picture in batch]
        if maps is not None and recipe.features == "align":
            rows = region_vectors(maps, [picture.boxes_on_whole() for picture in batch])
        else:
            parts = [self._backbone.vectors(picture.box_crops) for picture in batch if picture.box_crops is not None]
            rows = torch.cat([vectors.new_empty(0, self._backbone.channels), *parts])
        if recipe.context:
            rows = with_context(rows, vectors, counts)
        if recipe.coordinates:
            coordinates = [box_coordinates(torch.from_numpy(picture.boxes), *picture.decoded) for picture in batch]
            rows = torch.cat([rows, torch.cat(coordinates).to(rows)], 1)
        return np.split(rows.cpu().numpy(), np.cumsum(counts)[:-1])


def make_mapper(recipe: FeatureRecipe, *, device: str = "cpu") -> BackboneMapper:
    """The mapper that a recipe describes, on `cpu` or `cuda`."""
    if device not in BATCH_SIZE:
        raise DeixisError(f"unknown device {device!r}; known: {', '.join(BATCH_SIZE)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise DeixisError("no CUDA device is at hand; use --device cpu")
    # The file of a proposer may be missing: found out before the backbone is loaded.
    boxes = recipe.regions.boxes if recipe.regions else "drawn"
    drawn: dict[str, BoxSource] = {"drawn": DrawnBoxes(), "chains": MergedBoxes()}
    box_source = drawn.get(boxes) or ProposedBoxes(load_method(boxes, device=device))
    return BackboneMapper(recipe, load_backbone(recipe.backbone, device=device), box_source, device)
