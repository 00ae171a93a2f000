"""Time and memory of CCA: against cca_zoo and scikit-learn, and at the full size of Flickr30k Entities.

    python benchmarks/cca.py [--out results/benchmarks/cca.json] [--limit SECONDS]
    python benchmarks/cca.py --full [--device cuda] [--out results/benchmarks/cca-full.json] [--shape X Y PAIRS]

The first form: 50,000 pairs of 1,000 and 1,000 dimensions in double precision, each method in its own process. Deixis
computes all 1,000 components from pairs that arrive in blocks, and again with twice the pairs to measure memory;
scikit-learn computes 50, cca_zoo 50 and all. Deixis and cca_zoo with 50 run alternately, three times each, and the best
time counts. Making the data and a small first CCA (library start-up) are not timed. A method that exceeds the limit is
stopped, and reported with its memory so far.

The second form: 4,096 + 18,000 dimensions and 423,134 pairs, made on the GPU block by block with 64 planted
correlations. The lower bound is the operations of the covariances' lower triangle at the rate of one large
product in the same run. Beside the correlations stand those that theory expects of a sample of this size.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import roofline
import torch
from numpy.typing import NDArray
from reporting import write_report
from torch import Tensor

from deixis.papers.entities_cca.covariances import JointCovariance, canonical_directions

DIMENSIONS, PAIRS, COMPONENTS, BLOCK, TURNS = 1000, 50_000, 50, 4096, 3
#: What Deixis is held to: times faster than the faster of the others; bytes more with twice the pairs, where the pairs
#: themselves are 800 MB more; seconds at full size.
SPEED_LIMIT, GROWTH_LIMIT, FULL_LIMIT = 3, 100 * 10**6, 60
#: What fitting took by `clocks`, and the correlations of the leading components, worked out when asked for.
Fitted = tuple[NDArray[np.float64], Callable[[], NDArray[np.float64]]]
#: Entities, section 3.1: VGG features, Fisher vectors, region-phrase pairs; and how many correlations are planted.
FULL, PLANTED = (4096, 18_000, 423_134), 64


def made_blocks(pairs: int) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Views that share 100 dimensions of falling weight."""
    generator = np.random.default_rng(0)
    x_map, y_map = generator.normal(size=(2, 100, DIMENSIONS)) * np.linspace(1, 0.05, 100)[:, None] / 10
    for start in range(0, pairs, BLOCK):
        count = min(BLOCK, pairs - start)
        shared = generator.normal(size=(count, 100))
        yield tuple(shared @ part + generator.normal(size=(count, DIMENSIONS)) for part in (x_map, y_map))


def work(method: str, pairs: int, components: int, limit: float) -> dict[str, Any]:
    """One method in this process: seconds of fitting, peak bytes till then, the leading correlations it found."""
    fitted = ours(pairs, components) if method == "deixis" else theirs(method, pairs, components, limit)
    spent, correlations = fitted
    return {
        "method": method,
        "pairs": pairs,
        "components": components,
        "seconds": round(spent[0], 2),
        "processor_s": round(spent[1], 2),
        "peak_bytes": peak_bytes(),
        "correlations": correlations()[:COMPONENTS].tolist(),
    }


def ours(pairs: int, components: int) -> Fitted:
    from deixis.papers.entities_cca.cca import NormalizedCCA

    small = np.random.default_rng(0).normal(size=(2, 256, 16))
    NormalizedCCA(4, ridge=0, device="cpu").fit(*small).solve()
    cca = NormalizedCCA(components, ridge=0, block=BLOCK, device="cpu")
    spent = np.zeros(2)
    for x, y in made_blocks(pairs):
        # Threads that made the block spin for a while before they sleep, on the CPUs that are timed next.
        time.sleep(0.1)
        start = clocks()
        cca.partial_fit(x, y)
        spent += clocks() - start
    start = clocks()
    cca.solve()
    return spent + clocks() - start, lambda: cca.correlations_


def theirs(method: str, pairs: int, components: int, limit: float) -> Fitted:
    """By a library; past the limit the alarm ends the process, also within a call of LAPACK."""
    X, Y = (np.empty((pairs, DIMENSIONS)) for _ in range(2))
    for index, (x, y) in enumerate(made_blocks(pairs)):
        rows = slice(index * BLOCK, index * BLOCK + len(x))
        X[rows], Y[rows] = x, y
    scikit_learn = method == "scikit-learn"
    module = import_module("sklearn.cross_decomposition" if scikit_learn else "cca_zoo.linear")
    small = [np.ascontiguousarray(view[:256, :16]) for view in (X, Y)]
    module.CCA(4).fit(*small) if scikit_learn else module.CCA(4).fit(small)
    cca = module.CCA(components)
    signal.setitimer(signal.ITIMER_REAL, limit)
    time.sleep(0.1)
    start = clocks()
    if scikit_learn:
        cca.fit(X, Y)
    else:
        cca.fit([X, Y])
    spent = clocks() - start
    signal.setitimer(signal.ITIMER_REAL, 0)

    def correlations() -> NDArray[np.float64]:
        x, y = cca.transform(X, Y) if scikit_learn else cca.transform([X, Y])
        return np.array([np.corrcoef(x[:, k], y[:, k])[0, 1] for k in range(COMPONENTS)])

    return spent, correlations


def clocks() -> NDArray[np.float64]:
    """Wall-clock and CPU seconds."""
    return np.array([time.perf_counter(), time.process_time()])


def peak_bytes(used: resource.struct_rusage | None = None) -> int:
    """The most memory of a process that ended, or of this one."""
    used = used or resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def apart(method: str, pairs: int, components: int, limit: float) -> dict[str, Any]:
    """`work` in a process of its own; without seconds if fitting ran past the limit."""
    print(f"{method}, {pairs:,} pairs, {components} components …", file=sys.stderr, flush=True)
    command = [sys.executable, __file__, "--work", method, str(pairs), str(components), str(limit)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode == -signal.SIGALRM:
        ended = {"seconds": None, "ended_after_s": limit, "peak_bytes": peak_bytes(used)}
        return {"method": method, "pairs": pairs, "components": components, **ended}
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    outcome: dict[str, Any] = json.loads(output)
    return outcome


def compare(limit: float) -> tuple[dict[str, Any], bool]:
    load = os.getloadavg()[0]
    rivals = [("deixis", PAIRS, DIMENSIONS, limit), ("cca_zoo", PAIRS, COMPONENTS, limit)]
    turns = [[apart(*rival) for rival in rivals] for _ in range(TURNS)]
    once, faster = (min(runs, key=lambda run: run["seconds"] or limit) for runs in zip(*turns, strict=True))
    twice = apart("deixis", 2 * PAIRS, DIMENSIONS, limit)
    others = [
        faster,
        apart("cca_zoo", PAIRS, DIMENSIONS, limit),
        apart("scikit-learn", PAIRS, COMPONENTS, limit),
    ]
    exact = np.array(once["correlations"])
    for run in (once, twice, *others):
        found = run.pop("correlations", None)
        if found is not None and run["pairs"] == PAIRS:
            run["furthest_correlation"] = float(np.abs(np.sort(found)[::-1] - exact).max())
        run["times_deixis"] = round((run["seconds"] or limit) / once["seconds"], 2)
    times_faster = min(run["times_deixis"] for run in others)
    growth = twice["peak_bytes"] - once["peak_bytes"]
    record = {
        "benchmark": "cca",
        "command": f"python benchmarks/cca.py --limit {limit:g}",
        "dimensions": [DIMENSIONS, DIMENSIONS],
        "runs": [once, twice, *others],
        "times_faster_than_the_faster": times_faster,
        "seconds_of_turns": [[run["seconds"] for run in turn] for turn in turns],
        "bytes_more_with_twice_the_pairs": growth,
        "limits": {"times_faster": SPEED_LIMIT, "bytes_more": GROWTH_LIMIT},
        "load_average": load,
    }
    return record, times_faster >= SPEED_LIMIT and growth <= GROWTH_LIMIT


def full_size(device: str, shape: tuple[int, int, int]) -> tuple[dict[str, Any], bool]:
    x_dimensions, y_dimensions, pairs = shape
    generator = torch.Generator(device).manual_seed(0)

    def clock() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=device)

    # A view is z diag(s) Qᵀ + noise with orthonormal Q: its planted directions have correlation s² / (s² + 1).
    planted = min(PLANTED, x_dimensions, y_dimensions)
    strengths = torch.linspace(3, 0.7, planted, device=device)
    maps = [(torch.linalg.qr(normal(width, planted))[0] * strengths).T for width in (x_dimensions, y_dimensions)]
    # The libraries' own start-up is not the CCA's.
    warm = JointCovariance(64, 64, device=device)
    warm.add(normal(256, 64), normal(256, 64))
    canonical_directions(warm, 1, ridge=0)
    ceiling = roofline.measure(torch.device(device), "float64")

    stages = {"data": 0.0, "covariances": 0.0}
    sums = JointCovariance(x_dimensions, y_dimensions, device=device)
    for start in range(0, pairs, BLOCK):
        before = clock()
        shared = normal(min(BLOCK, pairs - start), planted)
        x, y = (shared @ part + normal(len(shared), part.shape[1]) for part in maps)
        between = clock()
        sums.add(x, y)
        stages["data"] += between - before
        stages["covariances"] += clock() - between
    before = clock()
    found = canonical_directions(sums, min(x_dimensions, y_dimensions), ridge=0).correlations
    stages["directions"] = clock() - before

    seconds = stages["covariances"] + stages["directions"]
    # Both views are read once in single precision; the sums stay where they are.
    floor = ceiling.floor(
        pairs * (x_dimensions + y_dimensions) ** 2, 4 * pairs * (x_dimensions + y_dimensions), "float64"
    )
    expected = sample_correlations(strengths**2 / (strengths**2 + 1), x_dimensions / pairs, y_dimensions / pairs)
    record = {
        "benchmark": "cca-full",
        "command": f"python benchmarks/cca.py --full --device {device} --shape {x_dimensions} {y_dimensions} {pairs}",
        "dimensions": [x_dimensions, y_dimensions],
        "pairs": pairs,
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine(),
        "stages_s": {name: round(value, 3) for name, value in stages.items()},
        "seconds": round(seconds, 3),
        **ceiling.record(),
        **floor,
        "share_of_floor": round(floor["floor_s"] / seconds, 4),
        "covariances_times_floor": round(stages["covariances"] / floor["floor_s"], 2),
        "peak_device_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "first_correlation": round(float(found[0]), 5),
        "furthest_from_theory": round(float((found[:planted].cpu() - expected.cpu()).abs().max()), 5),
        "limits": {"seconds": FULL_LIMIT},
    }
    return record, seconds <= FULL_LIMIT


def sample_correlations(correlations: Tensor, c: float, d: float) -> Tensor:
    """What a sample shows of planted correlations, with c and d dimensions a pair (Bao, Hu, Pan and Zhou, 2019).

    Of squares r: r (1 − c + c / r) (1 − d + d / r), for correlations above the edge of what noise alone shows.
    """
    r = correlations**2
    return (r * (1 - c + c / r) * (1 - d + d / r)).sqrt()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=float, default=900, help="seconds that a library may take to fit")
    parser.add_argument("--full", action="store_true", help="the full size of the Entities paper")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda", help="where the full size is worked on")
    parser.add_argument("--shape", type=int, nargs=3, default=FULL, metavar=("X", "Y", "PAIRS"))
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        method, pairs, components, limit = arguments.work
        print(json.dumps(work(method, int(pairs), int(components), float(limit))))
        return 0
    record, held = full_size(arguments.device, tuple(arguments.shape)) if arguments.full else compare(arguments.limit)
    record |= {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
    }
    name = "cca-full" if arguments.full else "cca"
    write_report(record, arguments.out or Path(f"results/benchmarks/{name}.json"))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
