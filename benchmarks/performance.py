"""Run all benchmarks that this machine can run, print a table of their ratios, and write the pages about performance.

    python benchmarks/performance.py run       # or `make bench`: run the benchmarks, then print the table
    python benchmarks/performance.py table     # print the table of the existing result files
    python benchmarks/performance.py docs      # write docs/performance*.md

A benchmark that needs data runs if DEIXIS_DATA names a folder that has it, one that needs a GPU if there is one; the
others are listed as not run. Every number in the table and the document comes from a result file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from figures import RATIOS, Ratio

from deixis.files import write_text

ROOT = Path(__file__).parents[1]
RESULTS, BENCHMARKS = ROOT / "results", ROOT / "results" / "benchmarks"
#: A benchmark is stopped after this many seconds.
LIMIT = 1800


class Benchmark(NamedTuple):
    """A script and its arguments; `needs` names folders in DEIXIS_DATA."""

    script: str
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    gpu: bool = False


#: Benchmarks that need an input which has to be made first; each describes it.
BY_HAND = (
    "bundle_cpu.py",
    "milvus_beside_faiss.py",
    "region_rows.py",
    "search.py",
    "search_quality.py",
    "duplicates.py",
    "calibration_choices.py",
    "photo_search.py",
    "photo_model.py",
    "plurals.py",
    "forty_queries.py",
    "serving.py",
    "tree_lstm.py",
)


def benchmarks(data: Path) -> Iterator[Benchmark]:
    flickr8k, entities = data / "flickr8k", data / "flickr30k_entities" / "annotations.zip"
    yield Benchmark("ranking.py")
    yield Benchmark("cca.py", ("--limit", "60", *_out("cca")))
    yield Benchmark("two_branch.py", _out("two_branch"))
    yield Benchmark("alignment.py", _out("alignment"))
    yield Benchmark("fisher.py")
    yield Benchmark("cold_search.py", ("--json", str(RESULTS / "search" / "cold.json")))
    yield Benchmark("annotation_crowd.py", ("--out", str(RESULTS / "annotation" / "crowd-sqlite.json")))
    kills = ("--json", str(BENCHMARKS / "kills.json"))
    yield Benchmark("kills.py", ("--only", "index", "--only", "extract", "--only", "train", *kills))
    yield Benchmark("kills.py", ("--only", "annotate serve", *kills))
    extraction = (str(flickr8k), "--pictures", "120", "--json", str(BENCHMARKS / "extraction.json"))
    yield Benchmark("extraction.py", extraction, ("flickr8k",))
    yield Benchmark("settings.py", (str(flickr8k),), ("flickr8k",))
    yield Benchmark("annotation.py", (str(entities), *_out("annotation")), ("flickr30k_entities",))
    yield Benchmark("cca.py", ("--full", "--device", "cuda", *_out("cca-full")), gpu=True)
    yield Benchmark("launches.py", ("scenes", "--device", "cuda", *_out("launches")), gpu=True)
    yield Benchmark("alignment.py", ("--device", "cuda", *_out("alignment-gpu")), gpu=True)
    on_gpu = ("--pictures", "3000", "--device", "cuda", "--json", str(BENCHMARKS / "extraction-gpu.json"))
    yield Benchmark("extraction.py", (str(flickr8k), *on_gpu), ("flickr8k",), gpu=True)
    # Computed from the results of the others, so it comes last.
    yield Benchmark("scale.py")


def _out(name: str) -> tuple[str, str]:
    return "--out", str(BENCHMARKS / f"{name}.json")


def run() -> int:
    named = os.environ.get("DEIXIS_DATA")
    data = Path(named) if named else Path()
    failed = list[str]()
    for benchmark in benchmarks(data):
        line = f"{benchmark.script} {' '.join(benchmark.arguments)}"
        missing = [name for name in benchmark.needs if not named or not (data / name).exists()]
        if missing:
            print(f"not run, DEIXIS_DATA has no {', '.join(missing)}: {benchmark.script}")
        elif benchmark.gpu and not _has_gpu():
            print(f"not run, there is no GPU: {line}")
        else:
            print(f"running {line}", flush=True)
            command = [sys.executable, str(ROOT / "benchmarks" / benchmark.script), *benchmark.arguments]
            try:
                if subprocess.run(command, cwd=ROOT, timeout=LIMIT).returncode:
                    failed.append(benchmark.script)
            except subprocess.TimeoutExpired:
                print(f"stopped after {LIMIT} s")
                failed.append(benchmark.script)
    print(f"not run, they need an input that is made first: {', '.join(BY_HAND)}")
    print("\n".join(table()))
    if failed:
        print(f"failed, or missed their own limit: {', '.join(failed)}")
    missed = [ratio.what for ratio, result, _ in measured() if not ratio.holds(result)]
    if missed:
        print(f"ratios beyond their limit: {'; '.join(missed)}")
    return 1 if failed or missed else 0


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def read(name: str) -> Any:
    path = BENCHMARKS / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def measured() -> Iterator[tuple[Ratio, Any, float]]:
    """The ratios whose result files exist and have the number, with the file's content."""
    for ratio in RATIOS:
        result = read(ratio.file)
        try:
            yield ratio, result, ratio.value(result)
        except (KeyError, TypeError):
            continue


def table() -> Iterator[str]:
    """One row per ratio, for the result files that exist."""
    yield "| what | ratio | limit | machine | file |"
    yield "|---|---:|---|---|---|"
    for ratio, result, value in measured():
        shown = f"{value:.2f}" if value < 100 else f"{value:,.0f}"
        yield f"| {ratio.what} | {shown} | {ratio.limit(result)} | {machine(result)} | `{ratio.file}.json` |"


def machine(result: Any) -> str:
    """The device of a benchmark, or its number of CPU cores."""
    device = str(result.get("device") or "cpu")
    cores = result.get("cores") or result.get("threads")
    return device if device != "cpu" else f"{cores} cores" if cores else "CPU"


def main() -> int:
    match sys.argv[1:]:
        case ["run"]:
            return run()
        case ["table"]:
            print("\n".join(table()))
        case ["docs"]:
            from performance_pages import pages

            for name, text in pages().items():
                write_text(ROOT / "docs" / name, text)
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
