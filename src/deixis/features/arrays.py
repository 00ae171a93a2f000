"""A finished partition of a feature store, memory-mapped; and arrays of many partitions, indexed as if one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from deixis.errors import DeixisError, InputError
from deixis.features.layout import PLAN, ArraySpec, Plan, Sidecar, array_file, sidecar_file
from deixis.files import open_regular, read_json, require_regular


class _Sharded:
    """Base of both kinds: finds the partition of an item."""

    def __init__(self, name: str, spec: ArraySpec, partitions: Sequence[Partition], starts: NDArray[np.int64]) -> None:
        self.name, self.spec = name, spec
        self.dtype = np.dtype(spec.dtype)
        self._partitions, self._starts = partitions, starts

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _locate(self, item: int) -> tuple[Partition, int]:
        index = item + len(self) if item < 0 else item
        if not 0 <= index < len(self):
            raise IndexError(f"item {item} of {len(self)}")
        partition = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self._partitions[partition], index - int(self._starts[partition])

    def _by_partition(
        self, items: NDArray[np.int64]
    ) -> Iterator[tuple[Partition, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield (partition, positions in `items`, items inside the partition), in the order of the files on disk."""
        count = len(self)
        for outside in items[(items < -count) | (items >= count)]:
            raise IndexError(f"item {outside} of {count}")
        items = np.where(items < 0, items + count, items)
        order = np.argsort(items, kind="stable")
        partitions = np.searchsorted(self._starts, items[order], side="right") - 1
        edges = np.flatnonzero(np.diff(partitions, prepend=-1, append=-1))
        for start, end in pairwise(edges):
            partition, places = int(partitions[start]), order[start:end]
            yield self._partitions[partition], places, items[places] - self._starts[partition]


class FixedArray(_Sharded):
    """One row per item, indexed along the first axis like a NumPy array: an integer, a slice, integers or a mask."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.spec.shape)

    def __getitem__(self, key: int | slice | ArrayLike) -> NDArray[Any]:
        if isinstance(key, int | np.integer):
            partition, inside = self._locate(int(key))
            return cast(NDArray[Any], partition.rows(self.name)[inside])
        return self.gather(_item_numbers(key, len(self)))

    def __array__(self, dtype: np.dtype[Any] | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("the array is stored in several files, so it cannot be returned without a copy")
        return np.asarray(self[:], dtype)

    def gather(self, items: ArrayLike) -> NDArray[Any]:
        """The rows of the given items, in that order: a new array (items, …)."""
        numbers = np.asarray(items, np.int64)
        rows = np.empty((len(numbers), *self.spec.shape), self.dtype)
        for partition, places, inside in self._by_partition(numbers):
            rows[places] = partition.rows(self.name)[inside]
        return rows


class Ragged(NamedTuple):
    """Rows of several items end to end: item k has `values[offsets[k] : offsets[k + 1]]`."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]


class RaggedArray(_Sharded):
    """Any number of rows per item, such as the regions of an image."""

    def __getitem__(self, item: int) -> NDArray[Any]:
        """The rows of one item, (rows, …): a read-only view of the file."""
        partition, inside = self._locate(item)
        start, end = partition.offsets(self.name)[inside : inside + 2]
        return partition.rows(self.name)[start:end]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Number of rows per item, (items,)."""
        parts = [np.diff(partition.offsets(self.name)) for partition in self._partitions]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def gather(self, items: ArrayLike) -> Ragged:
        """The rows of the given items end to end, in that order."""
        numbers = np.asarray(items, np.int64)
        parts = list(self._by_partition(numbers))
        lengths = np.zeros(len(numbers), np.int64)
        for partition, places, inside in parts:
            lengths[places] = np.diff(partition.offsets(self.name))[inside]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        values = np.empty((offsets[-1], *self.spec.shape), self.dtype)
        for partition, places, inside in parts:
            starts, rows = partition.offsets(self.name), partition.rows(self.name)
            for index, item in zip(places, inside, strict=True):
                values[offsets[index] : offsets[index + 1]] = rows[starts[item] : starts[item + 1]]
        return Ragged(values, offsets)


def _item_numbers(key: slice | ArrayLike, count: int) -> NDArray[np.int64]:
    if isinstance(key, slice):
        return np.arange(*key.indices(count), dtype=np.int64)
    numbers = np.asarray(key)
    if numbers.dtype == bool:
        if numbers.shape != (count,):
            raise IndexError(f"a mask of shape {numbers.shape} over {count} items")
        return np.flatnonzero(numbers)
    if numbers.size and not np.issubdtype(numbers.dtype, np.integer):
        raise IndexError(f"items are indexed by integers, not {numbers.dtype}")
    return numbers.astype(np.int64)


class Partition:
    """`items` is its number of items according to the manifest; files that disagree are an `InputError`."""

    def __init__(self, folder: Path, plan: Plan, number: int, items: int) -> None:
        self.folder, self.plan, self.number, self.items = folder, plan, number, items
        self._offsets: dict[str, NDArray[np.int64]] = {}
        self._rows: dict[str, NDArray[Any]] = {}

    @cached_property
    def sidecar(self) -> Sidecar:
        path = sidecar_file(self.folder, self.number)
        sidecar = read_json(path, Sidecar)
        expected = (self.plan.fingerprint, self.number, self.items)
        if (sidecar.fingerprint, sidecar.partition, sidecar.items) != expected:
            raise InputError(path, f"does not belong to the {PLAN} of its store")
        return sidecar

    def offsets(self, array: str) -> NDArray[np.int64]:
        """The first row of each item in a ragged array, and the end of the last one: (items + 1,)."""
        if array not in self._offsets:
            lengths = self.sidecar.lengths.get(array, [])
            if len(lengths) != self.items:
                path = sidecar_file(self.folder, self.number)
                raise InputError(path, f"has {len(lengths)} row counts of array {array!r} for {self.items} items")
            self._offsets[array] = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return self._offsets[array]

    def rows(self, array: str) -> NDArray[Any]:
        """All rows of an array, (rows, …): a read-only view of the file."""
        if array not in self._rows:
            self._rows[array] = self._map(array)
        return self._rows[array]

    def _map(self, array: str) -> NDArray[Any]:
        spec = self.plan.arrays[array]
        shape = (int(self.offsets(array)[-1]) if spec.ragged else self.items, *spec.shape)
        path = array_file(self.folder, self.number, array)
        stored = self.sidecar.files.get(path.name)
        try:
            if stored is None or path.stat().st_size != stored.bytes:
                raise InputError(path, "is damaged (its size is not the one in its sidecar)")
            # An empty array cannot be mapped.
            mapped = np.load(require_regular(path), mmap_mode="r" if shape[0] else None, allow_pickle=False)
        except DeixisError:
            raise
        # NumPy evaluates the header; a damaged one can fail in many ways.
        except Exception as fault:
            raise InputError(path, f"cannot be read as an array ({fault})") from None
        if mapped.shape != shape or mapped.dtype != spec.numpy_dtype:
            raise InputError(path, f"holds {mapped.dtype} {mapped.shape}, not {spec.dtype} {shape}")
        return np.asarray(mapped)

    def verify(self) -> None:
        """Compare all files with their hashes."""
        for array in self.plan.arrays:
            self.rows(array)
            path = array_file(self.folder, self.number, array)
            with open_regular(path) as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() != self.sidecar.files[path.name].sha256:
                    raise InputError(path, "is damaged (its SHA-256 is not the one in its sidecar)")
