"""Time of one search and of one grounding from a cold start (program, model, answer), and of later searches.

    python benchmarks/cold_search.py [--model deixis-base] [--pictures 10000] [--json results/search/cold.json]

The index holds random embeddings and cells, and the picture random pixels: the cost does not depend on their values.
Each cold start is a separate process, with wall-clock and CPU time; the best of several counts. Warm searches share one
process. Python may keep the compiled modules, as it does for users.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image
from reporting import write_report

from deixis.adapters.search_model import Pictures, SearchModel
from deixis.loading import absolute_name, load_search_model
from deixis.metrics.results import versions
from deixis.search.catalogue import Catalogue, FileRow
from deixis.search.engine import SearchEngine
from deixis.search.generations import new_generation, put_in_use
from deixis.search.vectors import append_pictures
from deixis.vision.picture_files import Stamp

QUERIES = ("two dogs playing in the snow", "a man in a red shirt", "children at the beach", '"a boat" "water" -people')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deixis-base")
    parser.add_argument("--pictures", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    model = load_search_model(options.model)
    with TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        make_index(index, model, absolute_name(options.model), options.pictures)
        picture = Path(folder) / "picture.png"
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (375, 500, 3), np.uint8)).save(picture)
        commands = {
            "search": ["search", QUERIES[0], "--index", str(index), "--json"],
            "ground": ["ground", str(picture), QUERIES[1], "--model", options.model, "--json"],
        }
        cold = {name: [cold_start(command) for _ in range(options.times)] for name, command in commands.items()}
        warm = warm_searches(SearchEngine(index, model), options.times)
    report: dict[str, Any] = {
        "model": str(model.identity),
        "pictures": options.pictures,
        "cold_seconds": {name: measured([wall for wall, _ in times]) for name, times in cold.items()},
        "cold_cpu_seconds": {name: measured([used for _, used in times]) for name, times in cold.items()},
        "warm_milliseconds": {
            "median": float(np.median(warm)),
            "p99": float(np.quantile(warm, 0.99)),
            "best": min(warm),
            "count": len(warm),
        },
        "command": f"python benchmarks/cold_search.py --model BUNDLE --pictures {options.pictures}",
        "versions": versions(),
    }
    write_report(report, options.json)


def make_index(index: Path, model: SearchModel, name: str, count: int) -> None:
    random, identity = np.random.default_rng(0), model.identity
    rows = random.normal(size=(count, identity.dim)).astype(np.float32)
    generation = new_generation(index, identity)
    Catalogue.create(generation, identity, name)
    cells = random.integers(-127, 128, (count, identity.cells, identity.cell_dim), np.int8)
    append_pictures(generation, 0, Pictures(rows / np.linalg.norm(rows, axis=1, keepdims=True), cells))
    catalogue = Catalogue.write(generation)
    with catalogue.transaction():
        ids = catalogue.add_contents({hashlib.sha256(b"%d" % row).digest(): row for row in range(count)})
        catalogue.put_files(
            FileRow(b"/photos/%05d.jpg" % row, Stamp(1, 1, 1), content, None)
            for row, content in enumerate(ids.values())
        )
        catalogue.set_meta("rows", str(count))
    catalogue.close()
    put_in_use(index, generation)


def measured(seconds: list[float]) -> dict[str, Any]:
    return {"best": min(seconds), "all": seconds}


def cold_start(arguments: list[str]) -> tuple[float, float]:
    """Wall-clock and CPU seconds of a command."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "deixis", *arguments], capture_output=True, env=environment)
    # Random embeddings and pixels match nothing, which is exit code 1.
    assert done.returncode in (0, 1), done.stderr.decode()
    after, end = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return round(end - start, 3), round(used, 3)


def warm_searches(engine: SearchEngine, times: int) -> list[float]:
    """Milliseconds of each, the first of all left out."""
    taken = []
    for query in ("a first one", *QUERIES * (5 * times)):
        start = time.perf_counter()
        engine.search(query, 20)
        taken.append(1e3 * (time.perf_counter() - start))
    return taken[1:]


if __name__ == "__main__":
    main()
