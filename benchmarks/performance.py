"""All benchmarks that a machine can run, one table of their ratios, and docs/performance.md from their JSON.

    python benchmarks/performance.py run       # or `make bench`: runs, then prints the table
    python benchmarks/performance.py table     # of the JSON that is there
    python benchmarks/performance.py docs      # writes docs/performance.md

A benchmark that needs data runs where DEIXIS_DATA names their folder, one that needs a GPU where there is one; the rest
is told. Nothing in the table or the document comes from anywhere but result files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from choosing import choices
from figures import FLOORS, RATIOS

from deixis.files import write_text

ROOT = Path(__file__).parents[1]
RESULTS, BENCHMARKS = ROOT / "results", ROOT / "results" / "benchmarks"
#: No benchmark may take longer here, in seconds.
LIMIT = 1800


GPU_READING = """\
Small steps are bound by launching their kernels: at Flickr30k's size an epoch takes as long in float32 as in TF32 and
bfloat16, whose floors are far apart. So half precision saves next to nothing there and compiling some; what pays is to
launch all kernels of a step at once: the trainer captures a step as a CUDA graph, with the same losses
(`recorded_steps.json`). Images, texts, words, regions, phrases and the nodes of trees are padded to few sizes, which
changes neither losses nor statistics, since masks say what is there (`deixis.training.bucket_padding`,
`deixis.training.masked_norm`). A card that computes with padding is busy up to {busy:.1f} times as long; all the same
these steps take {least:.1f} to {most:.1f} times less than before they were padded and captured (an earlier run,
`launches-unpadded.json`; HM-LSTM, which had parses then and noun phrases now, left out). The rest of a captured step is
mostly sampling on the host, where that takes long. The tree LSTM is bound by its levels, a few small products each, one
after the other. The alignment kernel and the covariances of CCA are near what the card can do.
Extraction begins with seconds in which its readers are started; once it runs it is bound by its networks (a third of
them proposals, more than half backbone and regions: `ms_per_picture_of_networks_by_part`). The backbone by itself, 64
pictures of one shape at once, takes less than a quarter of its part, and no other way to run it (below) could save more
than a tenth of a picture's time; compiling takes seconds a shape, and pictures have dozens. What remains is
mostly the host's, as a profile shows: copying pixels together, launching passes of fewer pictures, since shapes differ,
and fetching regions.
Pixels go to the card through pinned memory, in half the time that it takes without (`to_device`, `to_device_pageable`).
Its `load_before` is of programs that had just ended."""


class Benchmark(NamedTuple):
    """`needs` names what must be there: data below DEIXIS_DATA, and a GPU."""

    script: str
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    gpu: bool = False


#: By name of the result file: benchmarks whose scripts were deleted once they had served their decision.
DELETED = {
    "concepts_order-gpu.json": "python benchmarks/concepts_order.py --device cuda",
    "concepts_order.json": "python benchmarks/concepts_order.py",
    "two_branch-full.json": "python benchmarks/two_branch_full.py --device cuda",
}
#: Those that need what somebody makes first, in their own words.
BY_HAND = (
    "region_rows.py",
    "search.py",
    "search_quality.py",
    "relevance.py",
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
    extraction = (str(flickr8k), "--pictures", "120", "--json", str(BENCHMARKS / "extraction.json"))
    yield Benchmark("extraction.py", extraction, ("flickr8k",))
    yield Benchmark("engines.py", (str(flickr8k), *_out("engines")), ("flickr8k",))
    yield Benchmark("settings.py", (str(flickr8k),), ("flickr8k",))
    yield Benchmark("annotation.py", (str(entities), *_out("annotation")), ("flickr30k_entities",))
    yield Benchmark("cca.py", ("--full", "--device", "cuda", *_out("cca-full")), gpu=True)
    yield Benchmark("launches.py", ("scenes", "--device", "cuda", *_out("launches")), gpu=True)
    yield Benchmark("alignment.py", ("--device", "cuda", *_out("alignment-gpu")), gpu=True)
    on_gpu = ("--pictures", "3000", "--device", "cuda", "--json", str(BENCHMARKS / "extraction-gpu.json"))
    yield Benchmark("extraction.py", (str(flickr8k), *on_gpu), ("flickr8k",), gpu=True)
    # Adds up what the others found.
    yield Benchmark("scale.py")


def _out(name: str) -> tuple[str, str]:
    return "--out", str(BENCHMARKS / f"{name}.json")


def run() -> int:
    named = os.environ.get("DEIXIS_DATA")
    data = Path(named) if named else Path()
    failed = list[str]()
    for benchmark in benchmarks(data):
        told = f"{benchmark.script} {' '.join(benchmark.arguments)}"
        missing = [name for name in benchmark.needs if not named or not (data / name).exists()]
        if missing:
            print(f"not run, DEIXIS_DATA has no {', '.join(missing)}: {benchmark.script}")
        elif benchmark.gpu and not _has_gpu():
            print(f"not run, there is no GPU: {told}")
        else:
            print(f"running {told}", flush=True)
            command = [sys.executable, str(ROOT / "benchmarks" / benchmark.script), *benchmark.arguments]
            try:
                if subprocess.run(command, cwd=ROOT, timeout=LIMIT).returncode:
                    failed.append(benchmark.script)
            except subprocess.TimeoutExpired:
                print(f"ended after {LIMIT} s")
                failed.append(benchmark.script)
    print(f"not run, each says what is made for it first: {', '.join(BY_HAND)}")
    print("\n".join(table()))
    if failed:
        print(f"failed, or missed a limit of their own: {', '.join(failed)}")
    return 1 if failed else 0


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def read(name: str) -> Any:
    path = BENCHMARKS / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def table() -> Iterator[str]:
    """One row a ratio, of the files that are there."""
    yield "| what | ratio | held to | on | file |"
    yield "|---|---:|---|---|---|"
    for ratio in RATIOS:
        found = read(ratio.file)
        try:
            value = ratio.value(found)
        # A file that is not there, or is of a benchmark that did not tell it.
        except (KeyError, TypeError):
            continue
        shown = f"{value:.2f}" if value < 100 else f"{value:,.0f}"
        yield f"| {ratio.what} | {shown} | {ratio.limit(found)} | {machine(found)} | `{ratio.file}.json` |"


def cca() -> Iterator[str]:
    """Time and memory of each method, ended or not."""
    yield "| method | pairs | components | seconds | to ours | peak memory | load |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    found = read("cca") or {"runs": []}
    for run in found["runs"]:
        ended = run["seconds"] is not None
        seconds = f"{run['seconds']:.1f}" if ended else f"not ended after {run['ended_after_s']:.0f}"
        times = f"{'' if ended else '≥ '}{run['times_deixis']:.2f}"
        memory = f"{run['peak_bytes'] / 1e6:,.0f} MB" if "peak_bytes" in run else "not measured"
        cells = [run["method"], f"{run['pairs']:,}", f"{run['components']:,}", seconds, times, memory]
        yield f"| {' | '.join(cells)} | {found['load_average']:.1f} |"


def floors() -> Iterator[str]:
    """One row a path on a GPU whose file tells its floor."""
    yield "| what | time | floor | share of the floor | file |"
    yield "|---|---:|---:|---:|---|"
    for row in FLOORS:
        found = read(row.file)
        try:
            seconds, floor = row.seconds(found), row.floor(found)
        # A file that is not there, or is of a benchmark that did not tell it.
        except (KeyError, TypeError):
            continue
        yield f"| {row.what} | {_time(seconds)} | {_time(floor)} | {floor / seconds:.1%} | `{row.file}.json` |"


def launches() -> Iterator[str]:
    """How much of a step a card computes, kind by kind (`launches.json`)."""
    found = read("launches")
    if found is None:
        yield "How much of each kind of step a card computes, `launches.py` measures; it was not run to its end on one."
        return
    unpadded = _unpadded()
    yield "| kind of step | before: ms | ms a step | sampling | computing | share | kernels | CUDA graph: ms | share |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name, kind in found["kinds"].items():
        eager, graph = kind.get("kernel by kernel"), kind.get("graphs")
        if eager is None:
            yield f"| {name} | | {kind['fault']} | | | | | | |"
            continue
        before = f"{unpadded[name]['step_ms']:.2f}" if name in unpadded else ""
        own = [eager["step_ms"], kind["making_batches_ms"], eager["computing_ms"]]
        recorded = [f"{graph['step_ms']:.2f}", f"{graph['share_computing']:.0%}"] if graph else ["", ""]
        cells = [*(f"{value:.2f}" for value in own), f"{eager['share_computing']:.0%}", f"{eager['kernels']:.0f}"]
        yield f"| {name} (`{kind['recipe']}`) | {' | '.join([before, *cells, *recorded])} |"
    yield ""
    yield "`before`: `launches-unpadded.json`. Computing is counted in another look than the one that is timed, so that"
    yield "its share may be above 100%."
    yield from (f"{name}: {kind['note']}" for name, kind in found["kinds"].items() if "note" in kind)


def _unpadded() -> dict[str, Any]:
    """By kind: a step before it was padded and recorded."""
    kinds = (read("launches-unpadded") or {"kinds": {}})["kinds"]
    return {name: kind["kernel by kernel"] for name, kind in kinds.items() if "graphs" not in kind}


def gpu_reading() -> str:
    now = (read("launches") or {"kinds": {}})["kinds"]
    pairs = [
        (before, now[name]["graphs"])
        for name, before in _unpadded().items()
        if name != "HM-LSTM" and "graphs" in now.get(name, {})
    ]
    times = [before["step_ms"] / graph["step_ms"] for before, graph in pairs]
    busy = max((graph["computing_ms"] / before["computing_ms"] for before, graph in pairs), default=1.0)
    return GPU_READING.format(busy=busy, least=min(times, default=1.0), most=max(times, default=1.0))


def backbone() -> Iterator[str]:
    """Ways to run the backbone on a card (`backbone-gpu.json`)."""
    found = read("backbone-gpu") or {"ways": {}}
    yield "| way | ms a picture | share of the floor | first pass of a shape, s | cosine |"
    yield "|---|---:|---:|---:|---:|"
    for name, way in found["ways"].items():
        if "fault" in way:
            yield f"| {name} | {way['fault']} | | | |"
            continue
        taken = way["ms_per_picture"]
        share = f"{found['floor_ms_per_picture'] / taken:.1%}"
        yield f"| {name} | {taken:.3f} | {share} | {way['first_s']:.2f} | {way['furthest_cosine']:.4f} |"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def profiles() -> Iterator[str]:
    """Where the processor's time goes (`cpu_profile.json`)."""
    found = read("cpu_profile")
    if found is None:
        return
    yield "| path | processor s | where, in percent of what threads were seen to do |"
    yield "|---|---:|---|"
    for name, path in found["paths"].items():
        shares = {where: share for where, share in path["by_function"].items() if share >= 0.02}
        told = ", ".join(f"{_short(where)} {100 * share:.0f}" for where, share in list(shares.items())[:4])
        yield f"| {name} | {path['processor_s']:.1f} | {told} |"


def _short(where: str) -> str:
    """Package and function of `package.module:function`; importing is no function."""
    module, _, function = where.partition(":")
    return f"`{module.partition('.')[0]}: {function}`" if function else where


def machine(found: Any) -> str:
    """Where a benchmark ran: the device, or how many processors."""
    device = str(found.get("device") or "cpu")
    cores = found.get("cores") or found.get("threads")
    return device if device != "cpu" else f"{cores} processors" if cores else "processors"


def document() -> str:
    lines = [
        "# Performance",
        "",
        "Written by `python benchmarks/performance.py docs` from `results/benchmarks/*.json` and `results/`;",
        "`make bench` runs the benchmarks that a machine can. Ratios are what a benchmark measured beside ours in the",
        "same run.",
        "",
        "## Which setting should I choose?",
        "",
        "`deixis-base`, as installed, unless you do research: it is the best at sentences and",
        "within a point of the best at phrases.",
        "",
        "The three best runs of each task on Flickr8k's test split (1,000 pictures), and the best with any other kind",
        "of features; R@1/5/10 in percent. What a picture costs is processor time of `deixis extract` with these",
        "features (`deixis-base`: of `deixis index`; pointing, and the pictures themselves: of `deixis ground`) on the",
        "machine of `settings.json`, memory that of the whole program; of two kinds of features the sum, and the",
        "larger memory.",
        "",
        *choices(RESULTS, (read("settings") or {"settings": {}})["settings"]),
        "",
        "## Ratios",
        "",
        *table(),
        "",
        "CCA of 50,000 pairs of 1,000 and 1,000 dimensions: ours finds all components in double precision, with pairs",
        "that arrive in blocks (`cca.json`). What did not end within the limit took at least that long. Ours and",
        "cca_zoo's with 50 components take turns, three each, and the best of each counts (`seconds_of_turns`). The",
        "ratio differs from run to run by a tenth: it stands at its limit, not safely above it.",
        "",
        *cca(),
        "",
        "## On a GPU, beside the floor",
        "",
        "The floor is what the operations would take at the rate of one large product, or the bytes at the rate of one",
        "large copy, both measured in the same run; of extraction from file to store it is what decoding takes on",
        "all processors.",
        "",
        *floors(),
        "",
        gpu_reading(),
        "",
        *launches(),
        "",
        "The backbone of extraction by itself, maps of 64 pictures of one shape (`backbone-gpu.json`), in other ways",
        "than the first, which is how it runs; the last column is the least cosine of a picture's vector with that of",
        "the first way:",
        "",
        *backbone(),
        "",
        "## Where a processor's time goes",
        "",
        "Programs as they are started, imports and all (`python benchmarks/cpu_profile.py PICTURES`).",
        "",
        *profiles(),
        "",
        "Networks take most of extraction and indexing, and importing PyTorch most of the rest of a short run; the",
        "demo is convolutions of its pictures and steps of its trainings; ranking is its matrix product (`block`,",
        "beside the bare product of the benchmark) and counting in its blocks (`count`). That found, extraction was",
        "given onnxruntime; beside ranking no function of Deixis' own takes more than 3 percent. Collecting the",
        "tests is importing what they test.",
        "",
        "## Each file",
        "",
        "| file | command | machine |",
        "|---|---|---|",
    ]
    for path in sorted(BENCHMARKS.glob("*.json")):
        found = json.loads(path.read_text("utf-8"))
        lines.append(f"| `{path.name}` | {_command(found, path)} | {machine(found)} |")
    return "\n".join(lines) + "\n"


def _command(found: Any, path: Path) -> str:
    """What the file says made it, or what `make bench` would."""
    command = found.get("command") or _commands().get(path.name) or DELETED.get(path.name, "")
    if not command:
        return ""
    script = ROOT / command.removeprefix("python ").split()[0]
    return f"`{command}`" if script.exists() else f"`{command}` (script deleted)"


@cache
def _commands() -> dict[str, str]:
    """By the name of the file that a benchmark writes: the one it is told, or its own."""
    commands = {"tree_lstm-gpu.json": "python benchmarks/tree_lstm.py TREES --device cuda"}
    commands["tree_lstm.json"] = "python benchmarks/tree_lstm.py TREES"
    commands["serving.json"] = "python benchmarks/serving.py INDEX --queries FILE --model deixis-base"
    for benchmark in benchmarks(Path("DEIXIS_DATA")):
        written = [Path(each).name for each in benchmark.arguments if each.endswith(".json")]
        given = [each for each in benchmark.arguments if not each.endswith(".json") and each not in ("--out", "--json")]
        name = written[0] if written else f"{Path(benchmark.script).stem}.json"
        commands[name] = " ".join(["python", f"benchmarks/{benchmark.script}", *given])
    return commands


def main() -> int:
    match sys.argv[1:]:
        case ["run"]:
            return run()
        case ["table"]:
            print("\n".join(table()))
        case ["docs"]:
            write_text(ROOT / "docs" / "performance.md", document())
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
