"""The folder of an index: one generation in use, perhaps another that is being built beside it.

    .lock             held by the one writer
    current           the name of the generation in use
    towers-1f2e…-1/   catalogue.sqlite, vectors/

A generation is bound to one model. Another model, or a tidying, makes another one, and `current` is replaced when
that is whole; readers see the one or the other.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
from contextlib import suppress
from pathlib import Path

import msgspec

from deixis.adapters.search_model import Identity
from deixis.errors import InputError
from deixis.files import read_regular, write_text
from deixis.search.catalogue import CATALOGUE, REMEDY, Catalogue
from deixis.search.stores.vector_stores import drop_store

CURRENT = "current"


def default_index() -> Path:
    """Where an index is if nobody says otherwise: `$DEIXIS_INDEX`, or the user's data folder."""
    chosen = os.environ.get("DEIXIS_INDEX")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_data_dir("deixis", appauthor=False)) / "index"


def index_option(index: Path) -> str:
    """The option that a command needs to use this index, with a space before it; empty for the default index."""
    return "" if index == default_index() else f" --index {shlex.quote(str(index))}"


def current_generation(index: Path) -> Path | None:
    """The generation in use, or None where the index has none yet."""
    # A file that leads nowhere is there, and damaged.
    if not os.path.lexists(index / CURRENT):
        return None
    try:
        name = read_regular(index / CURRENT, 1000).decode().strip()
    except UnicodeDecodeError:
        name = ""
    except InputError as fault:
        raise InputError(fault.path, f"{fault.problem}; {REMEDY}") from None
    if not re.fullmatch(r"[\w.-]+", name) or not (index / name / CATALOGUE).exists():
        raise InputError(index / CURRENT, f"names no index; {REMEDY}")
    return index / name


def model_name_of(index: Path) -> str | None:
    """What opens the model of the generation in use, or None where the index has none yet."""
    current = current_generation(index)
    if current is None:
        return None
    catalogue = Catalogue.read(current)
    try:
        return catalogue.meta("encoder")
    finally:
        catalogue.close()


def generation_of(index: Path, identity: Identity) -> Path | None:
    """The generation bound to a model, in use or unfinished."""
    current = current_generation(index)
    rest = sorted(path.parent for path in index.glob(f"*/{CATALOGUE}"))
    for folder in ([current] if current else []) + [path for path in rest if path != current]:
        try:
            catalogue = Catalogue.read(folder)
            try:
                if catalogue.identity == identity:
                    return folder
            finally:
                catalogue.close()
        except InputError:
            # An unfinished one that is damaged is of no use, and is removed when another is put in use.
            if folder == current:
                raise
    return None


def new_generation(index: Path, identity: Identity) -> Path:
    """An empty folder for another generation."""
    digest = hashlib.sha256(msgspec.json.encode(identity, order="deterministic")).hexdigest()[:12]
    stem = f"{re.sub(r'[^a-z0-9]+', '-', identity.name.lower()).strip('-')[:40]}-{digest}"
    number = 1
    while (index / f"{stem}-{number}" / CATALOGUE).exists():
        number += 1
    folder = index / f"{stem}-{number}"
    # Without a catalogue it is the rest of a writer that was killed.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def put_in_use(index: Path, generation: Path) -> None:
    """Make a generation the one in use, and remove all others; readers that have one open keep it."""
    write_text(index / CURRENT, f"{generation.name}\n")
    for path in index.glob(f"*/{CATALOGUE}"):
        if path.parent == generation:
            continue
        try:
            # What still has rows in a Milvus that is away is kept until it is back.
            dropped = drop_store(path.parent, unless_of=generation)
        except InputError:
            dropped = True  # Damaged: nothing says what it has there.
        if dropped:
            # First what makes it a generation, so that half of one is never taken for a whole.
            with suppress(OSError):
                path.unlink(missing_ok=True)
            shutil.rmtree(path.parent, ignore_errors=True)
