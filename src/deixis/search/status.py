"""What an index holds, for people and programs."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from deixis.errors import DeixisError
from deixis.search.catalogue import CATALOGUE, Catalogue
from deixis.search.generations import current_generation, index_option
from deixis.search.indexing import excluded_patterns
from deixis.search.stores.vector_stores import STORE
from deixis.vision.picture_files import shown


class IndexStatus(msgspec.Struct, frozen=True):
    index: str
    #: Different pictures, and the files that hold them.
    pictures: int
    files: int
    unreadable: int
    folders: list[str]
    model: str
    model_name: str
    weights_sha256: str
    dim: int
    #: Cells of a picture that words are compared with.
    cells: int
    bytes: int
    #: Where rows are searched, if anybody said so (`deixis.search.stores.vector_stores`).
    store: str
    #: Patterns of files and folders that are skipped.
    exclude: list[str]
    #: The name of a second index that is not whole yet; empty where there is none.
    building: str


def counted(count: int, noun: str) -> str:
    """
    >>> counted(1, "picture"), counted(2000, "file")
    ('1 picture', '2,000 files')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def index_status(index: Path) -> IndexStatus:
    """Read without loading a vector; no index is a `DeixisError`."""
    generation = current_generation(index)
    if generation is None:
        raise DeixisError(f"there is no index at {index} yet; make one with: deixis index DIR{index_option(index)}")
    catalogue = Catalogue.read(generation)
    try:
        files, pictures = catalogue.counts()
        identity = catalogue.identity
        return IndexStatus(
            index=shown(os.fsencode(index)),
            pictures=pictures,
            files=files,
            unreadable=len(catalogue.problems()),
            folders=[shown(root) for root in catalogue.roots()],
            model=identity.name,
            model_name=catalogue.meta("encoder"),
            weights_sha256=identity.weights_sha256,
            dim=identity.dim,
            cells=identity.cells,
            bytes=sum(path.stat().st_size for path in generation.rglob("*") if path.is_file()),
            store=catalogue.setting(STORE),
            exclude=excluded_patterns(catalogue),
            building=", ".join(path.parent.name for path in index.glob(f"*/{CATALOGUE}") if path.parent != generation),
        )
    finally:
        catalogue.close()
