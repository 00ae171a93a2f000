"""An index opened for reading: one state of it, whatever a writer does meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from deixis.adapters.search_model import Cells, Floats, SearchModel
from deixis.errors import DeixisError, InputError
from deixis.search.catalogue import Catalogue, Details, ListedFile
from deixis.search.filters import Filter, file_time
from deixis.search.generations import current_generation, index_option
from deixis.search.stores.exact import Ids, NearestNeighbours
from deixis.search.stores.vector_stores import open_store
from deixis.search.vectors import StoredEmbeddings

#: A generation may be replaced while it is being opened; the next look finds the new one.
TRIES = 5
#: Filters whose pictures are remembered.
FILTERS = 16
#: Bytes of the SHA-256 of a file's contents that identify a picture.
KEY_BYTES = 16


class Collection:
    """Pictures by id: their embeddings, and the files that hold them."""

    def __init__(self, index: str | Path) -> None:
        self.index = Path(index)
        #: The pictures that pass a filter, those taken last first.
        self.listed = lru_cache(FILTERS)(self._listed)
        for tries_left in reversed(range(TRIES)):
            try:
                self._open()
                return
            except InputError:
                if not tries_left:
                    raise

    def _open(self) -> None:
        generation = current_generation(self.index)
        if generation is None:
            option = index_option(self.index)
            raise DeixisError(f"there is no index at {self.index} yet; make one with: deixis index DIR{option}")
        self.generation = generation
        self._catalogue = Catalogue.read(generation)
        with self._catalogue.transaction("DEFERRED"):
            self.identity, self.model_name = self._catalogue.identity, self._catalogue.meta("encoder")
            places, rows = self._catalogue.places(), self._catalogue.rows
            self.roots = self._catalogue.roots()
            self._changes = self._catalogue.changes()
        self._stored = StoredEmbeddings(generation, places, rows, self.identity)
        #: The pictures' ids, in ascending order.
        self.ids: Ids = self._stored.ids

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def nearest(self) -> NearestNeighbours:
        return open_store(self.generation, self._catalogue, self._stored)

    def embeddings_of(self, ids: Ids) -> Floats:
        """The embeddings of pictures of the collection, in the order of `ids`."""
        return self._stored.of(ids)

    def cells_of(self, ids: Ids) -> Cells:
        """The cells of pictures of the collection, in the order of `ids`."""
        return self._stored.cells_of(ids)

    def paths(self, picture: int) -> list[bytes]:
        """The files that hold a picture; none if they went away since the collection was opened."""
        return self._catalogue.paths(picture)

    def details(self, picture: int) -> Details:
        return self._catalogue.details(picture)

    def date(self, picture: int) -> str:
        """When a picture was taken: by its camera's clock, or else the time of its oldest file; empty if it is gone."""
        taken = self._catalogue.details(picture).taken
        return taken or min(map(file_time, self._catalogue.file_times(picture)), default="")

    def files(self) -> Iterator[ListedFile]:
        """All files that are pictures; `taken` is the time of the file where the camera did not note one."""
        for file in self._catalogue.listing():
            yield file if file.taken else file._replace(taken=file_time(file.modified))

    def _listed(self, only: Filter) -> Ids:
        dates: dict[int, tuple[str, bytes]] = {}
        for content, path, _, _, date in self.files():
            if only.passes_date(date) and only.passes_path(path):
                dates[content] = min(dates.get(content, (date, path)), (date, path))
        newest = sorted(dates, key=lambda content: dates[content][1])
        newest.sort(key=lambda content: dates[content][0], reverse=True)
        ids = np.array(newest, np.int64)
        # What came since the collection was opened is not part of it.
        return ids[np.isin(ids, self.ids)]

    def key(self, picture: int) -> str:
        """A name of a picture that other generations know it by, too; empty if it is gone."""
        return (self._catalogue.sha256(picture) or b"")[:KEY_BYTES].hex()

    def find(self, key: str) -> int | None:
        """The picture of a key, if the collection has it."""
        try:
            start = bytes.fromhex(key)
        except ValueError:
            return None
        picture = self._catalogue.by_hash(start) if len(start) == KEY_BYTES else None
        position = np.searchsorted(self.ids, picture) if picture is not None else len(self)
        return picture if position < len(self) and self.ids[position] == picture else None

    def is_stale(self) -> bool:
        """Whether the index has changed since it was opened."""
        return current_generation(self.index) != self.generation or self._catalogue.changes() != self._changes

    def check_model(self, model: SearchModel) -> None:
        """Refuse a model whose embeddings cannot be compared with the collection's."""
        if model.identity == self.identity:
            return
        if model.identity.weights_sha256 == self.identity.weights_sha256:
            raise DeixisError(
                f"{self.index} was made with another form of {self.identity}, which sees pictures in another size, or "
                f"has other cells than {model.identity}; bring it up to date with: deixis index --index {self.index}"
            )
        if model.identity.name == self.identity.name == self.model_name:
            raise DeixisError(
                f"{self.identity.name} has changed since {self.index} was made; encode the pictures again with: "
                f"deixis index --index {self.index}"
            )
        raise DeixisError(
            f"{self.index} was made with the model {self.identity}, and this is {model.identity}; search "
            f"with --model {self.model_name}, or run: deixis index --index {self.index} --model MODEL"
        )

    def close(self) -> None:
        if "nearest" in vars(self):
            self.nearest.close()
        self._catalogue.close()
