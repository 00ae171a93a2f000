"""Where the gradients of PyTorch's own attention are no numbers on a GPU, with cuDNN's kernels and without.

    python benchmarks/attention_gradients.py [--out results/benchmarks/attention-gradients.json]

Eight heads of 64 places, as a tower relates its cells, in bfloat16: all products of one place with the others are near
`products`, all inputs and outputs are numbers. `no_numbers` counts those of the gradients that are none.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import Any

import torch
from telling import tell
from torch.nn import functional as F

PLACES = 64


def gradients(batch: int, masked: bool, dropout: float, products: int, generator: torch.Generator) -> dict[str, Any]:
    rows = 0.1 * torch.randn(3, batch, 8, PLACES, PLACES, device="cuda", generator=generator)
    rows[0, ..., 0], rows[1, ..., 0] = 1, products * PLACES**0.5
    rows = rows.bfloat16().requires_grad_()
    mask = torch.ones(PLACES, PLACES, dtype=torch.bool, device="cuda") if masked else None
    seen = F.scaled_dot_product_attention(rows[0], rows[1], rows[2], attn_mask=mask, dropout_p=dropout)
    seen.float().square().sum().backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None
    return {"kernel": type(seen.grad_fn).__name__, "no_numbers": int((~torch.isfinite(rows.grad)).sum())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    generator = torch.Generator("cuda").manual_seed(0)
    found = []
    ways = ((False, 0.0), (False, 0.1), (True, 0.0))
    for batch, (masked, dropout), products, cudnn in product((1, 64), ways, (0, -40, -89, -120), (True, False)):
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        given = {"batch": batch, "masked": masked, "dropout": dropout, "products": products, "cudnn": cudnn}
        found.append(given | gradients(batch, masked, dropout, products, generator))
    record = {
        "benchmark": "attention_gradients",
        "command": "python benchmarks/attention_gradients.py",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "found": found,
    }
    tell(record, options.out)


if __name__ == "__main__":
    main()
