"""A finished partition of a feature store: its sidecar and memory-mapped arrays, read on first use."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deixis.errors import DeixisError, InputError
from deixis.features.layout import PLAN, Plan, Sidecar, array_file, sidecar_file
from deixis.files import open_regular, read_json, require_regular


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
