"""Run all benchmarks that this machine can run, print a table of their ratios, and write docs/performance.md.

    python benchmarks/performance.py run       # or `make bench`: run the benchmarks, then print the table
    python benchmarks/performance.py table     # print the table of the existing result files
    python benchmarks/performance.py docs      # write docs/performance.md

A benchmark that needs data runs if DEIXIS_DATA names a folder that has it, one that needs a GPU if there is one; the
others are listed as not run. Every number in the table and the document comes from a result file.
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
LOCALIZED = "base/deixis-base.phrase-localization.flickr8k-test.json"
#: A benchmark is stopped after this many seconds.
LIMIT = 1800


GPU_READING = """\
Small training steps are limited by launching kernels: an epoch at the size of Flickr30k takes as long in float32 as in
bfloat16. The trainer therefore captures a step as a CUDA graph, which launches all its kernels at once and gives the
same losses (`recorded_steps.json`). Batches are padded to a few sizes; masks keep losses and statistics unchanged.
With padding the GPU computes up to {busy:.1f} times as long, yet steps take {least:.1f} to {most:.1f} times less
than before padding and capturing (`launches-unpadded.json`; without HM-LSTM, whose recipe changed). What remains of a
captured step is mostly sampling on the CPU. The tree LSTM is limited by its levels, one small product after the other.
The alignment kernel and the covariances of CCA are close to what the GPU can do.

Extraction is limited by its networks once it runs: a third of the time goes to proposals, more than half to backbone
and regions. The backbone alone, on 64 pictures of one shape, takes less than a quarter of its share; the rest is
copying pixels, launching small batches (pictures differ in shape) and cutting out regions."""


class Benchmark(NamedTuple):
    """A script and its arguments; `needs` names folders in DEIXIS_DATA."""

    script: str
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    gpu: bool = False


#: By name of the result file: benchmarks whose scripts were deleted once they had served their decision.
DELETED = {
    "concepts_order-gpu.json": "python benchmarks/concepts_order.py --device cuda",
    "concepts_order.json": "python benchmarks/concepts_order.py",
    "engines.json": "python benchmarks/engines.py PICTURES",
    "two_branch-full.json": "python benchmarks/two_branch_full.py --device cuda",
}
#: Benchmarks that need an input which has to be made first; each describes it.
BY_HAND = (
    "milvus_beside_faiss.py",
    "region_rows.py",
    "search.py",
    "search_quality.py",
    "duplicates.py",
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
    yield Benchmark("kills.py", ("--json", str(BENCHMARKS / "kills.json")))
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
    return 1 if failed else 0


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def read(name: str) -> Any:
    path = BENCHMARKS / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def table() -> Iterator[str]:
    """One row per ratio, for the result files that exist."""
    yield "| what | ratio | limit | machine | file |"
    yield "|---|---:|---|---|---|"
    for ratio in RATIOS:
        result = read(ratio.file)
        try:
            value = ratio.value(result)
        # There is no file, or it lacks this number.
        except (KeyError, TypeError):
            continue
        shown = f"{value:.2f}" if value < 100 else f"{value:,.0f}"
        yield f"| {ratio.what} | {shown} | {ratio.limit(result)} | {machine(result)} | `{ratio.file}.json` |"


def cca() -> Iterator[str]:
    """Time and memory of each CCA, finished or not."""
    yield "| method | pairs | components | seconds | times Deixis | peak memory | load |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    result = read("cca") or {"runs": []}
    for run in result["runs"]:
        finished = run["seconds"] is not None
        seconds = f"{run['seconds']:.1f}" if finished else f"stopped after {run['ended_after_s']:.0f}"
        times = f"{'' if finished else '≥ '}{run['times_deixis']:.2f}"
        memory = f"{run['peak_bytes'] / 1e6:,.0f} MB" if "peak_bytes" in run else "not measured"
        cells = [run["method"], f"{run['pairs']:,}", f"{run['components']:,}", seconds, times, memory]
        yield f"| {' | '.join(cells)} | {result['load_average']:.1f} |"


def floors() -> Iterator[str]:
    """One row per measurement on a GPU whose file has a lower bound."""
    yield "| what | time | lower bound | bound / time | file |"
    yield "|---|---:|---:|---:|---|"
    for row in FLOORS:
        result = read(row.file)
        try:
            seconds, floor = row.seconds(result), row.floor(result)
        # There is no file, or it lacks this number.
        except (KeyError, TypeError):
            continue
        yield f"| {row.what} | {_time(seconds)} | {_time(floor)} | {floor / seconds:.1%} | `{row.file}.json` |"


def launches() -> Iterator[str]:
    """How much of a training step the GPU computes, by kind (`launches.json`)."""
    result = read("launches")
    if result is None:
        return
    unpadded = _unpadded()
    version_2 = (read("launches-version-2") or {"kinds": {}})["kinds"]
    yield (
        "| step | before: ms | ms per step | sampling | computing | share | kernels | CUDA graph: ms | share "
        "| version 2, CUDA graph: ms |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name, kind in result["kinds"].items():
        eager, graph = kind.get("kernel by kernel"), kind.get("graphs")
        if eager is None:
            yield f"| {name} | | {kind['fault']} | | | | | | | |"
            continue
        before = f"{unpadded[name]['step_ms']:.2f}" if name in unpadded else ""
        times = [eager["step_ms"], kind["making_batches_ms"], eager["computing_ms"]]
        captured = [f"{graph['step_ms']:.2f}", f"{graph['share_computing']:.0%}"] if graph else ["", ""]
        cells = [*(f"{value:.2f}" for value in times), f"{eager['share_computing']:.0%}", f"{eager['kernels']:.0f}"]
        later = f"{version_2[name]['graphs']['step_ms']:.2f}" if name in version_2 else ""
        yield f"| {name} (`{kind['recipe']}`) | {' | '.join([before, *cells, *captured, later])} |"
    yield ""
    yield "`before` is `launches-unpadded.json`. Computing and the time of a step are measured in different steps, so"
    yield "the share can be above 100%. The last column is `launches-version-2.json`: the models without padding and"
    yield "sharing in their code, measured while the machine was also used for something else."
    yield from (f"{name}: {kind['note']}" for name, kind in result["kinds"].items() if "note" in kind)


def _unpadded() -> dict[str, Any]:
    """By kind: a step before batches were padded and steps captured."""
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
    """Ways to run the backbone on a GPU (`backbone-gpu.json`)."""
    result = read("backbone-gpu") or {"ways": {}}
    yield "| way | ms per picture | bound / time | first pass of a shape, s | cosine |"
    yield "|---|---:|---:|---:|---:|"
    for name, way in result["ways"].items():
        if "fault" in way:
            yield f"| {name} | {way['fault']} | | | |"
            continue
        milliseconds = way["ms_per_picture"]
        share = f"{result['floor_ms_per_picture'] / milliseconds:.1%}"
        yield f"| {name} | {milliseconds:.3f} | {share} | {way['first_s']:.2f} | {way['furthest_cosine']:.4f} |"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def machine(result: Any) -> str:
    """The device of a benchmark, or its number of CPU cores."""
    device = str(result.get("device") or "cpu")
    cores = result.get("cores") or result.get("threads")
    return device if device != "cpu" else f"{cores} cores" if cores else "CPU"


def installed_model() -> Iterator[str]:
    """What the bundled model reaches, from the files that were measured with its present weights."""
    quality = json.loads((RESULTS / "search" / "quality.json").read_text("utf-8"))
    localization = json.loads((RESULTS / LOCALIZED).read_text("utf-8"))["metrics"]["localization"]["overall"]
    text, image, phrases = (
        "/".join(f"{figures[cut]:.1f}" for cut in ("r@1", "r@5", "r@10"))
        for figures in (quality["text_to_image"], quality["image_to_text"], localization)
    )
    yield "`deixis-base`, as installed. On the Flickr8k test split it has R@1/5/10"
    yield f"{text} text→image and {image} image→text (`search/quality.json`), and {phrases} for phrases"
    yield f"(`{LOCALIZED}`)."
    yield "The recipes below are for research; `base/base` trained an earlier `deixis-base`."


def document() -> str:
    lines = [
        "# Performance",
        "",
        "This page is written by `python benchmarks/performance.py docs` from the files in `results/`.",
        "`make bench` runs the benchmarks that your machine can run. A ratio compares two measurements of the same",
        "run.",
        "",
        "![Deixis compared with other libraries and with plain loops](plots/speed-peers.svg)",
        "",
        "## Which model should I choose?",
        "",
        *installed_model(),
        "",
        "The table has the three best recipes per task on the Flickr8k test split (1,000 pictures), and the best",
        "recipe for every other kind of features. Accuracy is R@1/5/10 in percent. CPU time and memory are those of",
        "`deixis extract` with these features, of `deixis index` for `deixis-base`, and of `deixis ground` for",
        "grounding (`settings.json`).",
        "",
        *choices(RESULTS, (read("settings") or {"settings": {}})["settings"]),
        "",
        "![Recall of the five papers' models and of deixis-base, Flickr8k](plots/five-papers.svg)",
        "",
        "![Recall of photo search with deixis-base, Flickr8k](plots/search-quality.svg)",
        "",
        "## Ratios",
        "",
        *table(),
        "",
        "## CCA against other libraries",
        "",
        "50,000 pairs of 1,000 and 1,000 dimensions in double precision (`cca.json`). Deixis computes all components",
        "from pairs that arrive in blocks. Deixis and cca_zoo with 50 components run alternately, three times each,",
        "and the best time counts; the ratio varies by a tenth between runs. A method that exceeds the time limit is",
        "stopped.",
        "",
        *cca(),
        "",
        "## GPU time against a lower bound",
        "",
        "The lower bound is the time of the operations at the rate of one large matrix product, or of the bytes at the",
        "rate of one large copy, whichever is longer; both rates are measured in the same run. For extraction it is",
        "the time of decoding on all CPU cores.",
        "",
        *floors(),
        "",
        gpu_reading(),
        "",
        *launches(),
        "",
        "Ways to run the backbone on 64 pictures of one shape (`backbone-gpu.json`). The first way is the one in use;",
        "the last column is the smallest cosine between a picture's vector and that of the first way.",
        "",
        *backbone(),
        "",
        "## Result files",
        "",
        "| file | command | machine |",
        "|---|---|---|",
    ]
    for path in sorted(BENCHMARKS.glob("*.json")):
        result = json.loads(path.read_text("utf-8"))
        lines.append(f"| `{path.name}` | {_command(result, path)} | {machine(result)} |")
    return "\n".join(lines) + "\n"


def _command(result: Any, path: Path) -> str:
    """The command that made a result file."""
    command = result.get("command") or _commands().get(path.name) or DELETED.get(path.name, "")
    if not command:
        return ""
    script = ROOT / command.removeprefix("python ").split()[0]
    return f"`{command}`" if script.exists() else f"`{command}` (script deleted)"


@cache
def _commands() -> dict[str, str]:
    """Commands by the name of the result file that they write."""
    commands = {"tree_lstm-gpu.json": "python benchmarks/tree_lstm.py TREES --device cuda"}
    commands["tree_lstm.json"] = "python benchmarks/tree_lstm.py TREES"
    commands["serving.json"] = "python benchmarks/serving.py INDEX --queries FILE --model deixis-base"
    for benchmark in benchmarks(Path("DEIXIS_DATA")):
        written = [Path(word).name for word in benchmark.arguments if word.endswith(".json")]
        given = [word for word in benchmark.arguments if not word.endswith(".json") and word not in ("--out", "--json")]
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
