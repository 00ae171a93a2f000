"""Which kind of approximate index: recall with captions as queries, time, and time to build, of FAISS's kinds.

    python benchmarks/search_kinds.py ROWS onnx:BUNDLE CORPUS... [--out results/benchmarks/search_kinds.json]

ROWS, BUNDLE and CORPUS are those of `benchmarks/search.py`; the first 100,000 rows are used, turned onto the axes that
hold 95% of their squared length. Each kind gives as many candidates as our index asks for, and those are compared as
they are. Queries come one at a time, on one thread.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import faiss
import msgspec
import numpy as np
from telling import tell

from deixis.adapters.search_model import Rows
from deixis.corpus import open_corpus
from deixis.loading import load_search_model
from deixis.search.stores.approximate import candidates, lists_for, principal_axes
from search import COUNT, captions_of

ROWS = 100_000
#: How far each kind looks: lists of IVF, candidates of a graph.
REACHES = (16, 32, 64, 128)


def measured(kind: str, rows: Rows, queries: Rows, wanted: Any) -> list[dict[str, Any]]:
    index: Any = faiss.index_factory(rows.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
    start = time.process_time()
    index.train(rows)
    index.add(rows)
    built = time.process_time() - start
    outcomes = []
    for reach in REACHES:
        if kind.startswith("IVF"):
            index.nprobe = reach
        else:
            index.hnsw.efSearch = reach
        start = time.process_time()
        found = [index.search(query[None], candidates(COUNT))[1][0] for query in queries]
        spent = time.process_time() - start
        recall = np.mean([len(set(own) & set(all_)) / COUNT for own, all_ in zip(found, wanted, strict=True)])
        outcomes.append(
            {
                "kind": kind,
                "reach": reach,
                "recall@10": round(float(recall), 4),
                "processor_ms": round(1000 * spent / len(queries), 3),
                "built_processor_s": round(built, 1),
            }
        )
        print(outcomes[-1], flush=True)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("model")
    parser.add_argument("corpora", type=Path, nargs="+", metavar="CORPUS")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/search_kinds.json"))
    options = parser.parse_args()
    faiss.omp_set_num_threads(1)
    made = msgspec.json.decode((options.rows / "rows.json").read_bytes())
    stored = np.memmap(options.rows / "rows.f16", np.float16, "r", shape=(made["rows"], made["dim"]))
    rows = stored[:ROWS].astype(np.float32)
    corpora = [open_corpus(path) for path in options.corpora]
    model = load_search_model(options.model)
    texts = captions_of(corpora, options.queries)
    queries = model.embed_queries(texts).rows
    exact = faiss.IndexFlatIP(made["dim"])
    exact.add(rows)
    wanted = exact.search(queries, COUNT)[1]
    axes = principal_axes(rows)
    turned, asked = (np.ascontiguousarray(each @ axes.T) for each in (rows, queries))
    lists = lists_for(len(rows))
    kinds = (f"IVF{lists},SQ8", f"IVF{lists},PQ{len(axes) // 2}x4fs", "HNSW32,SQ8")
    names = " ".join(corpus.name.upper() for corpus in corpora)
    record = {
        "benchmark": "search_kinds",
        "command": f"python benchmarks/search_kinds.py ROWS onnx:BUNDLE {names}",
        "rows": len(rows),
        "axes": len(axes),
        "captions": len(texts),
        "kinds": [outcome for kind in kinds for outcome in measured(kind, turned, asked, wanted)],
        "load_average": round(os.getloadavg()[0], 2),
        "faiss": faiss.__version__,
    }
    tell(record, options.out)


if __name__ == "__main__":
    main()
