"""`deixis doctor`: check the packages, the index, its model, and whether the model still gives the same embeddings."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from deixis.adapters.bundles import DEFAULT
from deixis.adapters.search_model import SearchModel
from deixis.errors import DeixisError, InputError
from deixis.loading import load_search_model
from deixis.search.catalogue import Catalogue
from deixis.search.collection import KEY_BYTES, Collection
from deixis.search.duplicates import DIFFERENT
from deixis.search.engine import SearchEngine
from deixis.search.generations import model_name_of
from deixis.search.indexing import details_of
from deixis.search.status import counted, index_status
from deixis.search.vectors import oversized_files
from deixis.vision.fingerprints import signs
from deixis.vision.picture_files import read_file, shown

PACKAGES = ("faiss-cpu", "onnxruntime", "pillow", "numpy")
#: Pictures that are looked for, that are read again, and that are encoded again.
FILES, READ, AGAIN = 200, 20, 3
#: A model on another machine differs by rounding only.
SAME = 0.999


class Finding(msgspec.Struct, frozen=True):
    """The result of one check: `message` says what was found, `remedy` what to do about it."""

    check: str
    ok: bool
    message: str
    remedy: str = ""


def examine(index: Path, model_name: str | None = None) -> list[Finding]:
    """Run every check; nothing is changed."""
    findings = list(_packages())
    model: SearchModel | None = None
    try:
        name = model_name or _model_name(index) or DEFAULT
        model = load_search_model(name)
        model.embed_queries(["a dog"])
        findings.append(Finding("model", True, f"{model.identity}, as {name}"))
    except DeixisError as fault:
        findings.append(Finding("model", False, str(fault), "give --model onnx:FOLDER"))
    try:
        status = index_status(index)
        held = f"{counted(status.pictures, 'picture')} in {counted(status.files, 'file')}"
        findings.append(Finding("index", True, f"{held} at {index}"))
        collection = Collection(index)
    except DeixisError as fault:
        return [*findings, Finding("index", False, str(fault))]
    findings += _checked("catalogue", lambda: _catalogue(index, collection))
    findings += _checked("vectors", lambda: _vectors(index, collection))
    findings += _checked("files", lambda: _files(collection))
    findings += _checked("pictures", lambda: _details(index, collection))
    findings += _checked("search", lambda: _nearest(collection, status.store))
    if model is not None:
        given_model = model
        findings += _checked("model and index", lambda: _agreement(index, collection, given_model))
    collection.close()
    return findings


def _model_name(index: Path) -> str | None:
    """The name of the index's model, if it can be read."""
    with suppress(DeixisError):
        return model_name_of(index)
    return None


def _checked(check: str, run: Callable[[], Finding]) -> Iterator[Finding]:
    try:
        yield run()
    except DeixisError as fault:
        yield Finding(check, False, str(fault))


def _packages() -> Iterator[Finding]:
    for package in PACKAGES:
        try:
            yield Finding(package, True, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(package, False, "is not installed", f"pip install {package}")


def _catalogue(index: Path, collection: Collection) -> Finding:
    catalogue = Catalogue.read(collection.generation)
    try:
        faults = [*catalogue.faults(), *catalogue.wrong_entries()]
    finally:
        catalogue.close()
    return Finding("catalogue", not faults, "; ".join(faults[:3]) or "complete", _anew(index) if faults else "")


def _anew(index: Path) -> str:
    return f"make a new index: deixis index DIR --index {index}-2"


def _vectors(index: Path, collection: Collection) -> Finding:
    parts = np.array_split(collection.ids, 1 + len(collection) // 4096)
    lengths = [np.linalg.norm(collection.embeddings_of(part), axis=1) for part in parts]
    whole = all(bool(collection.cells_of(part).any(2).all()) for part in parts)
    damaged = not whole or not np.allclose(np.concatenate(lengths), 1, atol=1e-3)
    cells = f", {collection.identity.cells} cells each" if collection.identity.cells else ""
    faults = [", some of them damaged"] if damaged else []
    faults += [f"; {path} is too large" for path in oversized_files(collection.generation, collection.identity)[:1]]
    message = f"{len(collection):,} embeddings{cells}{''.join(faults)}"
    return Finding("vectors", not faults, message, _anew(index) if faults else "")


def _files(collection: Collection) -> Finding:
    sample = collection.ids[:: max(1, len(collection) // FILES)]
    missing = sum(not any(map(_is_there, collection.paths(picture))) for picture in sample.tolist())
    message = f"{missing} of {len(sample)} pictures are missing from their folders" if missing else "in their folders"
    return Finding("files", not missing, message, "deixis index" if missing else "")


def _details(index: Path, collection: Collection) -> Finding:
    """Whether pictures have the hash, size, date and fingerprint that the index says; changed files are left out."""
    catalogue = Catalogue.read(collection.generation)
    try:
        stamps = {row.path: row.stamp for row in catalogue.files()}
    finally:
        catalogue.close()
    read, other = 0, []
    for picture in collection.ids[:: max(1, len(collection) // READ)].tolist():
        for path in collection.paths(picture)[:1]:
            try:
                data, stamp = read_file(path)
            except (InputError, ValueError):
                continue
            if stamp == stamps.get(path):
                read += 1
                if not _same_picture(collection, picture, data, path):
                    other.append(shown(path))
    message = f"{read} pictures read again, "
    message += f"{len(other)} differ from their entries: {other[0]}" if other else "as the index says"
    return Finding("pictures", not other, message, _anew(index) if other else "")


def _same_picture(collection: Collection, picture: int, data: bytes, path: bytes) -> bool:
    if hashlib.sha256(data).digest()[:KEY_BYTES].hex() != collection.key(picture):
        return False
    stored, present = collection.details(picture), details_of(data, path)
    if not stored.width or not present.width:  # Not known: of an earlier version, or of a picture that cannot be read.
        return True
    if stored[:3] != present[:3] or bool(stored.fingerprint) != bool(present.fingerprint):
        return False
    if not stored.fingerprint:
        return True
    # Decoded in another size, a picture has some other bits.
    bits = signs([stored.fingerprint, present.fingerprint])
    return float((bits[0] != bits[1]).mean()) <= DIFFERENT


def _is_there(path: bytes) -> bool:
    try:
        return os.path.exists(path)
    except ValueError:  # A path with a zero byte, which only damage makes.
        return False


def _nearest(collection: Collection, store: str) -> Finding:
    """Whether the store finds pictures by their own embeddings."""
    ids = collection.ids[:: max(1, len(collection) // FILES)]
    best_scores = collection.nearest.search(collection.embeddings_of(ids), 1).scores[:, 0]
    lost = int((best_scores < SAME).sum())
    where = f" in {store}" if store else ""
    message = f"{lost} of {len(ids)} pictures are not found by their own embeddings{where}" if lost else f"works{where}"
    return Finding("search", not lost, message, "deixis index" if lost else "")


def _agreement(index: Path, collection: Collection, model: SearchModel) -> Finding:
    engine = SearchEngine(index, model)
    cosines = []
    for picture in collection.ids[:: max(1, len(collection) // AGAIN)][:AGAIN]:
        for path in collection.paths(int(picture))[:1]:
            try:
                cosines.append(float(engine.embed_picture(path) @ collection.embeddings_of(np.array([picture]))[0]))
            except DeixisError:
                continue
    agree = all(cosine > SAME for cosine in cosines)
    result = "the same embeddings" if agree else f"other embeddings: cosines {cosines}"
    return Finding(
        "model and index", agree, f"{len(cosines)} pictures encoded again, {result}", "" if agree else _anew(index)
    )
