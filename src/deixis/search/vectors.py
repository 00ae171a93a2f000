"""Embeddings and cells of an index on disk: `vectors/` has embeddings as float16, `cells/` has cells as directions.

Each picture has one row. A file has a fixed number of rows; rows are appended, and memory-mapped for reading. The
catalogue says how many rows are valid, after they were synced. Floats after these were written by a process that was
killed, and are overwritten.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from deixis.adapters.search_model import Cells, Floats, Identity, Pictures
from deixis.errors import InputError
from deixis.files import open_regular, require_regular, sync_folder
from deixis.search.catalogue import REMEDY


class Kind(NamedTuple):
    """The name of a folder, and how its numbers are kept."""

    folder: str
    ending: str
    type: np.dtype[Any]


VECTORS, CELLS = Kind("vectors", "f16", np.dtype("<f2")), Kind("cells", "i8", np.dtype("i1"))
#: Rows of one file; 128 MB with 1,024 numbers each.
ROWS = 65_536
#: Rows turned into float32 at a time.
BLOCK = 8192


def append_pictures(folder: Path, start: int, pictures: Pictures) -> None:
    """Write pictures from row `start` on, which follows the last valid row; they are synced when this returns."""
    _append(folder, VECTORS, start, pictures.embeddings)
    if pictures.cells.size:
        _append(folder, CELLS, start, pictures.cells.reshape(len(pictures.cells), -1))


def _append(folder: Path, kind: Kind, start: int, rows: NDArray[Any]) -> None:
    (folder / kind.folder).mkdir(exist_ok=True)
    row_bytes = rows.shape[1] * kind.type.itemsize
    while len(rows):
        shard, first = divmod(start, ROWS)
        part = rows[: ROWS - first]
        path = shard_file(folder, kind, shard)
        new = not os.path.lexists(path)
        if not new:
            require_regular(path)
        with path.open("r+b" if not new else "xb") as stream:
            stream.seek(first * row_bytes)
            stream.write(part.astype(kind.type).tobytes())
            stream.truncate()
            stream.flush()
            os.fsync(stream.fileno())
        if new and os.name == "posix":
            sync_folder(path.parent)
        start, rows = start + len(part), rows[len(part) :]


class _Shards:
    """The files of one kind, memory-mapped: they stay readable after they are deleted.

    Args:
        rows: how many are valid.
        numbers: the length of a row.
    """

    def __init__(self, folder: Path, kind: Kind, rows: int, numbers: int) -> None:
        self._shards = [
            _open_shard(shard_file(folder, kind, shard), kind.type, min(rows - shard * ROWS, ROWS), numbers)
            for shard in range(-(-rows // ROWS) if numbers else 0)
        ]

    def read(self, places: NDArray[np.int64], into: NDArray[Any]) -> None:
        """Copy rows, in any order."""
        numbers, firsts = np.divmod(places, ROWS)
        for shard in np.unique(numbers):
            positions = np.flatnonzero(numbers == shard)
            for start in range(0, len(positions), BLOCK):
                part = positions[start : start + BLOCK]
                into[part] = self._shards[shard][firsts[part]]


class StoredEmbeddings:
    """The embeddings and cells of an index' pictures, by id.

    Args:
        places: the id and the row of each picture, by ascending id.
        rows: how many are valid, including those of deleted pictures.
    """

    def __init__(self, folder: Path, places: Sequence[tuple[int, int]], rows: int, identity: Identity) -> None:
        self._identity = identity
        self._vectors = _Shards(folder, VECTORS, rows, identity.dim)
        self._cells = _Shards(folder, CELLS, rows, identity.cells * identity.cell_dim)
        table = np.array(places, np.int64).reshape(-1, 2)
        #: In ascending order.
        self.ids, self._places = np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])

    def of(self, ids: NDArray[np.int64]) -> Floats:
        """The unit embeddings of pictures, in the order of `ids`, which must be among `self.ids`."""
        rows = np.empty((len(ids), self._identity.dim), np.float32)
        with np.errstate(invalid="ignore"):
            self._vectors.read(self._places_of(ids), rows)
            # Rounded to float16, their lengths are not exactly 1.
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        if not np.isfinite(lengths).all():
            # Damaged embeddings match nothing; `deixis doctor` reports them.
            damaged = ~np.isfinite(lengths[:, 0])
            rows[damaged], lengths[damaged] = 0, 1
        rows /= np.maximum(lengths, 1e-12)
        return rows

    def cells_of(self, ids: NDArray[np.int64]) -> Cells:
        """The cells of pictures, in the order of `ids`."""
        identity = self._identity
        cells = np.empty((len(ids), identity.cells * identity.cell_dim), np.int8)
        if cells.size:
            self._cells.read(self._places_of(ids), cells)
        return cells.reshape(len(ids), identity.cells, identity.cell_dim)

    def _places_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._places[np.searchsorted(self.ids, ids)]


def oversized_files(folder: Path, identity: Identity) -> list[Path]:
    """Files that are larger than `ROWS` rows, which no writer leaves."""
    largest = {
        VECTORS: ROWS * identity.dim * VECTORS.type.itemsize,
        CELLS: ROWS * identity.cells * identity.cell_dim * CELLS.type.itemsize,
    }
    return [
        path
        for kind, size in largest.items()
        for path in sorted((folder / kind.folder).glob(f"*.{kind.ending}"))
        if path.lstat().st_size > size
    ]


def _open_shard(path: Path, kind: np.dtype[Any], rows: int, numbers: int) -> NDArray[Any]:
    needed = rows * numbers * kind.itemsize
    try:
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size < needed:
                raise InputError(path, f"is cut off: it has {size:,} of {needed:,} bytes")
            return np.memmap(stream, kind, "r", shape=(rows, numbers))
    except InputError as fault:
        raise InputError(path, f"{fault.problem}; {REMEDY}") from None
    except (OSError, ValueError) as fault:
        raise InputError(path, f"cannot be read ({fault}); {REMEDY}") from None


def shard_file(folder: Path, kind: Kind, shard: int) -> Path:
    return folder / kind.folder / f"{shard:05}.{kind.ending}"
