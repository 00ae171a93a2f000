"""What keeps search from working: packages, the index, its model, and whether the two still fit."""

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
    what: str
    well: bool
    told: str
    remedy: str = ""


def examine(index: Path, model_name: str | None = None) -> list[Finding]:
    """Everything that can be looked at without changing anything."""
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
        told = index_status(index)
        findings.append(Finding("index", True, f"{told.pictures:,} pictures in {told.files:,} files at {index}"))
        collection = Collection(index)
    except DeixisError as fault:
        return [*findings, Finding("index", False, str(fault))]
    findings += _watched("catalogue", lambda: _catalogue(index, collection))
    findings += _watched("vectors", lambda: _vectors(index, collection))
    findings += _watched("files", lambda: _files(collection))
    findings += _watched("search", lambda: _nearest(collection, told.store))
    if model is not None:
        own = model
        findings += _watched("model and index", lambda: _agreement(index, collection, own))
    collection.close()
    return findings


def _model_name(index: Path) -> str | None:
    """The name of the index' own model, where it can be read; what is wrong with an index is said below."""
    with suppress(DeixisError):
        return model_name_of(index)
    return None


def _watched(what: str, look: Callable[[], Finding]) -> Iterator[Finding]:
    try:
        yield look()
    except DeixisError as fault:
        yield Finding(what, False, str(fault))


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
    return Finding("catalogue", not faults, "; ".join(faults[:3]) or "is whole", _anew(index) if faults else "")


def _anew(index: Path) -> str:
    return f"make a new index: deixis index DIR --index {index}-2"


def _vectors(index: Path, collection: Collection) -> Finding:
    parts = np.array_split(collection.ids, 1 + len(collection) // 4096)
    lengths = [np.linalg.norm(collection.rows_of(part), axis=1) for part in parts]
    whole = all(bool(collection.cells_of(part).any(2).all()) for part in parts)
    sound = bool(np.allclose(np.concatenate(lengths), 1, atol=1e-3)) and whole
    cells = f", {collection.identity.cells} cells each" if collection.identity.cells else ""
    told = f"{len(collection):,} rows{cells}" + ("" if sound else ", some of them damaged")
    return Finding("vectors", sound, told, "" if sound else _anew(index))


def _files(collection: Collection) -> Finding:
    sample = collection.ids[:: max(1, len(collection) // FILES)]
    gone = sum(not any(map(_is_there, collection.paths(picture))) for picture in sample.tolist())
    told = f"{gone} of {len(sample)} pictures that were looked for are not where they were"
    return Finding("files", not gone, told if gone else "are where they were", "deixis index" if gone else "")


def _is_there(path: bytes) -> bool:
    try:
        return os.path.exists(path)
    except ValueError:  # A path with a zero byte, which only damage makes.
        return False


def _nearest(collection: Collection, store: str) -> Finding:
    """Whether pictures are found by their own rows, wherever those are searched."""
    ids = collection.ids[:: max(1, len(collection) // FILES)]
    found = collection.nearest.search(collection.rows_of(ids), 1).scores[:, 0]
    lost = int((found < SAME).sum())
    told = f"{lost} of {len(ids)} pictures are not found by their own rows" if lost else "finds pictures by their rows"
    return Finding("search", not lost, f"{told}, in {store or 'this process'}", "deixis index" if lost else "")


def _agreement(index: Path, collection: Collection, model: SearchModel) -> Finding:
    engine = SearchEngine(index, model)
    cosines = []
    for picture in collection.ids[:: max(1, len(collection) // AGAIN)][:AGAIN]:
        for path in collection.paths(int(picture))[:1]:
            try:
                cosines.append(float(engine.embed_picture(path) @ collection.rows_of(np.array([picture]))[0]))
            except DeixisError:
                continue
    agree = all(cosine > SAME for cosine in cosines)
    told = f"{len(cosines)} pictures encoded again" + (", as before" if agree else f": cosines {cosines}")
    return Finding("model and index", agree, told, "" if agree else _anew(index))
