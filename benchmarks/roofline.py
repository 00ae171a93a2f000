"""Peak rates of a machine, measured beside a benchmark: large matrix products and a large copy.

The lower bound of some work is the time of its operations at the rate of one large product of the same precision, or of
its bytes at the rate of one large copy (bytes read and written), whichever is longer.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

#: Name of a precision → type of the matrices, and what PyTorch is asked for.
KINDS = {
    "float64": (torch.float64, "highest"),
    "float32": (torch.float32, "highest"),
    "tf32": (torch.float32, "high"),
    "bfloat16": (torch.bfloat16, "high"),
}


class Roofline(NamedTuple):
    """Operations per second of each kind of product, and bytes per second of a copy."""

    operations_per_s: dict[str, float]
    bytes_per_s: float

    def floor(self, operations: float, moved: float, kind: str) -> dict[str, Any]:
        """Seconds of the floor, and which of the two it is."""
        products, copies = operations / self.operations_per_s[kind], moved / self.bytes_per_s
        return {
            "operations": round(operations),
            "bytes": round(moved),
            "floor_s": rounded(max(products, copies)),
            "floor_is": "operations" if products > copies else "bytes",
        }

    def record(self) -> dict[str, Any]:
        rates = {f"{kind}_operations_per_s": rounded(rate) for kind, rate in self.operations_per_s.items()}
        return {**rates, "copy_bytes_per_s": rounded(self.bytes_per_s)}


def measure(device: torch.device, *kinds: str) -> Roofline:
    """On random numbers: zeros would be faster than any data."""
    large = device.type == "cuda"
    side, before = 8192 if large else 1024, torch.get_float32_matmul_precision()
    rates = {}
    for kind in kinds:
        dtype, precision = KINDS[kind]
        torch.set_float32_matmul_precision(precision)
        left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
        out = torch.empty_like(left)
        rates[kind] = 2 * side**3 / seconds(partial(torch.mm, left, right, out=out), device, 5)
    torch.set_float32_matmul_precision(before)
    source = torch.randint(256, (1 << (30 if large else 26),), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return Roofline(rates, 2 * source.numel() / seconds(lambda: target.copy_(source), device, 5))


def seconds(work: Callable[[], object], device: torch.device, turns: int) -> float:
    """The median of some turns, after one that does not count."""
    taken = []
    for _ in range(turns + 1):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rounded(value: float) -> float:
    """To four digits."""
    return float(f"{value:.4g}")
