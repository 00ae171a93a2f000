"""Nearest-neighbour search: the protocol all stores share, exact search with FAISS, and exact answers from an index
that may be out of date.

Ids are those of the catalogue. The other stores are in `approximate` and `milvus`; `vector_stores` chooses one for an
index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from deixis.adapters.search_model import Floats
from deixis.errors import DeixisError
from deixis.search.vectors import BLOCK

Ids = NDArray[np.int64]
#: Returns the embeddings of ids, in the same order.
EmbeddingsOf = Callable[[Ids], Floats]
#: Extra answers asked for at first, because some may have been removed.
SPARE = 16


class Nearest(NamedTuple):
    """The nearest embeddings of each query, best first. Missing answers have the id -1."""

    scores: Floats  # (queries, count) dot products
    ids: Ids  # (queries, count)


class NearestNeighbours(Protocol):
    def search(self, queries: Floats, count: int) -> Nearest:
        """The `count` embeddings with the largest dot product with each query."""

    def close(self) -> None:
        """Close files and connections."""


class VectorIndex(NearestNeighbours, Protocol):
    def add(self, ids: Ids, rows: Floats) -> None:
        """Add unit embeddings under new ids. They may be rounded to float16, as on disk."""

    def remove(self, ids: Ids) -> None:
        """Remove embeddings; unknown ids are ignored."""

    def ids(self) -> Ids:
        """All ids, in ascending order."""

    def count(self) -> int:
        """The number of embeddings."""


class ExactIndex:
    """Compares a query with every embedding; for up to about a million of them.

    Embeddings are float16: a query reads all of them, so half the bytes take about half the time.
    """

    def __init__(self, dim: int) -> None:
        faiss = load_faiss()
        embeddings = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
        self._index: Any = faiss.IndexIDMap2(embeddings)
        self._ids: Ids = np.empty(0, np.int64)

    def add(self, ids: Ids, rows: Floats) -> None:
        self._ids = merged_ids(self._ids, ids)
        self._index.add_with_ids(np.ascontiguousarray(rows, np.float32), np.ascontiguousarray(ids, np.int64))

    def remove(self, ids: Ids) -> None:
        self._ids = np.setdiff1d(self._ids, ids)
        self._index.remove_ids(np.ascontiguousarray(ids, np.int64))

    def search(self, queries: Floats, count: int) -> Nearest:
        if not len(queries) or count < 1:
            return none_found(len(queries), count)
        return Nearest(*self._index.search(np.ascontiguousarray(queries, np.float32), count))

    def ids(self) -> Ids:
        return self._ids

    def count(self) -> int:
        return len(self._ids)

    def close(self) -> None:
        """Nothing to close."""


def exact_index(ids: Ids, dim: int, embeddings_of: EmbeddingsOf) -> ExactIndex:
    index = ExactIndex(dim)
    for start in range(0, len(ids), BLOCK):
        part = ids[start : start + BLOCK]
        index.add(part, embeddings_of(part))
    return index


class LiveIndex:
    """Drops answers that are no longer in the collection, and searches new embeddings exactly.

    Args:
        base: the index.
        held: ids that the index is known to contain.
        live: ids of the collection, in ascending order.
    """

    def __init__(self, base: NearestNeighbours, held: Ids, live: Ids, dim: int, embeddings_of: EmbeddingsOf) -> None:
        self._base, self._live = base, live
        self._fresh = exact_index(np.setdiff1d(live, held), dim, embeddings_of)

    def search(self, queries: Floats, count: int) -> Nearest:
        if not len(queries) or count < 1:
            return none_found(len(queries), count)
        known = self._known(queries, count)
        fresh = self._fresh.search(queries, min(count, self._fresh.count()))
        return best_of(np.hstack([known.scores, fresh.scores]), np.hstack([known.ids, fresh.ids]), count)

    def close(self) -> None:
        self._base.close()

    def _known(self, queries: Floats, count: int) -> Nearest:
        asked = count + SPARE
        while True:
            answers = self._base.search(queries, asked)
            exhausted = bool((answers.ids < 0).any(1).all())
            ids = np.where(self._is_live(answers.ids), answers.ids, -1)
            if exhausted or (ids >= 0).sum(1).min() >= count:
                return best_of(answers.scores, ids, count)
            asked *= 4

    def _is_live(self, ids: Ids) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        if not len(self._live):
            return np.zeros(ids.shape, np.bool_)
        positions = np.minimum(np.searchsorted(self._live, ids), len(self._live) - 1)
        # The index may contain fresh embeddings by now; count them once.
        return np.asarray((self._live[positions] == ids) & ~np.isin(ids, self._fresh.ids()))


def load_faiss() -> Any:
    try:
        import faiss
    except ModuleNotFoundError:
        raise DeixisError("searching needs FAISS; pip install faiss-cpu") from None
    return faiss


def merged_ids(ids: Ids, new: Ids) -> Ids:
    """Ascending ids merged with new ones; a duplicate is a `DeixisError`."""
    ascending = np.unique(new)
    overlaps = len(ids) and len(new) and ascending[0] <= ids[-1] and np.isin(ascending, ids).any()
    if overlaps or len(ascending) < len(new):
        raise DeixisError("an embedding with this id is already in the index")
    merged = np.concatenate([ids, ascending])
    return merged if not len(ids) or not len(ascending) or ascending[0] > ids[-1] else np.sort(merged)


def none_found(queries: int, count: int) -> Nearest:
    shape = (queries, max(count, 0))
    return Nearest(np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int64))


def best_of(scores: Floats, ids: Ids, count: int) -> Nearest:
    """The `count` best of candidates `(queries, candidates)`; the id -1 stands for no candidate."""
    scores = np.where(ids < 0, -np.inf, scores).astype(np.float32)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    best = none_found(len(scores), count)
    best.scores[:, : order.shape[1]] = np.take_along_axis(scores, order, 1)
    best.ids[:, : order.shape[1]] = np.take_along_axis(ids, order, 1)
    return best
