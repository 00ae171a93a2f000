"""Exact answers for a collection from an index that may be out of date."""

from __future__ import annotations

import numpy as np

from deixis.adapters.search_model import Rows
from deixis.search.stores.exact import ExactIndex, Ids, Nearest, NearestRows, RowsOf, best_of, none_found
from deixis.search.vectors import BLOCK

#: Extra answers asked for at first, because some may have been removed.
SPARE = 16


class LiveIndex:
    """Drops answers that are no longer in the collection, and searches new embeddings exactly.

    Args:
        base: the index.
        held: ids that the index is known to contain.
        live: ids of the collection, in ascending order.
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


def exact_index(ids: Ids, dim: int, rows_of: RowsOf) -> ExactIndex:
    index = ExactIndex(dim)
    for start in range(0, len(ids), BLOCK):
        part = ids[start : start + BLOCK]
        index.add(part, rows_of(part))
    return index
