"""The duplicates of a collection, found when they are first asked for, and kept."""

from __future__ import annotations

from threading import Lock

from deixis.errors import DeixisError
from deixis.search.collection import Collection
from deixis.search.duplicates import Copy, find_duplicates

#: More pictures are not compared while somebody waits for a page.
MOST = 100_000


class FoundDuplicates:
    def __init__(self) -> None:
        self._found: tuple[Collection, list[list[Copy]]] | None = None
        self._lock = Lock()

    def of(self, collection: Collection) -> list[list[Copy]]:
        if len(collection) > MOST:
            raise DeixisError(f"more than {MOST:,} pictures are compared only by: deixis duplicates")
        with self._lock:
            if self._found is None or self._found[0] is not collection:
                self._found = collection, find_duplicates(collection)
            return self._found[1]
