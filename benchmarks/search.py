"""Search over a million real embeddings with real captions: our engine against bare FAISS, and approximately.

    python benchmarks/region_rows.py RUN ROWS CORPUS...
    deixis export onnx RUN --out BUNDLE
    python benchmarks/search.py ROWS onnx:BUNDLE CORPUS... [--out results/benchmarks/search.json]

The first two are needed once. Queries are captions of the CORPUS' test pictures. Each is answered, in turn and in a
random order, by

- bare FAISS: the model's row, then `IndexFlatIP`, or FAISS's own index of float16 rows, of which ours is made;
- the engine with its exact index: a query's text in, paths and scores out;
- the engine with its approximate index;

and each of the three indexes alone, given the row. So whatever else the machine does falls on all of them. Recall is
that of the approximate index against bare FAISS. Beside times stand the bytes that a query has to read. Then pictures
are indexed from a folder, and encoded alone, which indexing cannot be faster than.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import faiss
import msgspec
import numpy as np
from numpy.typing import NDArray
from reporting import write_report

from deixis.adapters.search_model import Floats, SearchModel, Texts, whole_pictures, whole_texts
from deixis.corpus import Corpus, open_corpus
from deixis.loading import load_search_model
from deixis.search.catalogue import Catalogue, FileRow
from deixis.search.engine import SearchEngine
from deixis.search.generations import new_generation, put_in_use
from deixis.search.indexing import BATCH, index_folders
from deixis.search.stores import approximate as approximate_index
from deixis.search.stores.exact import SPARE
from deixis.search.stores.vector_stores import (
    APPROXIMATE,
    EXACT,
    NEAREST,
    bring_store_up_to_date,
    choose_store,
)
from deixis.search.vectors import BLOCK, append_pictures
from deixis.vision.picture_files import Stamp
from deixis.vision.reading import decode_picture

#: Pictures asked for, and queries looked up together.
COUNT, TOGETHER = 10, 32
#: What it is held to: the engine's time over bare FAISS', the approximate index' recall, and its speed over FAISS'.
TIME_LIMIT, RECALL_LIMIT, SPEED_LIMIT = 1.1, 0.95, 10.0


def resident() -> int:
    """Bytes of memory that are this process' own; pages of mapped files are not."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")))


@contextmanager
def timed(what: str, record: dict[str, Any]) -> Iterator[None]:
    """Seconds, and bytes that stay in memory, of a block."""
    before, start = resident(), time.perf_counter()
    yield
    record[what] = {"seconds": round(time.perf_counter() - start, 2), "bytes": resident() - before}
    print(f"{what}: {record[what]}", flush=True)


class WithoutCells:
    """An model as regions need it, which have rows and no cells."""

    def __init__(self, model: SearchModel) -> None:
        self._model = model
        self.identity = msgspec.structs.replace(model.identity, cells=0, cell_dim=0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def embed_queries(self, texts: Sequence[str]) -> Texts:
        return whole_texts(self._model.embed_queries(texts).embeddings)


def write_index(index: Path, rows: NDArray[np.float16], model: SearchModel, name: str) -> Path:
    """An index as `deixis index` leaves it, of rows whose files are not there."""
    index.mkdir(parents=True, exist_ok=True)
    generation = new_generation(index, model.identity)
    Catalogue.create(generation, model.identity, name)
    for start in range(0, len(rows), BLOCK):
        append_pictures(generation, start, whole_pictures(rows[start : start + BLOCK].astype(np.float32)))
    catalogue = Catalogue.write(generation)
    with catalogue.transaction():
        ids = catalogue.add_contents({number.to_bytes(32, "big"): number for number in range(len(rows))})
        catalogue.put_files(
            FileRow(f"/regions/{number}.jpg".encode(), Stamp(0, 0, 0), content, None)
            for number, content in enumerate(ids.values())
        )
        catalogue.set_meta("rows", str(len(rows)))
    catalogue.close()
    put_in_use(index, generation)
    return generation


def set_store(generation: Path, store: str) -> None:
    catalogue = Catalogue.write(generation)
    choose_store(catalogue, store)
    catalogue.close()
    bring_store_up_to_date(generation)


def captions_of(corpora: list[Corpus], count: int) -> list[str]:
    """One caption of each of so many test pictures, from all corpora alike."""
    random = np.random.default_rng(0)
    chosen: list[str] = []
    for corpus in corpora:
        images = [image for image in corpus if image.split == "test" and image.captions]
        places = random.permutation(len(images))[: count // len(corpora)]
        chosen += [images[place].captions[random.integers(len(images[place].captions))].text for place in places]
    return [chosen[place] for place in random.permutation(len(chosen))]


def by_turns(work: dict[str, Callable[[int], object]], turns: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each kind of work, all of them once a turn, in a random order."""
    random = np.random.default_rng(0)
    times: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(turns):
        for name in random.permutation(list(work)):
            start = time.perf_counter()
            work[name](turn)
            times[name].append(1000 * (time.perf_counter() - start))
    return {
        name: {
            "queries_per_s": round(1000 / float(np.mean(own)), 2),
            "p50_ms": round(float(np.percentile(own, 50)), 3),
            "p99_ms": round(float(np.percentile(own, 99)), 3),
        }
        for name, own in times.items()
    }


def indexing_speed(corpora: list[Corpus], model: SearchModel, name: str, count: int, folder: Path) -> dict[str, float]:
    """Pictures of a folder indexed per second, and encoded per second when they are ready."""
    corpus = corpora[0]
    images = [image for image in corpus if corpus.pictures and corpus.pictures.has(image)][:count]
    prepared = []
    (folder / "pictures").mkdir()
    for index, image in enumerate(images):
        assert corpus.pictures is not None
        data = corpus.pictures.read(image)
        (folder / "pictures" / f"{index}.jpg").write_bytes(data)
        prepared.append(model.prepare(decode_picture(data, name=image.file)))
    model.embed_prepared(prepared[:BATCH])
    start = time.perf_counter()
    for first in range(0, len(prepared), BATCH):
        model.embed_prepared(prepared[first : first + BATCH])
    encoded = time.perf_counter()
    report = index_folders(folder / "small", [folder / "pictures"], model, name)
    indexed = time.perf_counter()
    assert report.pictures == len(images)
    again = index_folders(folder / "small", [folder / "pictures"], model, name)
    return {
        "pictures": len(images),
        "indexed_per_s": round(len(images) / (indexed - encoded), 2),
        "encoded_alone_per_s": round(len(images) / (encoded - start), 2),
        "second_run_s": again.seconds,
    }


class Contenders:
    """The three that answer, over the same rows."""

    def __init__(self, folder: Path, rows: NDArray[np.float16], model: SearchModel, name: str, text: str) -> None:
        self.steps: dict[str, Any] = {}
        self.model = model
        with timed("index written", self.steps):
            self.generation = write_index(folder, rows, model, name)
        with timed("exact index opened", self.steps):
            set_store(self.generation, EXACT)
            self.exact = SearchEngine(folder, model)
            self.exact.search(text, COUNT)
        with timed("approximate index built", self.steps):
            set_store(self.generation, APPROXIMATE)
        with timed("approximate index opened", self.steps):
            self.approximate = SearchEngine(folder, model)
            self.approximate.search(text, COUNT)
        with timed("bare FAISS filled", self.steps):
            self.bare = faiss.IndexFlatIP(rows.shape[1])
            for start in range(0, len(rows), BLOCK):
                ids = self.exact.collection.ids[start : start + BLOCK]
                self.bare.add(self.exact.collection.embeddings_of(ids))
        # What our exact index is made of, without it.
        ours: Any = self.exact.collection.nearest
        self.bare_half = faiss.downcast_index(ours._index.index)

    def recall(self, queries: Floats) -> float:
        """The share of the nearest that the approximate index finds, one query at a time."""
        wanted = self.bare.search(queries, COUNT)[1]
        nearest = self.approximate.collection.nearest
        found = np.concatenate([nearest.search(query[None], COUNT).ids for query in queries])
        # Bare FAISS numbers rows from 0.
        places = np.searchsorted(self.exact.collection.ids, found)
        return float(np.mean([len(set(own) & set(all_)) / COUNT for own, all_ in zip(places, wanted, strict=True)]))

    def indexes_alone(self, batches: list[Floats]) -> dict[str, dict[str, float]]:
        exact, approximate = self.exact.collection.nearest, self.approximate.collection.nearest
        return by_turns(
            {
                "bare FAISS": lambda turn: self.bare.search(batches[turn], COUNT),
                "bare FAISS, float16": lambda turn: self.bare_half.search(batches[turn], COUNT),
                "exact": lambda turn: exact.search(batches[turn], COUNT),
                "approximate": lambda turn: approximate.search(batches[turn], COUNT),
            },
            len(batches),
        )

    def with_texts(self, texts: list[str]) -> dict[str, dict[str, float]]:
        def encode(asked: list[str]) -> Floats:
            return self.model.embed_queries(asked).embeddings

        return by_turns(
            {
                "text encoded": lambda turn: encode([texts[turn]]),
                "bare FAISS": lambda turn: self.bare.search(encode([texts[turn]]), COUNT),
                "bare FAISS, float16": lambda turn: self.bare_half.search(encode([texts[turn]]), COUNT),
                "exact": lambda turn: self.exact.search(texts[turn], COUNT),
                "approximate": lambda turn: self.approximate.search(texts[turn], COUNT),
            },
            len(texts),
        )

    def sizes(self, rows: NDArray[np.float16]) -> dict[str, Any]:
        """What the approximate index is made of, and the bytes that a query reads of each."""
        file = self.generation / NEAREST
        whole = faiss.read_index(str(file))
        inner = faiss.extract_index_ivf(whole)
        centres = 4 * inner.nlist * inner.d
        codes = approximate_index.LISTS / inner.nlist * len(rows) * inner.d
        again = 2 * approximate_index.candidates(COUNT + SPARE) * rows.shape[1]
        return {
            "approximate_index": {
                "lists": inner.nlist,
                "looked_through": approximate_index.LISTS,
                "axes": inner.d,
                "bytes": file.stat().st_size,
            },
            "bytes_read_a_query": {
                "bare FAISS": rows.size * 4,
                "bare FAISS, float16": rows.size * 2,
                "exact": rows.size * 2,
                "approximate": round(centres + codes + again),
            },
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("model")
    parser.add_argument("corpora", type=Path, nargs="+", metavar="CORPUS")
    parser.add_argument("--queries", type=int, default=1000, help="captions that recall is measured with")
    parser.add_argument("--turns", type=int, default=100, help="captions that times are measured with")
    parser.add_argument("--pictures", type=int, default=256, help="pictures that are indexed")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/search.json"))
    options = parser.parse_args()

    made = msgspec.json.decode((options.rows / "rows.json").read_bytes())
    rows = np.memmap(options.rows / "rows.f16", np.float16, "r", shape=(made["rows"], made["dim"]))
    model = load_search_model(options.model)
    assert (model.identity.weights_sha256, model.identity.dim) == (made["weights_sha256"], made["dim"])
    corpora = [open_corpus(path) for path in options.corpora]
    texts = captions_of(corpora, options.queries)
    queries = model.embed_queries(texts).embeddings
    with tempfile.TemporaryDirectory(dir=options.rows) as temporary:
        indexing = indexing_speed(corpora, model, options.model, options.pictures, Path(temporary))
        print(indexing, flush=True)
        regions = cast("SearchModel", WithoutCells(model))
        contenders = Contenders(Path(temporary) / "index", rows, regions, options.model, texts[0])
        recall = contenders.recall(queries)
        print(f"recall@{COUNT} {recall:.4f}", flush=True)
        alone = contenders.indexes_alone([queries[turn : turn + 1] for turn in range(options.turns)])
        print(alone, flush=True)
        whole = contenders.with_texts(texts[: options.turns])
        print(whole, flush=True)
        together = contenders.indexes_alone(
            [queries[start : start + TOGETHER] for start in (0, TOGETHER, 2 * TOGETHER)]
        )
        sizes = contenders.sizes(rows)
    names = " ".join(corpus.name.upper() for corpus in corpora)
    sized = f"--turns {options.turns} --queries {options.queries} --pictures {options.pictures}"
    median = {name: own["p50_ms"] for name, own in alone.items()}
    record: dict[str, Any] = {
        "benchmark": "search",
        "command": f"python benchmarks/search.py ROWS onnx:BUNDLE {names} {sized}",
        "rows": made,
        "queries": {"captions": len(texts), "split": "test", "timed": options.turns, "count": COUNT},
        "recall@10": round(recall, 4),
        "index_alone": alone,
        "engine_with_text": whole,
        "ms_a_query_of_32_at_once": {name: round(own["p50_ms"] / TOGETHER, 3) for name, own in together.items()},
        "engine_over_bare_faiss": round(whole["exact"]["p50_ms"] / whole["bare FAISS"]["p50_ms"], 3),
        "engine_over_bare_faiss_float16": round(whole["exact"]["p50_ms"] / whole["bare FAISS, float16"]["p50_ms"], 3),
        "approximate_speed_over_bare_faiss": round(median["bare FAISS"] / median["approximate"], 1),
        "approximate_speed_over_exact": round(median["exact"] / median["approximate"], 1),
        "steps": contenders.steps,
        **sizes,
        "indexing": indexing,
        "limits": {"engine_over_bare_faiss": TIME_LIMIT, "recall@10": RECALL_LIMIT, "speed": SPEED_LIMIT},
        "threads": faiss.omp_get_max_threads(),
        "load_average": round(os.getloadavg()[0], 2),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "faiss": faiss.__version__,
    }
    write_report(record, options.out)
    fast = min(record["approximate_speed_over_bare_faiss"], record["approximate_speed_over_exact"])
    over = max(record["engine_over_bare_faiss"], record["engine_over_bare_faiss_float16"])
    return int(not (over <= TIME_LIMIT and recall >= RECALL_LIMIT and fast >= SPEED_LIMIT))


if __name__ == "__main__":
    sys.exit(main())
