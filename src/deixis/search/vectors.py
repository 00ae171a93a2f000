"""The vectors of an index on disk: float16 rows in files of a fixed number of rows, appended to, mapped when read.

Nothing here says how many rows count: the catalogue does, after they were synced. What lies beyond is the rest of a
writer that was killed, and is written over.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deixis.errors import InputError
from deixis.search.encoders import Rows

VECTORS = "vectors"
#: Rows of one file; 128 MB with 1,024 numbers each.
ROWS = 65_536
#: Rows turned into float32 at a time.
BLOCK = 8192
_TYPE = np.dtype("<f2")


def append_rows(folder: Path, start: int, rows: Rows) -> None:
    """Write rows from place `start` on, which is where those that count end; they are on the disk when this returns."""
    (folder / VECTORS).mkdir(exist_ok=True)
    dim = rows.shape[1]
    while len(rows):
        number, first = divmod(start, ROWS)
        part = rows[: ROWS - first]
        path = shard_file(folder, number)
        new = not path.exists()
        with path.open("r+b" if not new else "xb") as stream:
            stream.seek(first * dim * _TYPE.itemsize)
            stream.write(part.astype(_TYPE).tobytes())
            stream.truncate()
            stream.flush()
            os.fsync(stream.fileno())
        if new and os.name == "posix":
            _sync(path.parent)
        start, rows = start + len(part), rows[len(part) :]


class Vectors:
    """The rows of a folder, mapped: they stay readable when the files are removed.

    Args:
        rows: how many count.
    """

    def __init__(self, folder: Path, rows: int, dim: int) -> None:
        self._dim = dim
        self._shards = [
            _open_shard(shard_file(folder, number), min(rows - number * ROWS, ROWS), dim)
            for number in range(-(-rows // ROWS))
        ]

    def read(self, places: NDArray[np.int64]) -> Rows:
        """Rows as float32 and of unit length, whatever their order among the files."""
        rows = np.empty((len(places), self._dim), np.float32)
        numbers, firsts = np.divmod(places, ROWS)
        for number in np.unique(numbers):
            own = np.flatnonzero(numbers == number)
            for start in range(0, len(own), BLOCK):
                part = own[start : start + BLOCK]
                rows[part] = self._shards[number][firsts[part]]
        # Rounding to float16 leaves lengths a little beside 1.
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return rows


class PictureRows:
    """The rows of pictures, by id.

    Args:
        places: (id, place among the rows) of each picture, by id.
    """

    def __init__(self, folder: Path, places: Sequence[tuple[int, int]], rows: int, dim: int) -> None:
        self._vectors = Vectors(folder, rows, dim)
        table = np.array(places, np.int64).reshape(-1, 2)
        #: Rising.
        self.ids, self._places = np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])

    def of(self, ids: NDArray[np.int64]) -> Rows:
        """The rows of pictures that are there, in the order of `ids`."""
        return self._vectors.read(self._places[np.searchsorted(self.ids, ids)])


def _open_shard(path: Path, rows: int, dim: int) -> NDArray[np.float16]:
    try:
        return np.memmap(path, _TYPE, "r", shape=(rows, dim))
    except (OSError, ValueError) as fault:
        raise InputError(path, f"cannot be read ({fault}); index again into another folder") from None


def shard_file(folder: Path, number: int) -> Path:
    return folder / VECTORS / f"{number:05}.f16"


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
