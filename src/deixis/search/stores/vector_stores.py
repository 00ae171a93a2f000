"""Where the embeddings of an index are searched: in this process, or in Milvus.

    (nothing)              in this process: exactly up to about a million embeddings, approximately beyond
    exact, approximate     in this process, one or the other
    milvus://HOST:PORT     a Milvus server or cluster
    FILE.db                milvus-lite in a file

The catalogue and the embeddings on disk are the truth; every store is derived from them and can be rebuilt. A reader
searches embeddings that a store does not have yet exactly, and drops those that were removed (`LiveIndex`).
"""

from __future__ import annotations

import os
import re
import secrets
import zlib
from pathlib import Path

import numpy as np

from deixis.adapters.search_model import Floats
from deixis.errors import DeixisError, InputError
from deixis.files import open_regular
from deixis.search.catalogue import Catalogue
from deixis.search.stores.approximate import ApproximateIndex, sample_size
from deixis.search.stores.exact import Ids, LiveIndex, NearestNeighbours, VectorIndex, exact_index
from deixis.search.stores.milvus import SCHEME, MilvusIndex, is_milvus
from deixis.search.vectors import BLOCK, StoredEmbeddings

EXACT, APPROXIMATE = "exact", "approximate"
#: By default, larger collections are searched approximately.
EXACT_ROWS = 1_000_000
#: The file of the approximate index in a generation's folder.
NEAREST = "nearest.faiss"
#: Keys in the catalogue: the store, the name of the Milvus collection, and the last id that Milvus is known to have.
STORE, NAME, LAST = "store", "milvus_collection", "milvus_last"
#: Key in the catalogue: CRC-32 of the approximate index, because FAISS does not check what it reads.
CHECKSUM = "nearest_crc32"


def check_store(store: str) -> str:
    """The store as the catalogue keeps it; an unknown one is a `DeixisError`."""
    if store in ("", EXACT, APPROXIMATE) or re.fullmatch(rf"{SCHEME}[\w.-]+:\d+", store):
        return store
    if is_milvus(store) and not store.startswith(SCHEME):
        return os.path.abspath(store)
    raise DeixisError(f"unknown store {store!r}; known: {EXACT}, {APPROXIMATE}, {SCHEME}HOST:PORT, FILE.db")


def open_store(generation: Path, catalogue: Catalogue, rows: StoredEmbeddings) -> NearestNeighbours:
    """The store that answers queries for a generation."""
    store, dim = catalogue.setting(STORE), catalogue.identity.dim
    if is_milvus(store):
        index = MilvusIndex(store, catalogue.setting(NAME), dim, create=False)
        held = rows.ids[rows.ids <= catalogue.number(LAST)]
        if index.count() < len(held):
            # Milvus lost some: ask for the whole list.
            held = index.ids()
        return LiveIndex(index, held, rows.ids, dim, rows.of)
    if _is_approximate(store, len(rows.ids)):
        approximate = _load(generation / NEAREST, catalogue, rows)
        if approximate is not None:
            # Removed pictures cannot be re-ranked.
            approximate.remove(np.setdiff1d(approximate.ids(), rows.ids))
            return LiveIndex(approximate, approximate.ids(), rows.ids, dim, rows.of)
    return exact_index(rows.ids, dim, rows.of)


class Follower:
    """Keeps the store of a generation in step with the catalogue; used by the one writer of an index."""

    def __init__(self, generation: Path, catalogue: Catalogue) -> None:
        self._generation, self._catalogue = generation, catalogue
        self._store, self._dim = catalogue.setting(STORE), catalogue.identity.dim
        self._milvus: MilvusIndex | None = None
        if is_milvus(self._store):
            self._milvus = MilvusIndex(self._store, catalogue.meta(NAME), self._dim)
            try:
                rows = self._rows()
                _follow(self._milvus, rows)
            except BaseException:
                self.close()
                raise
            self._mark(int(rows.ids.max(initial=0)))

    def add(self, ids: Ids, rows: Floats) -> None:
        """Add embeddings that the catalogue has just recorded."""
        if self._milvus is not None and len(ids):
            self._milvus.add(ids, rows)
            self._mark(int(ids.max()))

    def finish(self) -> None:
        """The slow part, at the end of a run."""
        if self._milvus is not None:
            self._milvus.flush()
        rows, path = self._rows(), self._generation / NEAREST
        if path.exists() and not path.is_file() and not path.is_dir():
            # A pipe, say: the name is this index's own.
            path.unlink()
        if _is_approximate(self._store, len(rows.ids)):
            self._save_approximate(path, rows)
        elif path.is_file():
            path.unlink()

    def close(self) -> None:
        if self._milvus is not None:
            self._milvus.close()

    def _rows(self) -> StoredEmbeddings:
        catalogue = self._catalogue
        return StoredEmbeddings(self._generation, catalogue.places(), catalogue.rows, catalogue.identity)

    def _mark(self, last: int) -> None:
        with self._catalogue.transaction():
            self._catalogue.set_meta(LAST, str(last))

    def _save_approximate(self, path: Path, rows: StoredEmbeddings) -> None:
        index = _load(path, self._catalogue, rows)
        if index is None or index.outgrown_by(len(rows.ids)):
            sample = np.random.default_rng(0).choice(rows.ids, sample_size(len(rows.ids)), replace=False)
            index = ApproximateIndex.trained(rows.of(np.sort(sample)), len(rows.ids), rows.of)
        elif np.array_equal(index.ids(), rows.ids):
            return
        _follow(index, rows)
        index.save(path)
        with self._catalogue.transaction():
            self._catalogue.set_meta(CHECKSUM, str(_checksum(path)))


def bring_store_up_to_date(generation: Path) -> None:
    """Bring the store of a generation up to date, before the generation is put in use."""
    catalogue = Catalogue.write(generation)
    try:
        follower = Follower(generation, catalogue)
        try:
            follower.finish()
        finally:
            follower.close()
    finally:
        catalogue.close()


def _is_approximate(store: str, rows: int) -> bool:
    return rows > 0 and (store == APPROXIMATE or (not store and rows > EXACT_ROWS))


def _load(path: Path, catalogue: Catalogue, rows: StoredEmbeddings) -> ApproximateIndex | None:
    """The approximate index, or None if it is missing or damaged: the next run rebuilds it."""
    try:
        if str(_checksum(path)) != catalogue.setting(CHECKSUM):
            return None
        return ApproximateIndex.load(path, catalogue.identity.dim, rows.of)
    except InputError:
        return None


def _checksum(path: Path) -> int:
    """The CRC-32 of a file."""
    checksum = 0
    with open_regular(path) as stream:
        while part := stream.read(1 << 20):
            checksum = zlib.crc32(part, checksum)
    return checksum


def _follow(index: VectorIndex, rows: StoredEmbeddings) -> None:
    held = index.ids()
    index.remove(np.setdiff1d(held, rows.ids))
    missing = np.setdiff1d(rows.ids, held)
    for start in range(0, len(missing), BLOCK):
        part = missing[start : start + BLOCK]
        index.add(part, rows.of(part))


def choose_store(catalogue: Catalogue, store: str) -> None:
    """Change the store of a generation; its old Milvus collection is removed if the server can be reached."""
    previous = _MilvusCollection(catalogue)
    if store == previous.store:
        return
    name = f"deixis_{secrets.token_hex(8)}" if is_milvus(store) else ""
    if name:
        # Fails here, before anything is changed, if the server cannot be reached.
        MilvusIndex(store, name, catalogue.identity.dim).close()
    with catalogue.transaction():
        for key, value in ((STORE, store), (NAME, name), (LAST, "0")):
            catalogue.set_meta(key, value)
    previous.drop()


def drop_store(generation: Path, unless_of: Path) -> bool:
    """Remove the Milvus collection of a generation, unless another uses it; False if Milvus cannot be reached."""
    collections = []
    for folder in (generation, unless_of):
        catalogue = Catalogue.read(folder)
        collections.append(_MilvusCollection(catalogue))
        catalogue.close()
    return collections[0].name == collections[1].name or collections[0].drop()


class _MilvusCollection:
    """The Milvus collection of a generation, if it has one."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.store, self.name = catalogue.setting(STORE), catalogue.setting(NAME)
        self._dim = catalogue.identity.dim

    def drop(self) -> bool:
        """Remove it; whether it is gone."""
        if not self.name:
            return True
        try:
            index = MilvusIndex(self.store, self.name, self._dim)
        except DeixisError:
            return False
        index.drop()
        index.close()
        return True
