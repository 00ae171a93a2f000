"""Where the processor's time goes on the paths that people wait for: start, demo, extraction, indexing, ranking, tests.

    python benchmarks/cpu_profile.py PICTURES [--paths demo …] [--out results/benchmarks/cpu_profile.json]

PICTURES is any corpus or folder of pictures, of which the first hundred are taken. Each path is a program of its own. A
thread in it looks every 5 ms at what all others are doing, and leaves out those that wait; what a function of C does
counts for who called it. Beside the shares of the samples by package and by function stand the processor's seconds of
the whole program, imports and other processes of its own and all; what those do is not looked at.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from telling import tell

from deixis.corpus import open_corpus

EVERY = 0.005
#: Pictures, and functions named for each path.
PICTURES, MOST = 100, 8
#: Who stands here waits for somebody else.
WAITING = ("threading.py", "queue.py", "selectors.py", "connection.py", "popen_fork.py", "subprocess.py", "thread.py")


def paths(pictures: Path, folder: Path) -> dict[str, list[str]]:
    """Path → module or script, and its arguments."""
    ranking = str(Path(__file__).with_name("ranking.py"))
    return {
        "start": ["deixis", "--help"],
        "demo": ["deixis", "demo", "--out", str(folder / "demo")],
        "extract regions of 24 pictures": [
            "deixis", "extract", str(pictures), "--features", "regions", "--limit", "24", "--out", str(folder / "r"),
        ],
        "extract vectors of 48 pictures": [
            "deixis", "extract", str(pictures), "--features", "image", "--limit", "48", "--out", str(folder / "i"),
        ],
        "index 100 pictures": ["deixis", "index", str(pictures), "--index", str(folder / "index")],
        "rank 5,000 pictures and 25,000 captions": [ranking, "--turns", "3", "--out", str(folder / "ranking.json")],
        "collect all tests": ["pytest", "--collect-only", "-q", "-p", "no:cacheprovider"],
    }  # fmt: skip


def copied(corpus: Path, folder: Path) -> Path:
    """The first pictures, in a folder of their own."""
    opened = open_corpus(corpus)
    assert opened.pictures is not None
    folder.mkdir()
    for image in opened.images[:PICTURES]:
        (folder / Path(image.file).name).write_bytes(opened.pictures.read(image))
    return folder


class Sampler(threading.Thread):
    """Counts what the other threads do."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: Counter[tuple[str, str]] = Counter()
        self.over = threading.Event()

    def run(self) -> None:
        own = threading.get_ident()
        while not self.over.wait(EVERY):
            for thread, frame in sys._current_frames().items():
                if thread != own and (found := place(frame)):
                    self.samples[found] += 1


def place(frame: FrameType) -> tuple[str, str] | None:
    """Package and function that a thread is in; nothing for one that waits."""
    if Path(frame.f_code.co_filename).name in WAITING:
        return None
    if importing(frame):
        return "importing", "importing"
    file = frame.f_code.co_filename
    parts = Path(file).parts
    package = parts[parts.index("site-packages") + 1] if "site-packages" in parts else "python"
    if "deixis" in parts:
        package = "deixis"
    where = ".".join(parts[parts.index(package) :]) if package in parts else Path(file).name
    return package, f"{where.removesuffix('.py')}:{frame.f_code.co_qualname}"


def importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def work(target: str, arguments: list[str], report: Path) -> None:
    """One path in this process."""
    sampler = Sampler()
    sys.argv = [target, *arguments]
    sampler.start()
    start = time.perf_counter()
    try:
        if target.endswith(".py"):
            sys.path.insert(0, str(Path(target).parent))
            runpy.run_path(target, run_name="__main__")
        else:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        # A benchmark tells so that it missed its limit, which a busy machine may do.
        if end.code not in (None, 0, 1):
            raise
    finally:
        sampler.over.set()
        sampler.join()
        found = {
            "processor_s": round(sum(os.times()[:4]), 2),
            "seconds": round(time.perf_counter() - start, 2),
            **shares(sampler.samples),
        }
        report.write_text(json.dumps(found))


def shares(samples: Counter[tuple[str, str]]) -> dict[str, Any]:
    total = max(1, samples.total())
    packages: Counter[str] = Counter()
    for (package, _), count in samples.items():
        packages[package] += count
    return {
        "samples": samples.total(),
        "by_package": {name: round(count / total, 3) for name, count in packages.most_common(MOST)},
        "by_function": {where: round(count / total, 3) for (_, where), count in samples.most_common(MOST)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--paths", nargs="+", help="only these, by the beginning of their names")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/cpu_profile.json"))
    parser.add_argument("--work", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        report, target, *arguments = options.work
        work(target, arguments, Path(report))
        return
    found: dict[str, Any] = {}
    if options.out.exists() and options.paths:
        found = json.loads(options.out.read_text("utf-8"))["paths"]
    with tempfile.TemporaryDirectory() as folder:
        pictures = copied(options.pictures, Path(folder) / "pictures")
        for name, command in paths(pictures, Path(folder)).items():
            if options.paths and not name.startswith(tuple(options.paths)):
                continue
            print(name, file=sys.stderr, flush=True)
            report = Path(folder) / "report.json"
            own = [sys.executable, __file__, "-", "--work", str(report), *command]
            subprocess.run(own, stdout=subprocess.DEVNULL, check=True)
            found[name] = json.loads(report.read_text("utf-8"))
    record = {
        "benchmark": "cpu_profile",
        "command": "python benchmarks/cpu_profile.py PICTURES",
        "paths": found,
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "python": sys.version.partition(" ")[0],
    }
    tell(record, options.out)


if __name__ == "__main__":
    main()
