"""Approximate nearest-neighbour search: FAISS's inverted lists (IVF) with 8-bit codes, then exact re-ranking.

Embeddings are projected to the principal axes and stored with one byte per axis. A query searches the lists whose
centres are nearest, and the best candidates are scored again with the embeddings on disk.

`results/benchmarks/search_kinds.json` has the comparison behind this choice: product quantization misses neighbours of
captions, which are far from all pictures; HNSW finds as many in half the time, but cannot delete.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from deixis.adapters.search_model import Floats
from deixis.errors import InputError
from deixis.files import atomic_write
from deixis.search.stores.exact import EmbeddingsOf, Ids, Nearest, best_of, load_faiss, merged_ids, none_found

#: The share of squared length that the axes keep.
KEPT_LENGTH = 0.95
#: The number of axes is a multiple of this; FAISS is several times slower with other code lengths.
AXES = 16
#: Training embeddings per list.
SAMPLE_A_LIST = 40
#: Lists searched per query, at least; and embeddings they should contain per candidate.
LISTS, ROWS_A_CANDIDATE = 64, 20


class ApproximateIndex:
    """Trained on a sample, then filled.

    Args:
        index: the FAISS index.
        embeddings_of: reads embeddings from disk, for re-ranking.
    """

    def __init__(self, index: Any, embeddings_of: EmbeddingsOf) -> None:
        self._index, self._embeddings_of = index, embeddings_of
        self._faiss = load_faiss()
        self._lists = self._faiss.extract_index_ivf(index)
        self._ids: Ids = self._stored_ids()

    @classmethod
    def trained(cls, sample: Floats, expected: int, embeddings_of: EmbeddingsOf) -> ApproximateIndex:
        """An empty index for about `expected` embeddings, trained on a sample (`sample_size` gives its size)."""
        faiss = load_faiss()
        axes = principal_axes(sample)
        projection = faiss.LinearTransform(sample.shape[1], len(axes), False)
        faiss.copy_array_to_vector(axes.ravel(), projection.A)
        projection.is_trained = True
        lists = max(1, min(lists_for(expected), len(sample) // SAMPLE_A_LIST))
        kind = faiss.ScalarQuantizer.QT_8bit
        centres = faiss.IndexFlatIP(len(axes))
        inner = faiss.IndexIVFScalarQuantizer(centres, len(axes), lists, kind, faiss.METRIC_INNER_PRODUCT, False)
        inner.cp.spherical, inner.cp.min_points_per_centroid = True, 1
        inner.train(np.ascontiguousarray(sample @ axes.T, np.float32))
        index = faiss.IndexPreTransform(projection, inner)
        # The outer index owns and frees the inner objects.
        for part in (projection, inner, centres):
            part.this.disown()
        inner.own_fields = index.own_fields = True
        return cls(index, embeddings_of)

    @classmethod
    def load(cls, path: Path, dim: int, embeddings_of: EmbeddingsOf) -> ApproximateIndex:
        """Open a file that `save` wrote; an `InputError` if it is damaged or has another dimension."""
        faiss = load_faiss()
        try:
            index = faiss.read_index(str(path))
            if index.d != dim:
                raise InputError(path, f"has embeddings of dimension {index.d}, not {dim}")
            return cls(index, embeddings_of)
        except RuntimeError as fault:
            raise InputError(path, f"cannot be read ({fault})") from None

    def save(self, path: Path) -> None:
        with atomic_write(path) as stream:
            self._faiss.write_index(self._index, self._faiss.PyCallbackIOWriter(stream.write))

    def add(self, ids: Ids, rows: Floats) -> None:
        self._ids = merged_ids(self._ids, ids)
        self._index.add_with_ids(np.ascontiguousarray(rows, np.float32), np.ascontiguousarray(ids, np.int64))

    def remove(self, ids: Ids) -> None:
        removed = np.intersect1d(self._ids, ids)
        if len(removed):
            self._ids = np.setdiff1d(self._ids, removed)
            self._index.remove_ids(removed)

    def search(self, queries: Floats, count: int) -> Nearest:
        if not len(queries) or count < 1 or not len(self._ids):
            return none_found(len(queries), count)
        queries = np.ascontiguousarray(queries, np.float32)
        wanted = candidates(count)
        share = ROWS_A_CANDIDATE * wanted / len(self._ids)
        lists = min(self._lists.nlist, max(LISTS, round(share * self._lists.nlist)))
        inside = self._faiss.SearchParametersIVF(nprobe=lists)
        parameters = self._faiss.SearchParametersPreTransform(index_params=inside)
        _, ids = self._index.search(queries, min(wanted, len(self._ids)), params=parameters)
        scores = np.empty(ids.shape, np.float32)
        for query, query_ids, query_scores in zip(queries, ids, scores, strict=True):
            present = query_ids >= 0
            query_scores[present] = self._embeddings_of(query_ids[present]) @ query
        return best_of(scores, ids, count)

    def ids(self) -> Ids:
        return self._ids

    def count(self) -> int:
        return len(self._ids)

    def close(self) -> None:
        """Nothing to close."""

    def outgrown_by(self, rows: int) -> bool:
        """Whether this many embeddings would make the lists much longer than planned at training."""
        return lists_for(rows) > 2 * int(self._lists.nlist)

    def _stored_ids(self) -> Ids:
        lists = self._lists.invlists
        parts = [
            self._faiss.rev_swig_ptr(lists.get_ids(index), size).copy()
            for index in range(self._lists.nlist)
            if (size := lists.list_size(index))
        ]
        return np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)


def candidates(count: int) -> int:
    """How many candidates are re-ranked to return the best `count`."""
    return 2 * count + 100


def lists_for(rows: int) -> int:
    """Four times the square root, as FAISS advises, if there are enough embeddings to train that many lists."""
    return max(1, min(4 * math.isqrt(rows), rows // SAMPLE_A_LIST))


def sample_size(rows: int) -> int:
    """The size of the training sample."""
    return min(rows, SAMPLE_A_LIST * lists_for(rows))


def principal_axes(sample: Floats) -> Floats:
    """Orthonormal axes `(axes, dim)` that keep `KEPT_LENGTH` of the squared lengths.

    Not centred, so that dot products with any query are kept, texts included.
    """
    lengths, vectors = np.linalg.eigh(sample.T @ sample / np.float32(len(sample)))
    cumulative = np.cumsum(lengths[::-1])
    needed = int(np.searchsorted(cumulative, KEPT_LENGTH * cumulative[-1])) + 1
    count = min(-(-needed // AXES) * AXES, len(cumulative))
    return np.ascontiguousarray(vectors[:, ::-1][:, :count].T, np.float32)
