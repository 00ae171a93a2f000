"""Nearest rows, behind one small protocol; ids are the catalogue's.

`ExactIndex` compares with every row (FAISS, in the process).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from deixis.errors import DeixisError
from deixis.search.encoders import Rows

Ids = NDArray[np.int64]


class Nearest(NamedTuple):
    """Of each query its nearest rows, best first; where there are fewer than asked for, ids end in -1."""

    scores: Rows  # (queries, count) dot products
    ids: Ids  # (queries, count)


class VectorIndex(Protocol):
    def add(self, ids: Ids, rows: Rows) -> None:
        """Add rows, whose ids must be new."""

    def remove(self, ids: Ids) -> None:
        """Take rows out; ids that are not there are passed over."""

    def search(self, queries: Rows, count: int) -> Nearest:
        """The `count` rows of greatest dot product with each query."""

    def count(self) -> int:
        """How many rows there are."""


class ExactIndex:
    """Every row is compared: for up to about a million of them."""

    def __init__(self, dim: int) -> None:
        try:
            import faiss
        except ModuleNotFoundError:
            raise DeixisError("searching needs FAISS; pip install 'deixis[search]'") from None
        self._index: Any = faiss.IndexIDMap2(faiss.IndexFlatIP(dim))
        self._ids: set[int] = set()

    def add(self, ids: Ids, rows: Rows) -> None:
        new = set(ids.tolist())
        if len(new) < len(ids) or new & self._ids:
            raise DeixisError("a row of this id is in the index already")
        self._ids |= new
        self._index.add_with_ids(np.ascontiguousarray(rows, np.float32), np.ascontiguousarray(ids, np.int64))

    def remove(self, ids: Ids) -> None:
        self._ids.difference_update(ids.tolist())
        self._index.remove_ids(np.ascontiguousarray(ids, np.int64))

    def search(self, queries: Rows, count: int) -> Nearest:
        if not len(queries) or count < 1:
            shape = (len(queries), max(count, 0))
            return Nearest(np.empty(shape, np.float32), np.empty(shape, np.int64))
        scores, ids = self._index.search(np.ascontiguousarray(queries, np.float32), count)
        return Nearest(scores, ids)

    def count(self) -> int:
        return int(self._index.ntotal)
