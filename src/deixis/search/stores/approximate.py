"""Nearest rows without comparing all: lists of rows near the same centre (FAISS's IVF), then the real rows.

Rows are compared along the few axes that hold nearly all of their length, a byte an axis, in the lists whose centres a
query is nearest to. The best of them are compared again as they are on the disk.

This kind was chosen by `results/benchmarks/search_kinds.json`: coarser codes (product quantization) miss nearest rows
of captions, which are far from all rows of pictures; graphs (HNSW) find as many in half the time, but cannot delete.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from deixis.adapters.search_model import Rows
from deixis.errors import InputError
from deixis.files import atomic_write
from deixis.search.stores.exact import Ids, Nearest, RowsOf, best_of, load_faiss, merged_ids, none_found

#: The share of the rows' squared lengths that the axes hold.
KEPT_LENGTH = 0.95
#: Their number is a multiple of this: FAISS compares codes of any other length several times as slowly.
AXES = 16
#: Rows to train on for each list.
SAMPLE_A_LIST = 40
#: Lists looked through for each query at the least, and how many rows they should hold for each candidate.
LISTS, ROWS_A_CANDIDATE = 64, 20


class ApproximateIndex:
    """Trained on a sample of rows, then filled.

    Args:
        index: FAISS's.
        rows_of: the rows on the disk, to compare candidates with.
    """

    def __init__(self, index: Any, rows_of: RowsOf) -> None:
        self._index, self._rows_of = index, rows_of
        self._faiss = load_faiss()
        self._lists = self._faiss.extract_index_ivf(index)
        self._ids: Ids = self._stored_ids()

    @classmethod
    def trained(cls, sample: Rows, expected: int, rows_of: RowsOf) -> ApproximateIndex:
        """An empty index for about so many rows like those of a sample (`rows_to_train` of them are enough)."""
        faiss = load_faiss()
        axes = principal_axes(sample)
        turned = faiss.LinearTransform(sample.shape[1], len(axes), False)
        faiss.copy_array_to_vector(axes.ravel(), turned.A)
        turned.is_trained = True
        lists = max(1, min(lists_for(expected), len(sample) // SAMPLE_A_LIST))
        kind = faiss.ScalarQuantizer.QT_8bit
        centres = faiss.IndexFlatIP(len(axes))
        inner = faiss.IndexIVFScalarQuantizer(centres, len(axes), lists, kind, faiss.METRIC_INNER_PRODUCT, False)
        inner.cp.spherical, inner.cp.min_points_per_centroid = True, 1
        inner.train(np.ascontiguousarray(sample @ axes.T, np.float32))
        index = faiss.IndexPreTransform(turned, inner)
        # The outer index frees what the inner ones hold, once Python does not.
        for part in (turned, inner, centres):
            part.this.disown()
        inner.own_fields = index.own_fields = True
        return cls(index, rows_of)

    @classmethod
    def load(cls, path: Path, dim: int, rows_of: RowsOf) -> ApproximateIndex:
        """Open a file that `save` wrote; an `InputError` where it is damaged or of other rows."""
        faiss = load_faiss()
        try:
            index = faiss.read_index(str(path))
            if index.d != dim:
                raise InputError(path, f"holds rows of {index.d} numbers, not {dim}")
            return cls(index, rows_of)
        except RuntimeError as fault:
            raise InputError(path, f"cannot be read ({fault})") from None

    def save(self, path: Path) -> None:
        with atomic_write(path) as stream:
            self._faiss.write_index(self._index, self._faiss.PyCallbackIOWriter(stream.write))

    def add(self, ids: Ids, rows: Rows) -> None:
        self._ids = merged_ids(self._ids, ids)
        self._index.add_with_ids(np.ascontiguousarray(rows, np.float32), np.ascontiguousarray(ids, np.int64))

    def remove(self, ids: Ids) -> None:
        gone = np.intersect1d(self._ids, ids)
        if len(gone):
            self._ids = np.setdiff1d(self._ids, gone)
            self._index.remove_ids(gone)

    def search(self, queries: Rows, count: int) -> Nearest:
        if not len(queries) or count < 1 or not len(self._ids):
            return none_found(len(queries), count)
        queries = np.ascontiguousarray(queries, np.float32)
        asked = candidates(count)
        share = ROWS_A_CANDIDATE * asked / len(self._ids)
        lists = min(self._lists.nlist, max(LISTS, round(share * self._lists.nlist)))
        inside = self._faiss.SearchParametersIVF(nprobe=lists)
        parameters = self._faiss.SearchParametersPreTransform(index_params=inside)
        _, found = self._index.search(queries, min(asked, len(self._ids)), params=parameters)
        scores = np.empty(found.shape, np.float32)
        for query, own, own_scores in zip(queries, found, scores, strict=True):
            there = own >= 0
            own_scores[there] = self._rows_of(own[there]) @ query
        return best_of(scores, found, count)

    def ids(self) -> Ids:
        return self._ids

    def count(self) -> int:
        return len(self._ids)

    def close(self) -> None:
        """There is nothing to let go of."""

    def outgrown_by(self, rows: int) -> bool:
        """Whether so many rows are many more than it was trained for, so that lists would become long."""
        return lists_for(rows) > 2 * int(self._lists.nlist)

    def _stored_ids(self) -> Ids:
        lists = self._lists.invlists
        parts = [
            self._faiss.rev_swig_ptr(lists.get_ids(number), size).copy()
            for number in range(self._lists.nlist)
            if (size := lists.list_size(number))
        ]
        return np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)


def candidates(count: int) -> int:
    """How many rows are compared as they are on the disk, for the best so many."""
    return 2 * count + 100


def lists_for(rows: int) -> int:
    """Four times the root, as FAISS' authors advise, where there are enough rows to train so many."""
    return max(1, min(4 * math.isqrt(rows), rows // SAMPLE_A_LIST))


def rows_to_train(rows: int) -> int:
    """How many of so many rows are enough to train on."""
    return min(rows, SAMPLE_A_LIST * lists_for(rows))


def principal_axes(sample: Rows) -> Rows:
    """Orthonormal axes `(axes, dim)` that hold `KEPT_LENGTH` of the rows' squared lengths.

    Taken about zero, not about the mean, so that dot products of any query with the rows are kept, a text's too.
    """
    lengths, vectors = np.linalg.eigh(sample.T @ sample / np.float32(len(sample)))
    held = np.cumsum(lengths[::-1])
    needed = int(np.searchsorted(held, KEPT_LENGTH * held[-1])) + 1
    count = min(-(-needed // AXES) * AXES, len(held))
    return np.ascontiguousarray(vectors[:, ::-1][:, :count].T, np.float32)
