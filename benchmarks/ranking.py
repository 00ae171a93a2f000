"""Time of ranking against the matrix product alone, and its memory above the inputs.

    python benchmarks/ranking.py [--out results/benchmarks/ranking.json]

5,000 images × 25,000 captions × 512 dimensions in float32, both directions, from embeddings. Product and protocol run
alternately; the ratio is that of the fastest runs, with the median ratio beside it. The product writes into an array
that is already allocated.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deixis.files import write_text
from deixis.metrics import embedding_recall_at_k

IMAGES, CAPTIONS_PER_IMAGE, DIMENSIONS = 5000, 5, 512
#: What the protocol is held to: times the product's time, and bytes above the inputs.
TIME_LIMIT, MEMORY_LIMIT = 1.5, 10**9

Embeddings = npt.NDArray[np.float32]


def make_embeddings(generator: np.random.Generator) -> tuple[Embeddings, Embeddings]:
    """Captions lie around their images with enough noise that ranks spread."""
    images = generator.standard_normal((IMAGES, DIMENSIONS), dtype=np.float32)
    captions = generator.standard_normal((IMAGES * CAPTIONS_PER_IMAGE, DIMENSIONS), dtype=np.float32)
    captions += 0.1 * np.repeat(images, CAPTIONS_PER_IMAGE, axis=0)
    return images, captions


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/ranking.json"))
    parser.add_argument("--turns", type=int, default=9)
    arguments = parser.parse_args()

    images, captions = make_embeddings(np.random.default_rng(0))

    def protocol() -> dict[str, Any]:
        return embedding_recall_at_k(images, captions, CAPTIONS_PER_IMAGE)

    tracemalloc.start()
    figures = protocol()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    product = np.zeros((IMAGES, len(captions)), np.float32)
    turns = [
        (seconds(lambda: np.matmul(images, captions.T, out=product)), seconds(protocol)) for _ in range(arguments.turns)
    ]
    product_seconds, protocol_seconds = (min(column) for column in zip(*turns, strict=True))
    record = {
        "benchmark": "ranking",
        "images": IMAGES,
        "captions": len(captions),
        "dimensions": DIMENSIONS,
        "turns": [{"product_s": round(bare, 4), "protocol_s": round(full, 4)} for bare, full in turns],
        "product_s": round(product_seconds, 4),
        "protocol_s": round(protocol_seconds, 4),
        "time_ratio": round(protocol_seconds / product_seconds, 3),
        "median_time_ratio": round(float(np.median([full / bare for bare, full in turns])), 3),
        "time_ratio_limit": TIME_LIMIT,
        "peak_bytes_above_inputs": peak,
        "memory_ratio": round(peak / MEMORY_LIMIT, 3),
        "memory_limit_bytes": MEMORY_LIMIT,
        "figures": figures,
        "machine": {"processor": platform.machine(), "python": platform.python_version(), "numpy": np.__version__},
    }
    write_text(arguments.out, json.dumps(record, indent=2) + "\n")
    print(f"product  {product_seconds:.3f} s   protocol {protocol_seconds:.3f} s   (fastest of {len(turns)})")
    print(f"time     {record['time_ratio']} × the product (median of turns {record['median_time_ratio']}), at most 1.5")
    print(f"memory   {peak / 1e6:.0f} MB above the inputs, {record['memory_ratio']} of the 1 GB allowed")
    within = protocol_seconds <= TIME_LIMIT * product_seconds and peak < MEMORY_LIMIT
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
