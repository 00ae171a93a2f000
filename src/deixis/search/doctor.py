"""`deixis doctor`: check the packages, the index, its model, and whether the model still gives the same embeddings."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from deixis.adapters.bundles import DEFAULT
from deixis.adapters.search_model import SearchModel
from deixis.errors import DeixisError
from deixis.loading import load_search_model
from deixis.search.catalogue import Catalogue
from deixis.search.collection import Collection
from deixis.search.engine import SearchEngine
from deixis.search.generations import model_name_of
from deixis.search.status import index_status

PACKAGES = ("faiss-cpu", "onnxruntime", "pillow", "numpy")
#: Pictures that are looked for, and that are encoded again.
FILES, AGAIN = 200, 3
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
        findings.append(Finding("index", True, f"{status.pictures:,} pictures in {status.files:,} files at {index}"))
        collection = Collection(index)
    except DeixisError as fault:
        return [*findings, Finding("index", False, str(fault))]
    findings += _checked("catalogue", lambda: _catalogue(index, collection))
    findings += _checked("vectors", lambda: _vectors(index, collection))
    findings += _checked("files", lambda: _files(collection))
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
        faults = catalogue.faults()
    finally:
        catalogue.close()
    return Finding("catalogue", not faults, "; ".join(faults[:3]) or "complete", _anew(index) if faults else "")


def _anew(index: Path) -> str:
    return f"make a new index: deixis index DIR --index {index}-2"


def _vectors(index: Path, collection: Collection) -> Finding:
    parts = np.array_split(collection.ids, 1 + len(collection) // 4096)
    lengths = [np.linalg.norm(collection.embeddings_of(part), axis=1) for part in parts]
    whole = all(bool(collection.cells_of(part).any(2).all()) for part in parts)
    sound = bool(np.allclose(np.concatenate(lengths), 1, atol=1e-3)) and whole
    cells = f", {collection.identity.cells} cells each" if collection.identity.cells else ""
    message = f"{len(collection):,} embeddings{cells}" + ("" if sound else ", some of them damaged")
    return Finding("vectors", sound, message, "" if sound else _anew(index))


def _files(collection: Collection) -> Finding:
    sample = collection.ids[:: max(1, len(collection) // FILES)]
    gone = sum(not any(map(_is_there, collection.paths(picture))) for picture in sample.tolist())
    message = f"{gone} of {len(sample)} pictures are missing from their folders" if gone else "in their folders"
    return Finding("files", not gone, message, "deixis index" if gone else "")


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
