"""Nearest rows, behind one small protocol; ids are the catalogue's.

`ExactIndex` compares with every row (FAISS, in the process). `approximate_index` and `milvus_index` have the others;
`stores` says which one a collection has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from deixis.adapters.search_model import Rows
from deixis.errors import DeixisError

Ids = NDArray[np.int64]
#: The rows of ids, in their order.
RowsOf = Callable[[Ids], Rows]


class Nearest(NamedTuple):
    """Of each query its nearest rows, best first; where there are fewer than asked for, ids end in -1."""

    scores: Rows  # (queries, count) dot products
    ids: Ids  # (queries, count)


class NearestRows(Protocol):
    def search(self, queries: Rows, count: int) -> Nearest:
        """The `count` rows of greatest dot product with each query."""

    def close(self) -> None:
        """Let go of files and connections."""


class VectorIndex(NearestRows, Protocol):
    def add(self, ids: Ids, rows: Rows) -> None:
        """Add unit rows, whose ids must be new; they may be rounded to float16, as those on the disk are."""

    def remove(self, ids: Ids) -> None:
        """Take rows out; ids that are not there are passed over."""

    def ids(self) -> Ids:
        """The ids of all rows, rising."""

    def count(self) -> int:
        """How many rows there are."""


class ExactIndex:
    """Every row is compared: for up to about a million of them.

    Rows are kept as float16. A query reads them all, so half the bytes are about half the time.
    """

    def __init__(self, dim: int) -> None:
        faiss = load_faiss()
        kept = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
        self._index: Any = faiss.IndexIDMap2(kept)
        self._ids: Ids = np.empty(0, np.int64)

    def add(self, ids: Ids, rows: Rows) -> None:
        self._ids = merged_ids(self._ids, ids)
        self._index.add_with_ids(np.ascontiguousarray(rows, np.float32), np.ascontiguousarray(ids, np.int64))

    def remove(self, ids: Ids) -> None:
        self._ids = np.setdiff1d(self._ids, ids)
        self._index.remove_ids(np.ascontiguousarray(ids, np.int64))

    def search(self, queries: Rows, count: int) -> Nearest:
        if not len(queries) or count < 1:
            return none_found(len(queries), count)
        return Nearest(*self._index.search(np.ascontiguousarray(queries, np.float32), count))

    def ids(self) -> Ids:
        return self._ids

    def count(self) -> int:
        return len(self._ids)

    def close(self) -> None:
        """There is nothing to let go of."""


def load_faiss() -> Any:
    try:
        import faiss
    except ModuleNotFoundError:
        raise DeixisError("searching needs FAISS; pip install faiss-cpu") from None
    return faiss


def merged_ids(ids: Ids, new: Ids) -> Ids:
    """Rising ids and new ones together; one that comes twice is a `DeixisError`."""
    rising = np.unique(new)
    if len(rising) < len(new) or (len(ids) and len(new) and rising[0] <= ids[-1] and np.isin(rising, ids).any()):
        raise DeixisError("a row of this id is in the index already")
    together = np.concatenate([ids, rising])
    return together if not len(ids) or not len(rising) or rising[0] > ids[-1] else np.sort(together)


def none_found(queries: int, count: int) -> Nearest:
    shape = (queries, max(count, 0))
    return Nearest(np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int64))


def best_of(scores: Rows, ids: Ids, count: int) -> Nearest:
    """Of candidates `(queries, candidates)`, where -1 is none, the `count` best."""
    scores = np.where(ids < 0, -np.inf, scores).astype(np.float32)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    best = none_found(len(scores), count)
    best.scores[:, : order.shape[1]] = np.take_along_axis(scores, order, 1)
    best.ids[:, : order.shape[1]] = np.take_along_axis(ids, order, 1)
    return best
