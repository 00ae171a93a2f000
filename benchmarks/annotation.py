"""The annotation workbench at the size of Flickr30k: time to create a project, and waiting times of a worker.

    python benchmarks/annotation.py CORPUS [--images 31783] [--answers 2000] [--out results/benchmarks/annotation.json]

The chunker finds the mentions of the captions; then a few workers answer at random. Each answer is synced to disk. The
waiting times, in milliseconds, are those of `next_task` and `submit`.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import tempfile
from pathlib import Path
from random import Random
from time import perf_counter

import numpy as np
import sqlalchemy
from reporting import write_report

from deixis.annotation.project import create_project
from deixis.annotation.workbench import Workbench
from deixis.corpus import Box, open_corpus

WORKERS = 20


def measure(where: Path, answers: int, chance: Random) -> dict[str, dict[str, float]]:
    waits: dict[str, list[float]] = {"next_task": [], "submit": []}
    with Workbench(where, chance=chance) as bench:
        workers = [bench.add_worker(f"worker {number}") for number in range(WORKERS)]
        for _ in range(answers):
            worker = chance.choice(workers)
            began = perf_counter()
            view = bench.next_task(worker)
            waits["next_task"].append(perf_counter() - began)
            if view is None:
                continue
            drawn = view.task == "drawing" and chance.random() < 0.8
            answer = Box(10, 10, 90, 90) if drawn else chance.choice(view.answers)
            began = perf_counter()
            bench.submit(worker, view.token, answer)
            waits["submit"].append(perf_counter() - began)
        began = perf_counter()
        bench.progress()
        status = perf_counter() - began
    figures = {
        name: {f"p{rank}": round(1000 * float(np.percentile(values, rank)), 2) for rank in (50, 99)}
        for name, values in waits.items()
    }
    return figures | {"progress": {"once": round(1000 * status, 2)}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--images", type=int, default=31783)
    parser.add_argument("--answers", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    corpus = open_corpus(options.corpus)
    corpus = corpus.with_images(corpus.images[: options.images])
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / "project.db"
        began = perf_counter()
        create_project(where, corpus)
        seconds = perf_counter() - began
        size = where.stat().st_size / 1e6
        figures = measure(where, options.answers, Random(0))
    record = {
        "benchmark": "annotation",
        "images": len(corpus),
        "captions": sum(len(image.captions) for image in corpus),
        "init_s": round(seconds, 2),
        "megabytes": round(size, 1),
        "answers": options.answers,
        "workers": WORKERS,
        "milliseconds": figures,
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "sqlalchemy": sqlalchemy.__version__,
    }
    write_report(record, options.out)


if __name__ == "__main__":
    main()
