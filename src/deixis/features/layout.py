"""The files of a feature store.

    plan.json                   written first: recipe, arrays, number of images, images per partition
    ids.json                    the ids of all images, in order
    partitions/00007.image.npy  one file per array of partition 7; the rows of ragged arrays end to end
    partitions/00007.json       its sidecar, written after them: counts of items and rows, skipped images, sizes, hashes
    manifest.json               written last: item counts of the partitions, all skipped images, SHA-256 of the sidecars

A partition is a fixed range of the ids. Its bytes depend on nothing else: not on other partitions, nor on when, where
or in how many attempts it was made. Loading executes no code.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from deixis.errors import DeixisError, InputError
from deixis.files import atomic_write, read_json

PLAN, IDS, MANIFEST, PARTITIONS = "plan.json", "ids.json", "manifest.json", "partitions"
_ARRAY_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")

Record = TypeVar("Record", bound=msgspec.Struct)
Count = Annotated[int, Meta(ge=0)]


class ArraySpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array: one row of `shape` per item, or any number of them if `ragged`."""

    shape: tuple[int, ...]
    dtype: Literal["float16", "float32", "int32", "int64", "uint8"] = "float16"
    ragged: bool = False

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.dtype).newbyteorder("<")


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that determines the bytes of a store. Build it with `make_plan`.

    `provenance` names extractor, weights, preprocessing and corpus; `ids_sha256` is the hash of `ids.json`.
    """

    provenance: dict[str, Any]
    arrays: dict[str, ArraySpec]
    images: Annotated[int, Meta(ge=1)]
    ids_sha256: str
    partition_size: Annotated[int, Meta(ge=1)]
    deixis: Literal["feature store"] = "feature store"
    version: Literal[1] = 1

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(encode(self)).hexdigest()

    @property
    def partitions(self) -> int:
        return -(-self.images // self.partition_size)

    def items(self, partition: int) -> range:
        """The range of ids of a partition."""
        start = partition * self.partition_size
        return range(start, min(start + self.partition_size, self.images))


class SkippedImage(msgspec.Struct, frozen=True):
    """An image without features, since its picture is missing or broken."""

    id: str
    reason: str


class StoredFile(msgspec.Struct, frozen=True):
    bytes: int
    sha256: str


class Sidecar(msgspec.Struct, frozen=True):
    """The contents of a finished partition; `lengths` are the row counts of the items in each ragged array."""

    fingerprint: str
    partition: int
    items: int
    lengths: dict[str, list[Count]]
    skipped: list[SkippedImage]
    files: dict[str, StoredFile]


class Manifest(msgspec.Struct, frozen=True):
    """A finished store. `items` is the number of items per partition, `rows` the number of rows per array."""

    fingerprint: str
    items: list[Count]
    rows: dict[str, int]
    skipped: list[SkippedImage]
    sidecars_sha256: str


def make_plan(
    ids: Iterable[str], arrays: Mapping[str, ArraySpec], provenance: Mapping[str, Any], partition_size: int
) -> Plan:
    """Check a plan and bring it into a canonical order, so that equal plans have equal fingerprints."""
    ids = list(ids)
    if not ids:
        raise DeixisError("there are no images to extract features from")
    if not arrays or partition_size < 1:
        raise DeixisError("a feature store needs at least one array and one image per partition")
    for name in arrays:
        if not _ARRAY_NAME.fullmatch(name):
            raise DeixisError(f"{name!r} is not a valid array name: use lower-case letters, digits and _")
    return Plan(
        # As it will be read again: a tuple becomes a list.
        provenance=msgspec.json.decode(msgspec.json.encode(dict(provenance))),
        arrays={name: arrays[name] for name in sorted(arrays)},
        images=len(ids),
        ids_sha256=hashlib.sha256(encode(ids)).hexdigest(),
        partition_size=partition_size,
    )


def encode(value: Any) -> bytes:
    """JSON with sorted keys and a final newline: equal values have equal bytes."""
    return msgspec.json.format(msgspec.json.encode(value, order="deterministic"), indent=1) + b"\n"


def write_json(path: Path, value: Any) -> None:
    with atomic_write(path) as stream:
        stream.write(encode(value))


def array_file(folder: Path, partition: int, array: str) -> Path:
    return folder / PARTITIONS / f"{partition:05}.{array}.npy"


def sidecar_file(folder: Path, partition: int) -> Path:
    return folder / PARTITIONS / f"{partition:05}.json"


def partition_done(folder: Path, plan: Plan, partition: int) -> bool:
    """Whether a partition of this plan is finished, according to its sidecar and the sizes of its files."""
    path = sidecar_file(folder, partition)
    try:
        sidecar = read_json(path, Sidecar)
        return sidecar.fingerprint == plan.fingerprint and all(
            (path.parent / name).stat().st_size == file.bytes for name, file in sidecar.files.items()
        )
    except (InputError, OSError):
        return False
