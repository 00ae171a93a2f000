"""How well the search engine finds a picture by its caption, and captions by their picture, end to end.

    python benchmarks/search_quality.py CORPUS --index FOLDER [--split test] [--folds 2] [--json FILE]

The pictures of a split are written to FOLDER and indexed by `deixis index`; with --folds, in so many collections, whose
figures are averaged. Then every caption is a query, as one phrase, and the rank of its picture is counted. For
comparison: embeddings alone, and every picture scored by its cells, not just the nearest ones. Captions are ranked by
the model's score of the indexed pictures.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from reporting import measured_with, write_report

from deixis.adapters.search_model import Floats, Pictures, scores, whole_texts
from deixis.corpus import Corpus, Image, open_corpus
from deixis.loading import absolute_name, load_search_model
from deixis.metrics.results import versions
from deixis.search import engine as engine_module
from deixis.search.engine import SearchEngine
from deixis.search.indexing import index_folders
from deixis.search.queries import Query
from deixis.search.status import index_status
from deixis.search.stores.exact import Ids

RECALL_AT = (1, 5, 10)
#: Queries asked together.
TOGETHER = 32
#: Captions scored at a time with every picture.
PART = 250


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", metavar="CORPUS")
    parser.add_argument("--pictures-in", type=Path, default=None)
    parser.add_argument("--split", default="test")
    parser.add_argument("--folds", type=int, default=1)
    parser.add_argument("--index", type=Path, required=True)
    parser.add_argument("--model", default="deixis-base")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    corpus = open_corpus(options.corpus, pictures=options.pictures_in)
    images = [image for image in corpus.split(options.split) if image.captions]
    start = time.perf_counter()
    size = len(images) // options.folds
    folds = [
        quality(corpus, images[fold * size : (fold + 1) * size], options.index / f"fold-{fold}", options.model)
        for fold in range(options.folds)
    ]
    record: dict[str, Any] = {
        **measured_with(load_search_model(options.model)),
        "collection": f"{corpus.name}, {options.split}, {corpus.split_hash(options.split)}",
        "folds": options.folds,
        "pictures": size,
        "candidates": engine_module.CANDIDATES,
        **{name: mean([fold[name] for fold in folds]) for name in folds[0]},
        "seconds": round(time.perf_counter() - start, 1),
        "command": f"python benchmarks/search_quality.py {corpus.name} --split {options.split} --index FOLDER"
        + (" --pictures-in FOLDER" if options.pictures_in else "")
        + (f" --folds {options.folds}" if options.folds > 1 else ""),
        "versions": versions(),
    }
    write_report(record, options.json)


def quality(corpus: Corpus, images: Sequence[Image], folder: Path, model: str) -> dict[str, dict[str, float]]:
    """Recalls among these images, in both directions."""
    make_index(corpus, images, folder, model)
    engine = SearchEngine(folder / "index")
    ids = picture_ids(engine, [picture_file(folder, number) for number in range(len(images))])
    texts = [caption.text for image in images for caption in image.captions]
    owners = np.repeat(np.arange(len(images)), [len(image.captions) for image in images])
    pictures = Pictures(engine.collection.embeddings_of(ids), engine.collection.cells_of(ids))
    parts = [engine.model.embed_queries(texts[start : start + PART]) for start in range(0, len(texts), PART)]
    tables = {
        "": np.concatenate([scores(part, pictures) for part in parts]).T,
        ", embeddings alone": np.concatenate([scores(whole_texts(part.embeddings), pictures) for part in parts]).T,
    }
    own = owners == np.arange(len(images))[:, None]
    by_text = {"text_to_image": recalls(text_ranks(engine, texts, ids[owners]))}
    for name, table in tables.items():
        by_text[f"text_to_image{name or ', every picture scored'}"] = recalls(first_ranks(table.T, own.T))
    by_image = {f"image_to_text{name}": recalls(first_ranks(table, own)) for name, table in tables.items()}
    stored: dict[str, float] = {"bytes_a_picture": round(index_status(folder / "index").bytes / len(images))}
    found: dict[str, dict[str, float]] = {**by_text, **by_image, "index": stored}
    print(found, flush=True)
    return found


def mean(figures: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: round(sum(each[name] for each in figures) / len(figures), 2) for name in figures[0]}


def picture_file(folder: Path, number: int) -> Path:
    return folder / "pictures" / f"{number:06}.jpg"


def make_index(corpus: Corpus, images: Sequence[Image], folder: Path, model: str) -> None:
    """Index the pictures of images as files; an index that is there is brought up to date."""
    assert corpus.pictures is not None, f"{corpus.name} has no pictures"
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images):
        if not picture_file(folder, number).exists():
            picture_file(folder, number).write_bytes(corpus.pictures.read(image))
    report = index_folders(folder / "index", [folder / "pictures"], load_search_model(model), absolute_name(model))
    assert report.files == len(images), report.unreadable


def picture_ids(engine: SearchEngine, files: Sequence[Path]) -> Ids:
    """The collection's id of each file's picture."""
    known = {path: number for number in engine.collection.ids.tolist() for path in engine.collection.paths(number)}
    return np.array([known[os.fsencode(os.path.realpath(path))] for path in files], np.int64)


def text_ranks(engine: SearchEngine, texts: Sequence[str], owners: Ids) -> Floats:
    """The rank of each text's picture among the hits, from 1 on; infinite where it is not among the first ten."""
    ranks = np.full(len(texts), np.inf, np.float32)
    for start in range(0, len(texts), TOGETHER):
        part = texts[start : start + TOGETHER]
        terms = engine.terms([Query(text, (text,), ()) for text in part], [None] * len(part))
        for place, ranking in enumerate(engine.rank(terms, max(RECALL_AT)), start):
            found = np.flatnonzero(ranking.ids[: max(RECALL_AT)] == owners[place])
            ranks[place] = 1 + found[0] if len(found) else np.inf
    return ranks


def first_ranks(table: Floats, own: NDArray[np.bool_]) -> Floats:
    """The rank of the first right column in each row, from 1 on; ties count against it."""
    best = np.where(own, table, -np.inf).max(1, keepdims=True)
    ranks: Floats = 1 + ((table >= best) & ~own).sum(1).astype(np.float32)
    return ranks


def recalls(ranks: Floats) -> dict[str, float]:
    return {f"r@{k}": round(100 * float((ranks <= k).mean()), 2) for k in RECALL_AT}


if __name__ == "__main__":
    main()
