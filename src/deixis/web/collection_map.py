"""The map of a collection: its pictures in the model's space, laid out in a plane."""

from __future__ import annotations

from threading import Lock

import msgspec
import numpy as np

from deixis.errors import DeixisError
from deixis.search.collection import Collection

#: A map shows so many pictures at most, chosen at random.
MOST = 1500
SEED = 0


class MapPoint(msgspec.Struct, frozen=True):
    """A picture; `x` and `y` are in [0, 1], `y` downwards."""

    picture: str
    x: float
    y: float


class CollectionMap(msgspec.Struct, frozen=True):
    """`pictures` is the number in the collection; of a large one, the points are a sample."""

    pictures: int
    points: list[MapPoint]


class Mapper:
    """Draws the map of a collection when it is first asked for, which takes seconds, and keeps it."""

    def __init__(self) -> None:
        self._drawn: tuple[Collection, CollectionMap] | None = None
        self._lock = Lock()

    def map_of(self, collection: Collection) -> CollectionMap:
        with self._lock:
            if self._drawn is None or self._drawn[0] is not collection:
                self._drawn = collection, draw_map(collection)
            return self._drawn[1]


def draw_map(collection: Collection) -> CollectionMap:
    """A collection of fewer than three pictures is a `DeixisError`."""
    from deixis.figures.embedding_map import scaled
    from deixis.figures.tsne import tsne

    if len(collection) < 3:
        raise DeixisError("a map needs three pictures at least")

    random = np.random.default_rng(SEED)
    chosen = np.sort(random.choice(collection.ids, min(MOST, len(collection)), replace=False))
    keys = [collection.key(picture) for picture in chosen.tolist()]
    places = scaled(tsne(collection.embeddings_of(chosen).astype(np.float64))).round(5)
    points = [MapPoint(key, x, y) for key, (x, y) in zip(keys, places.tolist(), strict=True) if key]
    return CollectionMap(len(collection), points)
