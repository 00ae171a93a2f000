"""Write the pages about performance from the files in results/: an overview, GPU time, and how each file was made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from choosing import choices
from figures import FLOORS
from performance import BENCHMARKS, RESULTS, ROOT, benchmarks, machine, read, table

NOTICE = "Written by `python benchmarks/performance.py docs` from the files in `results/`; do not edit."
LOCALIZED = "base/deixis-base.phrase-localization.flickr8k-test.json"

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

#: By name of the result file: benchmarks whose scripts were deleted once they had served their decision.
DELETED = {
    "concepts_order-gpu.json": "python benchmarks/concepts_order.py --device cuda",
    "concepts_order.json": "python benchmarks/concepts_order.py",
    "engines.json": "python benchmarks/engines.py PICTURES",
    "two_branch-full.json": "python benchmarks/two_branch_full.py --device cuda",
}


def pages() -> dict[str, str]:
    """The pages by file name."""
    return {
        "performance.md": "\n".join(overview()) + "\n",
        "performance-gpu.md": "\n".join(gpu_time()) + "\n",
        "performance-files.md": "\n".join(result_files()) + "\n",
    }


def overview() -> list[str]:
    return [
        "# Performance",
        "",
        NOTICE,
        "`make bench` runs the benchmarks that your machine can run. A ratio compares two measurements of one run.",
        "More: [time on a GPU](performance-gpu.md), [large collections and teams](scale.md),",
        "[the command and machine of every file](performance-files.md).",
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
    ]


def gpu_time() -> list[str]:
    return [
        "# GPU time against a lower bound",
        "",
        f"{NOTICE} All times are of an NVIDIA H200.",
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
    ]


def result_files() -> list[str]:
    """The command and the machine of every benchmark."""
    lines = ["# Benchmarks: commands and machines", "", NOTICE, "", "| file | command | machine |", "|---|---|---|"]
    for path in sorted(BENCHMARKS.glob("*.json")):
        result = json.loads(path.read_text("utf-8"))
        lines.append(f"| `{path.name}` | {_command(result, path)} | {machine(result)} |")
    return lines


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
        "| step | before padding, ms | step, ms | sampling, ms | computing, ms | GPU busy | kernels | CUDA graph, ms "
        "| GPU busy | version 2, ms |"
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
    yield "A step without and with a CUDA graph (`launches.json`), before padding (`launches-unpadded.json`),"
    yield "and with a graph in version 2 (`launches-version-2.json`, on a machine in use; HM-LSTM on an idle one)."
    yield "Computing and the time of a step are measured in different steps, so the GPU can be busy for more than 100%."
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
