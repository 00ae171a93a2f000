"""The backbone of extraction on a GPU, in other precisions, by cuDNN, compiled, and as a CUDA graph.

    python benchmarks/backbone.py [--out results/benchmarks/backbone-gpu.json]

Maps of 64 pictures of one shape by efficientnet-lite2, as extraction makes them: in single precision, kernel by kernel,
without cuDNN, which plans each layer anew for every number and shape of pictures. `first_s` is what the first pass of a
shape takes, `ms_per_picture` the median of the next ones. `furthest_cosine` is the least cosine between a picture's
mean vector and the one of the first way. The floor is by operations, at the rate of one large product in bfloat16, or
by the bytes of pixels and maps.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import roofline
import torch
from PIL import Image as Pillow
from telling import tell
from torch import Tensor
from torch.backends import cudnn
from torch.utils.flop_counter import FlopCounterMode
from two_branch import machine

from deixis.vision.backbones import NetworkBackbone, load_backbone

PICTURES, SIZE, TURNS = 64, (500, 375), 20
Way = Callable[[], Tensor]


def recorded(work: Way) -> Way:
    """As one CUDA graph."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay


def ways(backbone: NetworkBackbone, batch: Tensor) -> dict[str, tuple[bool, Callable[[], Way]]]:
    """Each way's use of cuDNN, and what makes it."""
    half: Any = copy.deepcopy(backbone)
    half.network.bfloat16()

    def plain() -> Tensor:
        return backbone.maps(batch).values

    def autocast() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return backbone.maps(batch).values

    def halved() -> Tensor:
        with torch.no_grad():
            values: Tensor = half.network.map(half._normalized(batch).bfloat16())
        return values

    def compiled(work: Way) -> Callable[[], Way]:
        return lambda: torch.compile(work)

    return {
        "float32": (False, lambda: plain),
        "float32, cuDNN": (True, lambda: plain),
        "float32, graph": (False, lambda: recorded(plain)),
        "float32, compiled": (True, compiled(plain)),
        "bfloat16 by autocast": (False, lambda: autocast),
        "bfloat16 by autocast, cuDNN": (True, lambda: autocast),
        "bfloat16 weights": (False, lambda: halved),
        "bfloat16 weights, cuDNN": (True, lambda: halved),
        "bfloat16 weights, graph": (False, lambda: recorded(halved)),
        "bfloat16 weights, compiled": (True, compiled(halved)),
    }


def measured(make: Callable[[], Way], device: torch.device, beside: Tensor | None) -> tuple[dict[str, Any], Tensor]:
    roofline.wait(device)
    start = time.perf_counter()
    work = make()
    vectors = work().float().mean((-2, -1))
    roofline.wait(device)
    first = time.perf_counter() - start
    taken = roofline.seconds(work, device, TURNS)
    near = torch.cosine_similarity(vectors, vectors if beside is None else beside).min()
    found = {
        "ms_per_picture": roofline.rounded(1e3 * taken / PICTURES),
        "first_s": round(first, 2),
        "furthest_cosine": round(float(near), 5),
    }
    return found, vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/backbone-gpu.json"))
    options = parser.parse_args()
    device = torch.device("cuda")
    backbone: Any = load_backbone("efficientnet-lite2", device="cuda")
    shape = backbone.whole(Pillow.new("RGB", SIZE)).shape
    # Smooth noise: a picture's frequencies, roughly.
    coarse = torch.rand(PICTURES, 3, 24, 24, generator=torch.Generator().manual_seed(0)) * 255
    batch = torch.nn.functional.interpolate(coarse, shape[1:], mode="bicubic").clamp(0, 255).to(device, torch.uint8)
    batch = batch.contiguous(memory_format=torch.channels_last)
    with FlopCounterMode(display=False) as counter, cudnn.flags(enabled=False):
        maps = backbone.maps(batch).values
    rates = roofline.measure(device, "float32", "tf32", "bfloat16")
    floor = rates.floor(counter.get_total_flops(), batch.numel() + 2 * maps.numel(), "bfloat16")
    record: dict[str, Any] = {
        "benchmark": "backbone",
        "command": "python benchmarks/backbone.py",
        "device": torch.cuda.get_device_name(device),
        **machine(),
        "shape": list(batch.shape),
        "roofline": rates.record() | floor,
        "floor_ms_per_picture": roofline.rounded(1e3 * floor["floor_s"] / PICTURES),
        "ways": {},
    }
    beside: Tensor | None = None
    for name, (planned, make) in ways(backbone, batch).items():
        try:
            with cudnn.flags(enabled=planned, allow_tf32=True):
                found, vectors = measured(make, device, beside)
            beside = vectors if beside is None else beside
        # A way that a machine does not know keeps no other from being measured.
        except Exception as fault:
            found = {"fault": " ".join(f"{type(fault).__name__}: {fault}".split())[:300]}
        record["ways"][name] = found
        tell(record, options.out)


if __name__ == "__main__":
    main()
