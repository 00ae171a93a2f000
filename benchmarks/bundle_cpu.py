"""CPU time per picture of what `deixis-base` does with one: to index it, to ground a sentence in it, to describe it.

python benchmarks/bundle_cpu.py PICTURES --beside OTHER/src --out results/benchmarks/bundle_cpu.json

A process with the code of each tree is asked in turns, a part of the pictures each time, so that both see the same
machine. CPU time of the process on one core, decoding apart: that of several threads depends on what else runs. The
first pictures of a process are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reporting import write_report

SENTENCE = "A man in a red shirt throws a ball to a brown dog."
#: Most milliseconds per picture.
LIMITS = {"index": 45.0, "ground": 70.0, "describe": 100.0}
WARM_UP = 2


def measure(files: Sequence[Path]) -> dict[str, float]:
    """Milliseconds of CPU time per picture in this process, by what is done."""
    from PIL import Image

    from deixis.loading import load_model

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    model: Any = load_model("deixis-base")
    pictures = [Image.open(file).convert("RGB") for file in files]
    questions: dict[str, Callable[[Any], object]] = {
        "index": lambda picture: model.embed_prepared([model.prepare(picture)]),
        "ground": lambda picture: model.ground(picture, SENTENCE),
        "describe": lambda picture: model.describe(picture, 1),
    }
    taken = {}
    for name, ask in questions.items():
        for picture in pictures[:WARM_UP]:
            ask(picture)
        start = time.process_time()
        for picture in pictures:
            ask(picture)
        taken[name] = 1000 * (time.process_time() - start) / len(pictures)
    return taken


def ask_tree(source: Path, files: Sequence[Path]) -> dict[str, float]:
    """`measure` in a process with the code of another source tree."""
    command = [sys.executable, __file__, "--measure", *map(str, files)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    taken: dict[str, float] = json.loads(subprocess.check_output(command, env=environment, text=True))
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path, nargs="+", help="a folder of pictures")
    parser.add_argument("--beside", type=Path, help="another source tree to measure in turns with this one")
    parser.add_argument("--commit", help="of the other tree, for the record")
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.pictures)))
        return 0
    files = sorted(options.pictures[0].glob("*.jpg"))[: options.count]
    trees = {"here": Path(__file__).parents[1] / "src"} | ({"beside": options.beside} if options.beside else {})
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for turn in range(options.turns):
        for name, source in trees.items():
            turns[name].append(ask_tree(source.resolve(), files[turn :: options.turns]))
    means = {
        name: {part: round(sum(turn[part] for turn in taken) / len(taken), 1) for part in LIMITS}
        for name, taken in turns.items()
    }
    beside = " --beside OTHER/src" if options.beside else ""
    beside += f" --commit {options.commit}" if options.commit else ""
    record = {
        "about": " ".join((__doc__ or "").split("\n\n")[0].split()),
        "command": f"python benchmarks/bundle_cpu.py PICTURES{beside} --out FILE",
        **({"beside": f"commit {options.commit}"} if options.commit else {}),
        "pictures": len(files),
        "turns": options.turns,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "cpu_ms_per_picture": means,
        "limits": LIMITS,
    }
    if options.beside:
        record["ratio"] = {part: round(means["here"][part] / means["beside"][part], 3) for part in LIMITS}
    write_report(record, options.out)
    return int(any(means["here"][part] > limit for part, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
