"""Arrays stored in many partitions, indexed as if they were one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from deixis.features.layout import ArraySpec
from deixis.features.partition import Partition


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
