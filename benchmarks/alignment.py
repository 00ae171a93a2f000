"""Score all pairs with S_kl = Σ_t max_i v_i·s_t (DVSA, supplement, eq. 1), compared with the matrix product alone.

    OMP_NUM_THREADS=2 python benchmarks/alignment.py [--out results/benchmarks/alignment.json]
    python benchmarks/alignment.py --device cuda [--out results/benchmarks/alignment-gpu.json]

1,000 pictures of 20 regions, 5,000 captions as long as those of Flickr8k, 1,024 dimensions.

On a CPU: `pooled_products` in float32 against the products alone, block by block into one buffer; it may take at most
twice as long.

On a GPU: the fused kernel with every block size, its rate against one large bfloat16 product, and its time and memory
against blocked versions that write their products to memory, compiled or not. All are checked against float64.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import roofline
import torch
from reporting import write_report
from torch import Tensor

from deixis.papers.dvsa.fast.packing import Tiles, packed_regions, packed_words
from deixis.papers.dvsa.fast.products import BLOCK, pooled_products

REGIONS, DIM = 20, 1024
#: Words of a caption of Flickr8k: mean and spread, least and most.
LENGTHS = (11.8, 3.9, 3, 37)
#: Times the bare product on a CPU; share of the GPU's rate; times as fast as the best blocked version.
CPU_LIMIT, RATE_LIMIT, BLOCKED_LIMIT = 2.0, 0.7, 1.0
#: Greatest difference from float64, beside the greatest score; not a limit for versions with bfloat16 products.
EXACT = 1e-5
#: Pictures of a block of the versions that write their products to memory.
ROWS = (50, 250, 1000)
WAYS = [
    Tiles(),
    Tiles(flat=False),
    Tiles(stages=3),
    Tiles(group=8),
    Tiles(group=16),
    Tiles(pictures=128, slots=2),
    Tiles(pictures=32, stages=3, warps=4),
    Tiles(pictures=32, stages=3),
    Tiles(words=256, pictures=32, stages=4),
    Tiles(words=64, pictures=64, stages=4, warps=4),
    Tiles(depth=128, stages=2),
    Tiles(descriptors=False),
    Tiles(descriptors=False, stages=3),
]


class Pairs(NamedTuple):
    regions: Tensor  # (pictures, REGIONS, DIM)
    present: Tensor  # (pictures, REGIONS)
    words: Tensor  # (words, DIM)
    text: Tensor  # (words,)
    captions: int

    @property
    def operations(self) -> int:
        return 2 * self.regions[..., 0].numel() * self.words.numel()


def made(pictures: int, captions: int, device: torch.device) -> Pairs:
    """Random vectors that bfloat16 holds exactly, so that every way is given the same numbers."""
    generator = torch.Generator(device).manual_seed(0)
    mean, spread, least, most = LENGTHS
    drawn = np.random.default_rng(0).normal(mean, spread, captions)
    lengths = torch.from_numpy(np.clip(np.rint(drawn), least, most).astype(np.int64)).to(device)
    text = torch.repeat_interleave(torch.arange(captions, device=device), lengths)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).bfloat16()

    present = torch.ones(pictures, REGIONS, dtype=torch.bool, device=device)
    return Pairs(normal(pictures, REGIONS, DIM), present, normal(len(text), DIM), text, captions)


def difference(pairs: Pairs, found: Tensor, pictures: int = 16) -> float:
    """The greatest difference of some pictures' scores from the einsum in float64, beside the greatest score."""
    products = torch.einsum("kid,td->kit", pairs.regions[:pictures].double(), pairs.words.double())
    expected = products.new_zeros(pictures, pairs.captions).index_add_(1, pairs.text, products.amax(1))
    return float((found[:pictures] - expected).abs().max() / expected.abs().max())


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def on_processor(pairs: Pairs, repeats: int) -> tuple[dict[str, Any], bool]:
    regions, words = pairs.regions.float(), pairs.words.float()
    rows = BLOCK // len(words)
    buffer = torch.empty(rows, len(words))

    def bare() -> None:
        for part in torch.split(regions.flatten(0, 1), rows):
            torch.mm(part, words.T, out=buffer[: len(part)])

    def ours() -> Tensor:
        return pooled_products(regions, pairs.present, words, pairs.text, pairs.captions)

    cpu = torch.device("cpu")
    # In turns, since others may share the machine.
    turns = [(roofline.seconds(bare, cpu, 1), roofline.seconds(ours, cpu, 1)) for _ in range(repeats)]
    ratio = statistics.median(own / product for product, own in turns)
    error = difference(pairs, ours())
    product, own = (statistics.median(column) for column in zip(*turns, strict=True))
    record = {
        "bare_product_s": round(product, 3),
        "scores_s": round(own, 3),
        "times_bare_product": round(ratio, 3),
        "product_operations_per_s": float(f"{pairs.operations / product:.3g}"),
        "difference": error,
        "limits": {"times_bare_product": CPU_LIMIT, "difference": EXACT},
    }
    return record, ratio <= CPU_LIMIT and error <= EXACT


def blocked(pairs: Pairs, pooled: Callable[[Tensor, Tensor], Tensor], rows: int, by: str = "index_add") -> Tensor:
    """All words at once with `rows` pictures, in bfloat16; sums over texts by `index_add` or `segment_reduce`."""
    out = []
    lengths = torch.bincount(pairs.text, minlength=pairs.captions)
    for part in torch.split(pairs.regions, rows):
        best = pooled(part, pairs.words)
        if by == "index_add":
            out.append(best.new_zeros(len(part), pairs.captions).index_add_(1, pairs.text, best))
        else:
            out.append(torch.segment_reduce(best.T.contiguous(), "sum", lengths=lengths, axis=0).T)
    return torch.cat(out)


def best_regions(regions: Tensor, words: Tensor) -> Tensor:
    """(pictures, words): the best product of each."""
    products = regions.flatten(0, 1) @ words.T
    return products.view(len(regions), REGIONS, len(words)).amax(1).float()


def matrix_rate(device: torch.device) -> float:
    """Operations per second of one large product in bfloat16."""
    left, right = (torch.randn(8192, 8192, device=device).bfloat16() for _ in range(2))
    out = torch.empty_like(left)
    return 2 * 8192**3 / roofline.seconds(lambda: torch.mm(left, right.T, out=out), device, 20)


def held(work: Callable[[], Tensor], device: torch.device) -> int:
    """Bytes at the peak beside what was there before and what is returned."""
    roofline.wait(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    found = work()
    roofline.wait(device)
    return torch.cuda.max_memory_allocated(device) - before - found.numel() * found.element_size()


def fused(pairs: Pairs, tiles: Tiles) -> Callable[[], Tensor]:
    from deixis.papers.dvsa.fast.product_kernel import best_product_sums

    regions = packed_regions(pairs.regions, pairs.present, tiles)
    words = packed_words(pairs.words, pairs.text, pairs.captions, tiles)
    return lambda: best_product_sums(regions, words)


def on_card(pairs: Pairs, sizes: list[tuple[int, int]], compiled: bool) -> tuple[dict[str, Any], bool]:
    device = pairs.words.device
    rates = [matrix_rate(device)]
    ways: dict[str, dict[str, Any]] = {}
    for tiles in WAYS:
        name = " ".join(f"{key}={value}" for key, value in tiles._asdict().items())
        try:
            work = fused(pairs, tiles)
            error = difference(pairs, work())
            seconds = roofline.seconds(work, device, 10)
        # A card may have too little of what a way needs; the others go on.
        except Exception as fault:
            ways[name] = {"fault": " ".join(str(fault).split())[:200]}
        else:
            ways[name] = {"ms": round(1e3 * seconds, 3), "difference": error, "tiles": tiles._asdict()}
        say(f"{name}: {ways[name]}")
    good = {name: own for name, own in ways.items() if own.get("difference", 1) <= EXACT}
    if not good:
        return {"ways": ways}, False
    best = min(good, key=lambda name: good[name]["ms"])
    others: dict[str, dict[str, Any]] = {}
    makers = {"blocked": best_regions}
    if compiled:
        makers["compiled"] = torch.compile(best_regions, dynamic=False)
    for name, pooled in makers.items():
        for rows in ROWS:
            for by in ("index_add", "segment_reduce"):
                label = f"{name}, {rows} pictures, {by}"
                work = partial(blocked, pairs, pooled, rows, by)
                try:
                    found = {
                        "difference": difference(pairs, work()),
                        "ms": round(1e3 * roofline.seconds(work, device, 3), 3),
                    }
                except Exception as fault:
                    say(f"{label}: {fault}")
                    continue
                others[label] = found
                say(f"{label}: {found}")
    quickest = min(others, key=lambda name: others[name]["ms"])
    tiles = Tiles(**good[best]["tiles"])
    memory = []
    for pictures, captions in sizes:
        own = made(pictures, captions, device)
        work = fused(own, tiles)
        memory.append(
            {
                "pictures": pictures,
                "captions": captions,
                "fused_bytes": held(work, device),
                "blocked_bytes": held(partial(blocked, own, best_regions, ROWS[0]), device),
                "ms": round(1e3 * roofline.seconds(work, device, 3), 3),
                "operations_per_s": float(f"{own.operations / roofline.seconds(work, device, 3):.4g}"),
            }
        )
        say(str(memory[-1]))
    rates.append(matrix_rate(device))
    seconds = good[best]["ms"] / 1e3
    share = pairs.operations / seconds / max(rates)
    faster = others[quickest]["ms"] / good[best]["ms"]
    record = {
        "device": torch.cuda.get_device_name(device),
        "matrix_operations_per_s": [float(f"{rate:.4g}") for rate in rates],
        "best_way": best,
        "best_ms": good[best]["ms"],
        "operations_per_s": float(f"{pairs.operations / seconds:.4g}"),
        "share_of_matrix_rate": round(share, 4),
        "floor_ms": round(1e3 * pairs.operations / max(rates), 3),
        "share_of_floor": round(share, 4),
        "best_other": quickest,
        "times_as_fast_as_best_other": round(faster, 2),
        "ways": ways,
        "others": others,
        "memory": memory,
        "limits": {
            "share_of_matrix_rate": RATE_LIMIT,
            "times_as_fast_as_best_other": BLOCKED_LIMIT,
            "difference": EXACT,
        },
    }
    flat = max(own["fused_bytes"] for own in memory) <= 1 << 20
    return record, share >= RATE_LIMIT and faster >= BLOCKED_LIMIT and flat


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--captions", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=3, help="repetitions on a CPU")
    parser.add_argument("--no-compile", action="store_true", help="on a GPU: without torch.compile")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    pairs = made(options.pictures, options.captions, device)
    with torch.no_grad():
        if device.type == "cuda":
            sizes = [(options.pictures * times, options.captions * times) for times in (1, 2, 4)]
            found, good = on_card(pairs, sizes, not options.no_compile)
        else:
            found, good = on_processor(pairs, options.repeats)
    record = {
        "benchmark": "alignment",
        "pictures": options.pictures,
        "regions": REGIONS,
        "captions": options.captions,
        "words": len(pairs.words),
        "dimensions": DIM,
        "operations": pairs.operations,
        **found,
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    name = "alignment-gpu" if device.type == "cuda" else "alignment"
    write_report(record, options.out or Path(f"results/benchmarks/{name}.json"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
