"""How well the search engine finds a picture by its caption, and captions by their picture, end to end.

    python benchmarks/search_quality.py CORPUS --index FOLDER [--split test] [--json results/search/quality.json]

The pictures of a split are written to FOLDER/pictures and indexed by `deixis index` into FOLDER/index, which is kept.
Then every caption is a query, as one phrase, and the rank of its picture is counted. For comparison: embeddings alone,
and re-ranking all pictures by their cells instead of the nearest ones. Captions are ranked by the model's `score`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from reporting import write_report

from deixis.adapters.search_model import Rows, whole_texts
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", metavar="CORPUS")
    parser.add_argument("--pictures-in", type=Path, default=None)
    parser.add_argument("--split", default="test")
    parser.add_argument("--index", type=Path, required=True)
    parser.add_argument("--model", default="deixis-base")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    corpus = open_corpus(options.corpus, pictures=options.pictures_in)
    images = [image for image in corpus.split(options.split) if image.captions]
    start = time.perf_counter()
    indexed = make_index(corpus, images, options.index, options.model)
    engine = SearchEngine(options.index / "index")
    files = [picture_file(options.index, number) for number in range(len(images))]
    ids = picture_ids(engine, files)
    texts = [caption.text for image in images for caption in image.captions]
    owners = np.repeat(np.arange(len(images)), [len(image.captions) for image in images])
    by_text = {
        "text_to_image": recalls(text_ranks(engine, texts, ids[owners])),
        "text_to_image, embeddings alone": recalls(text_ranks(engine, texts, ids[owners], words=False)),
    }
    candidates, engine_module.CANDIDATES = engine_module.CANDIDATES, len(images)
    by_text["text_to_image, every picture's cells"] = recalls(text_ranks(engine, texts, ids[owners]))
    print(by_text, flush=True)
    whole = engine.collection.rows_of(ids) @ engine.model.embed_queries(texts).rows.T
    by_image = {
        "image_to_text": recalls(image_ranks(engine.model.score(files, texts), owners)),
        "image_to_text, embeddings alone": recalls(image_ranks(whole, owners)),
    }
    record: dict[str, Any] = {
        "model": str(engine.model.identity),
        "collection": f"{corpus.name}, {options.split}, {corpus.split_hash(options.split)}",
        "pictures": len(images),
        "captions": len(texts),
        "candidates": candidates,
        "index_bytes_a_picture": round(index_status(options.index / "index").bytes / len(images)),
        **by_text,
        **by_image,
        "indexing": indexed,
        "seconds": round(time.perf_counter() - start, 1),
        "command": f"python benchmarks/search_quality.py {corpus.name} --split {options.split} --index FOLDER",
        "versions": versions(),
    }
    write_report(record, options.json)


def picture_file(folder: Path, number: int) -> Path:
    return folder / "pictures" / f"{number:06}.jpg"


def make_index(corpus: Corpus, images: Sequence[Image], folder: Path, model: str) -> dict[str, Any]:
    """Index the pictures of images as files; an index that is there is brought up to date."""
    assert corpus.pictures is not None, f"{corpus.name} has no pictures"
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images):
        if not picture_file(folder, number).exists():
            picture_file(folder, number).write_bytes(corpus.pictures.read(image))
    report = index_folders(folder / "index", [folder / "pictures"], load_search_model(model), absolute_name(model))
    assert report.files == len(images), report.unreadable
    return {"added": report.added, "seconds": report.seconds}


def picture_ids(engine: SearchEngine, files: Sequence[Path]) -> Ids:
    """The collection's id of each file's picture."""
    known = {path: number for number in engine.collection.ids.tolist() for path in engine.collection.paths(number)}
    return np.array([known[os.fsencode(os.path.realpath(path))] for path in files], np.int64)


def text_ranks(engine: SearchEngine, texts: Sequence[str], owners: Ids, *, words: bool = True) -> Rows:
    """The rank of each text's picture among the hits, from 1 on; infinite where it is not among the first ten."""
    ranks = np.full(len(texts), np.inf, np.float32)
    for start in range(0, len(texts), TOGETHER):
        part = texts[start : start + TOGETHER]
        terms = engine.terms([Query(text, (text,), ()) for text in part], [None] * len(part))
        if not words:
            wholes = [whole_texts(each.phrases.texts.rows) for each in terms]
            terms = [
                each._replace(phrases=each.phrases._replace(texts=whole))
                for each, whole in zip(terms, wholes, strict=True)
            ]
        for place, ranking in enumerate(engine.rank(terms, max(RECALL_AT)), start):
            found = np.flatnonzero(ranking.ids[: max(RECALL_AT)] == owners[place])
            ranks[place] = 1 + found[0] if len(found) else np.inf
    return ranks


def image_ranks(table: Rows, owners: Ids) -> Rows:
    """The rank of the first own text of each picture `(pictures, texts)`, from 1 on."""
    own = owners == np.arange(len(table))[:, None]
    best = np.where(own, table, -np.inf).max(1, keepdims=True)
    ranks: Rows = 1 + ((table >= best) & ~own).sum(1).astype(np.float32)
    return ranks


def recalls(ranks: Rows) -> dict[str, float]:
    return {f"r@{k}": round(100 * float((ranks <= k).mean()), 2) for k in RECALL_AT}


if __name__ == "__main__":
    main()
