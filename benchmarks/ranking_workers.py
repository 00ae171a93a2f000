"""Ranking of huge test sets by several processes: the ranks of one process, and how their memory grows.

    python benchmarks/ranking_workers.py [--workers 2] [--captions 200000 1000000] [--out …]

5,000 images (the COCO 5K test set has as many) against so many captions, embeddings in files. The smallest set is also
ranked by one process: the figures must be equal. Memory is what a process has of its own (pages of mapped files are
not), looked at ten times a second; processor time is that of all processes.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
from telling import tell

from deixis.metrics.ranking import captions_evenly, evaluate_ranking
from deixis.metrics.score_blocks import EmbeddingScores

IMAGES, DIMENSIONS = 5000, 64
#: Bytes by which a process may grow with a caption: a few numbers in the first, next to nothing in a worker.
LIMITS = {"first": 64, "worker": 32}


def make_embeddings(folder: Path, captions: int) -> tuple[Path, Path]:
    """Captions lie around their images with enough noise that ranks spread."""
    random = np.random.default_rng(0)
    images = random.standard_normal((IMAGES, DIMENSIONS), dtype=np.float32)
    paths = folder / "images.npy", folder / f"captions-{captions}.npy"
    np.save(paths[0], images)
    out = np.lib.format.open_memmap(paths[1], "w+", np.float32, (captions, DIMENSIONS))
    owners = captions_evenly(IMAGES, captions // IMAGES)
    for start in range(0, captions, 1 << 16):
        part = owners[start : start + (1 << 16)]
        out[start : start + len(part)] = images[part] + 1.5 * random.standard_normal((len(part), DIMENSIONS))
    out.flush()
    return paths


class Watch:
    """The most memory of their own that this process and its children had, in bytes."""

    def __init__(self) -> None:
        self.peak: dict[str, int] = {}
        self._over = Event()
        self._thread = Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        here = os.getpid()
        while not self._over.wait(0.1):
            children = Path(f"/proc/{here}/task/{here}/children").read_text().split()
            for process in (str(here), *children):
                try:
                    lines = Path(f"/proc/{process}/status").read_text().splitlines()
                    own = 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon")))
                except (OSError, StopIteration):
                    continue
                name = "first" if process == str(here) else "worker"
                self.peak[name] = max(self.peak.get(name, 0), own)


def processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def rank(paths: tuple[Path, Path], workers: int) -> tuple[Any, dict[str, Any]]:
    images, captions = (np.load(path, mmap_mode="r") for path in paths)
    start, used = time.perf_counter(), processor_seconds()
    with Watch() as watch:
        owners = captions_evenly(IMAGES, len(captions) // IMAGES)
        figures = evaluate_ranking(EmbeddingScores(images, captions), owners, workers=workers).as_dict()
    return figures, {
        "captions": len(captions),
        "workers": workers,
        "seconds": round(time.perf_counter() - start, 1),
        "processor_s": round(processor_seconds() - used, 1),
        "peak_megabytes": {name: round(value / 1e6) for name, value in watch.peak.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--captions", type=int, nargs="+", default=[200_000, 1_000_000])
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/ranking_workers.json"))
    arguments = parser.parse_args()
    runs, equal = [], True
    with tempfile.TemporaryDirectory() as folder:
        for captions in arguments.captions:
            paths = make_embeddings(Path(folder), captions)
            figures, told = rank(paths, arguments.workers)
            runs.append(told)
            if captions == min(arguments.captions):
                alone, told = rank(paths, 1)
                runs.append(told)
                equal = figures == alone
    least, most = (
        next(run for run in runs if run["captions"] == captions and run["workers"] == arguments.workers)
        for captions in (min(arguments.captions), max(arguments.captions))
    )
    growth = {
        name: round(1e6 * (most["peak_megabytes"][name] - least["peak_megabytes"][name])
                    / max(1, most["captions"] - least["captions"]), 1)
        for name in LIMITS
    }  # fmt: skip
    outcome = {
        "benchmark": "ranking_workers",
        "command": "python benchmarks/ranking_workers.py",
        "images": IMAGES,
        "dimensions": DIMENSIONS,
        "runs": runs,
        "bytes_a_caption": growth,
        "limits": {"bytes_a_caption": LIMITS},
        "figures_equal_those_of_one_process": equal,
        "load_average": round(os.getloadavg()[0], 2),
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "numpy": np.__version__,
    }
    tell(outcome, arguments.out)
    return 0 if equal and all(growth[name] <= limit for name, limit in LIMITS.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
