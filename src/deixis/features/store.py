"""Reading a feature store: memory-mapped, nothing loaded before it is used, any number of readers at once.

A store is written once, and can be opened when it is finished.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from deixis.errors import DeixisError, InputError
from deixis.features.arrays import FixedArray, Partition, RaggedArray
from deixis.features.layout import (
    IDS,
    MANIFEST,
    PLAN,
    Manifest,
    Plan,
    encode,
    partition_done,
)
from deixis.files import TABLE_LIMIT, read_json, read_regular


class FeatureStore:
    """The features of many images. `store["image"][7]` is a row, `store.regions("some id")` a view of the file.

    Items are numbered in the order of the corpus. An image that was skipped (broken or missing picture) has no number
    and no rows and is not `in` the store; `skipped` has the reasons. `numbers(ids)` converts image ids to item numbers.

    Args:
        folder: the store.

    Raises:
        InputError: not a store, an unfinished one, or a damaged one; the message names the file. Arrays are checked
            when they are first used, or by `verify`.

    >>> from deixis.corpus import open_corpus
    >>> from deixis.features.extraction import extract
    >>> from deixis.features.feature_recipe import FeatureRecipe
    >>> from deixis.features.mapper import make_mapper
    >>> mapper = make_mapper(FeatureRecipe(backbone="efficientnet-lite0", crops="squash"))
    >>> report = extract(open_corpus("scenes:20"), mapper, "scenes.features")
    >>> FeatureStore("scenes.features").image_vectors().shape
    (20, 1280)
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / PLAN).exists():
            raise InputError(self.folder, f"is not a feature store (it has no {PLAN})")
        self.plan = read_json(self.folder / PLAN, Plan)
        #: Identifies the recipe, and with it the features.
        self.fingerprint = self.plan.fingerprint
        if not (self.folder / MANIFEST).exists():
            done = sum(partition_done(self.folder, self.plan, index) for index in range(self.plan.partitions))
            problem = f"is not finished ({done} of {self.plan.partitions} partitions are there)"
            raise InputError(self.folder, f"{problem}; run the same `deixis extract` again")
        manifest = read_json(self.folder / MANIFEST, Manifest)
        if manifest.fingerprint != self.fingerprint or len(manifest.items) != self.plan.partitions:
            raise InputError(self.folder / MANIFEST, f"does not belong to the {PLAN} beside it")
        self._partitions = [
            Partition(self.folder, self.plan, index, count) for index, count in enumerate(manifest.items)
        ]
        self._starts = np.concatenate([[0], np.cumsum(manifest.items, dtype=np.int64)])
        #: Images without features, with the reason.
        self.skipped = {image.id: image.reason for image in manifest.skipped}

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker process opens the files itself; no array is pickled.
        return FeatureStore, (self.folder,)

    def __repr__(self) -> str:
        return f"<FeatureStore {self.folder}: {len(self):,} images, arrays {', '.join(self.plan.arrays)}>"

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._number_of

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The ids of the items, in order."""
        path = self.folder / IDS
        data = read_regular(path, TABLE_LIMIT)
        if hashlib.sha256(data).hexdigest() != self.plan.ids_sha256:
            raise InputError(path, f"is damaged (its SHA-256 is not the one in {PLAN})")
        return tuple(image_id for image_id in msgspec.json.decode(data, type=list[str]) if image_id not in self.skipped)

    @cached_property
    def _number_of(self) -> dict[str, int]:
        return {image_id: index for index, image_id in enumerate(self.ids)}

    def numbers(self, image_ids: Iterable[str]) -> NDArray[np.int64]:
        """The item numbers of images; an image without features is a `DeixisError`."""
        return np.fromiter(map(self._number, image_ids), np.int64)

    def _number(self, image_id: str) -> int:
        index = self._number_of.get(image_id)
        if index is None:
            if image_id not in self.skipped:
                raise DeixisError(f"{self.folder} has no features of image {image_id!r} (no such image)")
            raise DeixisError(
                f"image {image_id!r} has no features: its picture {self.skipped[image_id]}. Repair it and remove "
                f"{self.folder}, or leave the image out: `deixis corpus cut … --ids FILE` keeps the images of a list"
            )
        return index

    def __getitem__(self, array: str) -> FixedArray | RaggedArray:
        spec = self.plan.arrays.get(array)
        if spec is None:
            raise DeixisError(f"{self.folder} has no array {array!r}; it has {', '.join(self.plan.arrays)}")
        return (RaggedArray if spec.ragged else FixedArray)(array, spec, self._partitions, self._starts)

    def image_vectors(self) -> FixedArray:
        """The whole-picture vectors, (images, dim)."""
        return cast(FixedArray, self["image"])

    def regions(self, image_id: str) -> NDArray[Any]:
        """One image's region features, (regions, dim): a read-only view of the file."""
        return self["regions"][self._number(image_id)]

    def boxes(self, image_id: str) -> NDArray[Any]:
        """One image's region boxes, (regions, 4): x1, y1, x2, y2 in the original picture's pixels."""
        return self["boxes"][self._number(image_id)]

    def verify(self) -> None:
        """Read all files and compare them with the hashes; the first damaged file is an `InputError`."""
        _ = self.ids
        digest = hashlib.sha256()
        for partition in self._partitions:
            partition.verify()
            digest.update(encode(partition.sidecar))
        manifest = self.folder / MANIFEST
        if read_json(manifest, Manifest).sidecars_sha256 != digest.hexdigest():
            raise InputError(manifest, "is damaged (it does not belong to the sidecars of its partitions)")
