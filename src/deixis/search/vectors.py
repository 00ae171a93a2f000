"""The numbers of an index' pictures on disk: `vectors/` holds embeddings as float16, `cells/` cells as directions.

A row a picture, in files of a fixed number of rows, appended to, mapped when read. Nothing here says how many rows
count: the catalogue does, after they were synced. What lies beyond is the rest of a writer that was killed, and is
written over.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from deixis.adapters.search_model import Cells, Identity, Pictures, Rows
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
    """Write pictures from place `start` on, where those that count end; they are on the disk when this returns."""
    _append(folder, VECTORS, start, pictures.rows)
    if pictures.cells.size:
        _append(folder, CELLS, start, pictures.cells.reshape(len(pictures.cells), -1))


def _append(folder: Path, kind: Kind, start: int, rows: NDArray[Any]) -> None:
    (folder / kind.folder).mkdir(exist_ok=True)
    row_bytes = rows.shape[1] * kind.type.itemsize
    while len(rows):
        number, first = divmod(start, ROWS)
        part = rows[: ROWS - first]
        path = shard_file(folder, kind, number)
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
    """The files of one kind, mapped: they stay readable when they are removed.

    Args:
        rows: how many count.
        numbers: how many a row has.
    """

    def __init__(self, folder: Path, kind: Kind, rows: int, numbers: int) -> None:
        self._shards = [
            _open_shard(shard_file(folder, kind, number), kind.type, min(rows - number * ROWS, ROWS), numbers)
            for number in range(-(-rows // ROWS) if numbers else 0)
        ]

    def read(self, places: NDArray[np.int64], into: NDArray[Any]) -> None:
        """Copy rows, whatever their order among the files."""
        numbers, firsts = np.divmod(places, ROWS)
        for number in np.unique(numbers):
            own = np.flatnonzero(numbers == number)
            for start in range(0, len(own), BLOCK):
                part = own[start : start + BLOCK]
                into[part] = self._shards[number][firsts[part]]


class PictureRows:
    """The embeddings and cells of pictures, by id.

    Args:
        places: (id, place among the rows) of each picture, by id.
        rows: how many count, those of pictures that are gone included.
    """

    def __init__(self, folder: Path, places: Sequence[tuple[int, int]], rows: int, identity: Identity) -> None:
        self._identity = identity
        self._vectors = _Shards(folder, VECTORS, rows, identity.dim)
        self._cells = _Shards(folder, CELLS, rows, identity.cells * identity.cell_dim)
        table = np.array(places, np.int64).reshape(-1, 2)
        #: Rising.
        self.ids, self._places = np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])

    def of(self, ids: NDArray[np.int64]) -> Rows:
        """The unit rows of pictures that are there, in the order of `ids`."""
        rows = np.empty((len(ids), self._identity.dim), np.float32)
        with np.errstate(invalid="ignore"):
            self._vectors.read(self._places_of(ids), rows)
            # Rounding to float16 leaves lengths a little beside 1.
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        if not np.isfinite(lengths).all():
            # Damaged rows are like nothing; `deixis doctor` finds them.
            damaged = ~np.isfinite(lengths[:, 0])
            rows[damaged], lengths[damaged] = 0, 1
        rows /= np.maximum(lengths, 1e-12)
        return rows

    def cells_of(self, ids: NDArray[np.int64]) -> Cells:
        """The cells of pictures that are there, in the order of `ids`."""
        identity = self._identity
        cells = np.empty((len(ids), identity.cells * identity.cell_dim), np.int8)
        if cells.size:
            self._cells.read(self._places_of(ids), cells)
        return cells.reshape(len(ids), identity.cells, identity.cell_dim)

    def _places_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._places[np.searchsorted(self.ids, ids)]


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


def shard_file(folder: Path, kind: Kind, number: int) -> Path:
    return folder / kind.folder / f"{number:05}.{kind.ending}"
