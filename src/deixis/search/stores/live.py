"""An index that may lag behind its collection, made to answer for exactly what the collection holds."""

from __future__ import annotations

import numpy as np

from deixis.adapters.search_model import Rows
from deixis.search.stores.exact import ExactIndex, Ids, Nearest, NearestRows, RowsOf, best_of, none_found
from deixis.search.vectors import BLOCK

#: Rows beside those asked for, at first, in case some found are gone.
SPARE = 16


class LiveIndex:
    """What an index has and the collection has not is left out; what it has not yet is compared row by row.

    Args:
        base: the index.
        held: rows that it surely holds.
        live: the collection's rows, rising.
    """

    def __init__(self, base: NearestRows, held: Ids, live: Ids, dim: int, rows_of: RowsOf) -> None:
        self._base, self._live = base, live
        self._fresh = exact_index(np.setdiff1d(live, held), dim, rows_of)

    def search(self, queries: Rows, count: int) -> Nearest:
        if not len(queries) or count < 1:
            return none_found(len(queries), count)
        known = self._known(queries, count)
        fresh = self._fresh.search(queries, min(count, self._fresh.count()))
        return best_of(np.hstack([known.scores, fresh.scores]), np.hstack([known.ids, fresh.ids]), count)

    def close(self) -> None:
        self._base.close()

    def _known(self, queries: Rows, count: int) -> Nearest:
        asked = count + SPARE
        while True:
            found = self._base.search(queries, asked)
            ended = bool((found.ids < 0).any(1).all())
            ids = np.where(self._is_live(found.ids), found.ids, -1)
            if ended or (ids >= 0).sum(1).min() >= count:
                return best_of(found.scores, ids, count)
            asked *= 4

    def _is_live(self, ids: Ids) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        if not len(self._live):
            return np.zeros(ids.shape, np.bool_)
        places = np.minimum(np.searchsorted(self._live, ids), len(self._live) - 1)
        # Rows that are fresh here may have come to the index since; they are compared once.
        return np.asarray((self._live[places] == ids) & ~np.isin(ids, self._fresh.ids()))


def exact_index(ids: Ids, dim: int, rows_of: RowsOf) -> ExactIndex:
    index = ExactIndex(dim)
    for start in range(0, len(ids), BLOCK):
        part = ids[start : start + BLOCK]
        index.add(part, rows_of(part))
    return index
