"""The mapper of a feature recipe: from pictures to the arrays `image`, `size` and, for regions, `regions` and `boxes`.

Like the boxes of a corpus, `boxes` are in the original picture's pixels, even if the file is a smaller copy. `size`
(width, height) is that of the original, or of the file if the corpus does not record it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Thread
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow
from torch import Tensor
from torch.backends import cudnn

from deixis.corpus import Image
from deixis.errors import DeixisError
from deixis.features.feature_recipe import NO_BACKBONE, FeatureRecipe, RegionRecipe, stored_settings
from deixis.features.layout import ArraySpec
from deixis.features.region_boxes import BoxSource, LearnedBoxes, load_boxes
from deixis.features.store_writing import Features
from deixis.vision import DETECTOR, TOWER
from deixis.vision.backbones import Backbone, DetectorBackbone, as_bytes, load_backbone, mean_vectors, stacked
from deixis.vision.detector import WIDTH
from deixis.vision.reading import decode_picture, read_size
from deixis.vision.regions import Maps, box_coordinates, box_crops, region_bins, region_vectors, with_context

#: Increase it when a change gives other features for the same recipe.
VERSION = 1
#: Pictures per pass of the backbone: on a GPU enough to fill it; on a CPU more are no faster.
PASS = {"cpu": 1, "cuda": 64}
#: Pictures of any shape per batch on a GPU, so that many of them have the same shape.
MIXED = 256
#: Regions of a picture that are cut out and go through the backbone together.
CROPS = 100
#: `crops = "grid"` divides a map into this many rows and columns, and averages the cells of each part.
GRID = 3

_DTYPES = {"float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class PreparedPicture:
    """A picture as bytes: `crops` `(n, 3, side, side)`; `whole`, `squashed` and `pixels` `(3, height, width)`."""

    #: Width and height of the original, and of the decoded picture, in whose pixels `boxes` `(boxes, 4)` are.
    size: tuple[int, int]
    decoded: tuple[int, int]
    #: None until they are proposed from `squashed`.
    boxes: NDArray[np.float32] | None = None
    squashed: Tensor | None = None
    crops: Tensor | None = None
    whole: Tensor | None = None
    #: The decoded picture, from which regions are cut.
    pixels: Tensor | None = None
    #: Whether it may be batched with pictures of other shapes.
    mixes: bool = False

    def __getstate__(self) -> dict[str, Any]:
        """Pickle pixels as arrays with channels last, which is many times faster than tensors."""
        return {name: _pixels(value) if isinstance(value, Tensor) else value for name, value in vars(self).items()}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            travelled = isinstance(value, np.ndarray) and value.dtype == np.uint8
            object.__setattr__(self, name, _channels_first(value) if travelled else value)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(size for part in (self.crops, self.whole) if part is not None for size in part.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return () if self.mixes else self.input_shape

    @property
    def found(self) -> NDArray[np.float32]:
        assert self.boxes is not None
        return self.boxes

    def original_boxes(self) -> NDArray[np.float32]:
        return self._scaled(self.size)

    def boxes_on_whole(self) -> Tensor:
        assert self.whole is not None
        height, width = self.whole.shape[-2:]
        return torch.from_numpy(self._scaled((width, height)))

    def _scaled(self, size: tuple[int, int]) -> NDArray[np.float32]:
        return np.asarray(self.found * np.tile(np.divide(size, self.decoded), 2), np.float32)


class BoxMapper:
    """Stores boxes only, for later extractions. Build it with `make_mapper`."""

    def __init__(self, recipe: FeatureRecipe, box_source: BoxSource, device: str = "cpu") -> None:
        self._recipe, self._box_source, self._device = recipe, box_source, device
        self.batch_size = PASS[device]
        #: Pixels of the shorter side that are enough; 0: all, since proposals use all pixels.
        self.at_least = 0
        # On a CPU, one batch per core is faster than one batch on all cores; on a GPU one batch is prepared while
        # another is computed.
        self.threads = torch.get_num_threads() if device == "cpu" else 2
        # A thread that launches kernels needs the interpreter lock for each, and decoding threads would hold it.
        self.read_apart = device != "cpu"
        self.arrays = {"size": ArraySpec((2,), "float32")}
        if recipe.regions:
            self.arrays["boxes"] = ArraySpec((4,), "float32", ragged=True)

    @property
    def provenance(self) -> dict[str, Any]:
        settings = stored_settings(self._recipe)
        del settings["file"]
        if self._recipe.regions:
            settings["regions"] |= self._box_source.provenance
        return {**settings, "version": VERSION}

    def begin_thread(self) -> None:
        if self._device != "cpu":
            return
        torch.get_num_threads()  # Torch initializes a thread on first use, which would undo the next line.
        torch.set_num_threads(1)
        # The setting is this thread's, but also the default of later threads: a short-lived thread restores that.
        restorer = Thread(target=torch.set_num_threads, args=(self.threads,))
        restorer.start()
        restorer.join()

    @contextmanager
    def running(self) -> Iterator[None]:
        # cuDNN plans every layer anew for each number and shape of pictures, 2.3 s per shape on an H200. A detector's
        # pictures have one shape.
        shapes = self._recipe.one_pass and not self._recipe.backbone.startswith(DETECTOR)
        with cudnn.flags(enabled=not shapes):
            yield

    def prepare(self, image: Image, data: bytes) -> PreparedPicture:
        """Decode and prepare a picture file."""
        name = image.file or image.id
        prepared = self.prepare_picture(image, decode_picture(data, name=name, at_least=self.at_least))
        known = bool(image.width and image.height)
        return prepared if known or not self.at_least else replace(prepared, size=read_size(data, name=name))

    def prepare_picture(self, image: Image, picture: Pillow.Image) -> PreparedPicture:
        """Prepare a decoded picture."""
        return self._boxed(image, picture)

    def __call__(self, batch: Sequence[PreparedPicture]) -> list[Features]:
        return [
            {"size": np.array(picture.size, np.float32), "boxes": picture.original_boxes()}
            for picture in self._with_boxes(batch)
        ]

    def _boxed(self, image: Image, picture: Pillow.Image) -> PreparedPicture:
        """A picture with its boxes, or with the input for finding them later."""
        size = (image.width, image.height) if image.width and image.height else picture.size
        if self._recipe.regions is None:
            return PreparedPicture(size, picture.size)
        if isinstance(self._box_source, LearnedBoxes):
            return PreparedPicture(size, picture.size, squashed=self._box_source.squashed(picture))
        boxes = self._box_source(image, picture, self._recipe.regions.count)
        return PreparedPicture(size, picture.size, boxes)

    def _with_boxes(self, batch: Sequence[PreparedPicture]) -> Sequence[PreparedPicture]:
        waiting = [picture.squashed for picture in batch if picture.squashed is not None]
        if not waiting:
            return batch
        assert isinstance(self._box_source, LearnedBoxes)
        assert self._recipe.regions is not None
        all_boxes = self._box_source.find(waiting, self._recipe.regions.count)
        return [
            replace(picture, boxes=boxes * np.array(picture.decoded * 2, np.float32))
            for picture, boxes in zip(batch, all_boxes, strict=True)
        ]


class BackboneMapper(BoxMapper):
    """Build it with `make_mapper`."""

    def __init__(self, recipe: FeatureRecipe, backbone: Backbone, box_source: BoxSource, device: str = "cpu") -> None:
        super().__init__(recipe, box_source, device)
        self._backbone = backbone
        # Without regions, twice the network's resolution is enough.
        self.at_least = 0 if recipe.regions else 2 * (recipe.side or backbone.side)
        self._cuts_out = recipe.regions is not None and recipe.regions.features == "crops"
        self._mixes = device == "cuda" and recipe.one_pass
        if self._mixes:
            self.batch_size = MIXED
        if self._cuts_out:
            # The crops of one picture are a batch by themselves, and large in memory.
            self.batch_size = 1
        vector = backbone.channels if recipe.cropped else backbone.map_channels
        if recipe.crops == "grid":
            vector *= GRID**2
        self.arrays["image"] = ArraySpec((vector,), recipe.dtype)
        if recipe.regions:
            if (recipe.regions.features == "head") != isinstance(backbone, DetectorBackbone):
                raise DeixisError("regions.features = 'head' and a backbone 'detector:FILE' go together")
            aligned = backbone.map_channels * recipe.regions.bins**2
            length = {"align": aligned, "crops": backbone.channels, "head": WIDTH}[recipe.regions.features]
            length += vector * recipe.regions.context + 5 * recipe.regions.coordinates
            self.arrays["regions"] = ArraySpec((length,), recipe.dtype, ragged=True)

    @property
    def provenance(self) -> dict[str, Any]:
        return {
            **super().provenance,
            # Of trained weights their kind and not their path: the hash of the weights identifies them.
            "backbone": self._backbone.name if self._trained else self._recipe.backbone,
            "side": self._recipe.side or self._backbone.side,
            "weights_sha256": self._backbone.weights_sha256,
            **({"resampling": "bilinear"} if self._trained else {}),
            **({"backbone_saw_boxes": True} if isinstance(self._backbone, DetectorBackbone) else {}),
        }

    @property
    def _trained(self) -> bool:
        return self._recipe.backbone.startswith((TOWER, DETECTOR))

    def prepare_picture(self, image: Image, picture: Pillow.Image) -> PreparedPicture:
        recipe, backbone = self._recipe, self._backbone
        return replace(
            self._boxed(image, picture),
            crops=backbone.preprocess(picture, recipe.cropped) if recipe.cropped else None,
            whole=backbone.whole(picture, recipe.side) if recipe.one_pass else None,
            pixels=as_bytes(picture) if self._cuts_out else None,
            mixes=self._mixes,
        )

    @torch.inference_mode()
    def __call__(self, batch: Sequence[PreparedPicture]) -> list[Features]:
        batch = self._with_boxes(batch)
        computed: dict[int, Features] = {}
        for rows in _passes(batch, PASS[self._device]):
            computed |= zip(rows, self._pass([batch[row] for row in rows]), strict=True)
        return [computed[row] for row in range(len(batch))]

    def _pass(self, batch: Sequence[PreparedPicture]) -> Iterator[Features]:
        """The features of pictures of one shape."""
        wholes = [picture.whole for picture in batch if picture.whole is not None]
        crops = [picture.crops for picture in batch if picture.crops is not None]
        maps = self._backbone.maps(stacked(wholes, self._device)) if wholes else None
        if crops or maps is None:
            vectors = mean_vectors(self._backbone, stacked(crops, self._device))
        else:
            vectors = maps.values.mean((-2, -1))
            if self._recipe.crops == "grid":
                vectors = torch.nn.functional.adaptive_avg_pool2d(maps.values, GRID).flatten(1)
        regions = self._regions(self._recipe.regions, batch, maps, vectors) if self._recipe.regions else None
        for index, (picture, vector) in enumerate(zip(batch, self._stored(vectors), strict=True)):
            features = {"image": vector, "size": np.array(picture.size, np.float32)}
            if regions is not None:
                features |= {"regions": regions[index], "boxes": picture.original_boxes()}
            yield features

    def _regions(
        self, recipe: RegionRecipe, batch: Sequence[PreparedPicture], maps: Maps | None, vectors: Tensor
    ) -> list[NDArray[Any]]:
        """The features `(regions, dim)` of each picture's regions."""
        counts = [len(picture.found) for picture in batch]
        if maps is not None and recipe.features != "crops":
            boxes = [picture.boxes_on_whole() for picture in batch]
            if isinstance(self._backbone, DetectorBackbone):
                rows = self._backbone.region_vectors(maps, boxes)
            elif recipe.bins > 1:
                rows = region_bins(maps, boxes, recipe.bins)
            else:
                rows = region_vectors(maps, boxes)
        else:
            # Half precision, in which features are stored, is twice as fast on a GPU.
            with torch.autocast("cuda", torch.float16, enabled=self._device == "cuda"):
                parts = [
                    self._backbone.vectors(box_crops(picture.pixels.to(self._device), boxes, self._backbone.side))
                    for picture in batch
                    if picture.pixels is not None
                    for boxes in torch.split(torch.from_numpy(picture.found), CROPS)
                    if len(boxes)
                ]
            rows = torch.cat([vectors.new_empty(0, self._backbone.channels), *parts])
        if recipe.context:
            rows = with_context(rows, vectors, counts)
        if recipe.coordinates:
            coordinates = [box_coordinates(torch.from_numpy(picture.found), *picture.decoded) for picture in batch]
            rows = torch.cat([rows, torch.cat(coordinates).to(rows)], 1)
        return np.split(self._stored(rows), np.cumsum(counts)[:-1])

    def _stored(self, values: Tensor) -> NDArray[Any]:
        """Values in the type in which they are stored, so that a GPU transfers half the bytes."""
        stored: NDArray[Any] = values.to(_DTYPES[self._recipe.dtype]).cpu().numpy()
        return stored


def _pixels(values: Tensor) -> NDArray[np.uint8]:
    """`(…, 3, height, width)` as `(…, height, width, 3)`, the layout of pictures in memory."""
    return np.ascontiguousarray(values.movedim(-3, -1).numpy())


def _channels_first(pixels: NDArray[np.uint8]) -> Tensor:
    # Arrays from shared memory are read-only, and torch warns about those.
    return torch.from_numpy(pixels if pixels.flags.writeable else pixels.copy()).movedim(-1, -3)


def _passes(batch: Sequence[PreparedPicture], size: int) -> Iterator[list[int]]:
    """Groups of rows with the same shape, at most `size` each."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, picture in enumerate(batch):
        groups.setdefault(picture.input_shape, []).append(row)
    for rows in groups.values():
        yield from (rows[start : start + size] for start in range(0, len(rows), size))


def make_mapper(recipe: FeatureRecipe, *, device: str = "cpu", only_reads: bool = False) -> BoxMapper:
    """The mapper of a recipe, on `cpu` or `cuda`. With `only_reads` it only prepares pictures for that device.

    A reader's networks are on the CPU, so that it needs no GPU. On a CPU the networks of Deixis itself run on
    onnxruntime.
    """
    if device not in PASS:
        raise DeixisError(f"unknown device {device!r}; known: {', '.join(PASS)}")
    if device == "cuda" and not only_reads and not torch.cuda.is_available():
        raise DeixisError("there is no CUDA device; use --device cpu")
    mapper_device = "cpu" if only_reads else device
    # Before the backbone is loaded, since the file of a proposer may be missing.
    regions = recipe.regions or RegionRecipe(boxes="drawn")
    box_source = load_boxes(
        regions.boxes,
        edge_boxes=regions.edge_boxes,
        near_chains=regions.near_chains,
        device=mapper_device,
        exported=not only_reads,
    )
    if recipe.backbone == NO_BACKBONE:
        return BoxMapper(recipe, box_source, device)
    backbone = load_backbone(recipe.backbone, device=mapper_device, exported=not only_reads)
    return BackboneMapper(recipe, backbone, box_source, device)


@dataclass(frozen=True)
class MapperMaker:
    """Builds the mapper of a recipe in another process."""

    recipe: FeatureRecipe
    device: str

    def reader(self) -> BoxMapper:
        return make_mapper(self.recipe, device=self.device, only_reads=True)

    def mapper(self) -> BoxMapper:
        return make_mapper(self.recipe, device=self.device)
