"""The package's networks by PyTorch and by onnxruntime on one processor: milliseconds a picture, and how far apart.

    python benchmarks/runtimes.py [--out results/benchmarks/runtimes.json]

Each network as extraction has it on a processor, in one thread, two pictures a pass of 320 × 320 pixels: maps, of which
vectors and regions are made, and pyramids, of which proposals are. Both take turns; the median of processor time
counts, since others may share the machine. `deixis extract` measures the same, briefly, and takes the faster;
`deixis index` and `deixis search` use onnxruntime in any case, so that they need not load PyTorch.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from telling import tell

from deixis.features.memory import freed_memory_is_kept
from deixis.vision.efficientnet_lite import VARIANTS, load_efficientnet_lite

PICTURES, SIDE, TURNS = 2, 320, 12


@torch.inference_mode()
def compare(name: str) -> dict[str, Any]:
    pictures = torch.randn(PICTURES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    pictures = pictures.contiguous(memory_format=torch.channels_last)
    networks = {}
    for runtime in ("torch", "onnxruntime"):
        networks[runtime] = load_efficientnet_lite(name)
        networks[runtime].fuse("cpu", runtime)
        networks[runtime].to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    found: dict[str, Any] = {}
    for part in ("map", "pyramid"):
        taken: dict[str, list[float]] = {runtime: [] for runtime in networks}
        for turn in range(TURNS + 1):
            for runtime, network in networks.items():
                start = time.process_time()
                getattr(network, part)(pictures)
                if turn:
                    taken[runtime].append(1e3 * (time.process_time() - start) / PICTURES)
        medians = {runtime: statistics.median(own) for runtime, own in taken.items()}
        found[part] = {
            "processor_ms_per_picture": {runtime: round(own, 2) for runtime, own in medians.items()},
            "times_as_fast": round(medians["torch"] / medians["onnxruntime"], 2),
        }
    ours, theirs = (network.map(pictures) for network in networks.values())
    found["furthest_apart"] = float((ours - theirs).abs().max() / theirs.abs().max())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/runtimes.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    with freed_memory_is_kept():
        networks = {name: compare(name) for name in VARIANTS}
    record = {
        "benchmark": "runtimes",
        "networks": networks,
        "pictures": PICTURES,
        "side": SIDE,
        "turns": TURNS,
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
        **{name: version(name) for name in ("torch", "onnxruntime")},
    }
    tell(record, options.out)


if __name__ == "__main__":
    main()
