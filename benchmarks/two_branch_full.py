"""Training the embedding network of paper 1 at Flickr30k's size: seconds of an epoch beside the floor.

    python benchmarks/two_branch_full.py [--device cuda] [--compile] [--out results/benchmarks/two_branch-full.json]

29,000 images with five captions each, made on the card with 64 shared dimensions planted in noise; batches of 500 with
neighbourhood sampling and the constraint among sentences, in single precision, TF32 and bfloat16. It needs PyTorch,
NumPy and msgspec alone. Beside the seconds of an epoch stands the floor: the operations of the layers at the rate of
one large product, and the bytes of features and of Adam at the rate of one large copy, of the same run. Batches there
differ in size, since not every image has a second sentence at hand; with batches of one size, without neighbourhoods, a
step is timed eagerly, with the network and its loss compiled, and as the trainer takes it, captured as a CUDA graph.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import roofline
import torch
from figures import same_loss
from telling import tell
from torch import Tensor
from two_branch import IMAGE_DIM, SETTINGS, TEXT_DIM, Made, machine, made, own_loss, step

from deixis.papers.two_branch.loss import RankingRecipe
from deixis.papers.two_branch.network import EmbeddingRecipe, TwoBranchEmbedding
from deixis.training.graph_capture import GraphedSteps, TakeStep
from deixis.training.sampling import RankingBatch, SentenceSampler, SentenceSamplerRecipe
from deixis.training.task import Loss

IMAGES, CAPTIONS, BATCH = 29_000, 5, 500
#: Seconds of an epoch in the fastest precision.
LIMIT = 10
#: Steps of one size that are timed.
STEPS = 200


def full(device: torch.device, images: int, compiled: bool) -> tuple[dict[str, Any], bool]:
    """Epochs at Flickr30k's size in each precision."""
    start = time.perf_counter()
    data = made(images, CAPTIONS, device)
    roofline.wait(device)
    making = time.perf_counter() - start
    sampler = SentenceSampler(data, SentenceSamplerRecipe(BATCH, "sampling"), seed=0)
    start = time.perf_counter()
    rows = [(len(batch.images), len(batch.texts)) for batch in sampler.triplets(1)]
    roofline.wait(device)
    sampling = time.perf_counter() - start
    kinds = {"float32": ("highest", False), "tf32": ("high", False), "bfloat16": ("high", True)}
    runs = {
        name: epoch(data, sampler, precision, mixed, compiled, device) for name, (precision, mixed) in kinds.items()
    }
    ceiling = roofline.measure(device, *kinds)
    for name, own in runs.items():
        own |= floor(rows, name, ceiling)
        own["share_of_floor"] = round(own["floor_s"] / own["epoch_s"], 4)
    fixed = steps_of_one_size(data, device, ceiling)
    torch.set_float32_matmul_precision("highest")
    fastest = min(run["epoch_s"] for run in runs.values())
    record = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "images": images,
        "captions": len(data.captions),
        "dimensions": [IMAGE_DIM, TEXT_DIM],
        "widths": SETTINGS["sentences"][1],
        "pairs": BATCH,
        "steps": len(rows),
        "texts_a_batch": round(float(np.mean([texts for _, texts in rows])), 1),
        "compiled": compiled,
        "making_data_s": round(making, 2),
        "sampling_alone_s": round(sampling, 2),
        **ceiling.record(),
        "runs": runs,
        "fastest_epoch_s": fastest,
        "steps_of_one_size": fixed,
        "limits": {"fastest_epoch_s": LIMIT},
    }
    return record, fastest <= LIMIT and fixed["losses_are_the_same"]


def new_network(device: torch.device) -> TwoBranchEmbedding:
    widths = SETTINGS["sentences"][1]
    return TwoBranchEmbedding(IMAGE_DIM, TEXT_DIM, EmbeddingRecipe(widths, widths, dropout=0.5)).to(device)


def epoch(
    data: Made, sampler: SentenceSampler, precision: str, mixed: bool, compiled: bool, device: torch.device
) -> dict[str, Any]:
    """Seconds of one epoch after a few steps of warming up, and what the loss did in it."""
    torch.set_float32_matmul_precision(precision)
    torch.manual_seed(0)
    network = new_network(device)
    if compiled:
        network.images.compile(dynamic=True)
        network.texts.compile(dynamic=True)
    optimizer = torch.optim.Adam(network.parameters(), 1e-4, fused=device.type == "cuda")
    loss = own_loss(RankingRecipe((1.0, 1.5, 0.0, 0.05), hardest=SETTINGS["sentences"][2]))

    def train(number: int, most: int | None = None) -> list[Tensor]:
        totals = []
        for place, batch in enumerate(sampler.triplets(number)):
            if place == most:
                break
            totals.append(step(network, optimizer, data, batch, loss, mixed))
        return totals

    train(1, 8)
    roofline.wait(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    totals = train(2)
    roofline.wait(device)
    seconds = time.perf_counter() - start
    tenth = max(1, len(totals) // 10)
    return {
        "epoch_s": round(seconds, 3),
        "steps_per_s": round(len(totals) / seconds, 1),
        "loss_first_tenth": round(torch.stack(totals[:tenth]).mean().item(), 2),
        "loss_last_tenth": round(torch.stack(totals[-tenth:]).mean().item(), 2),
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    }


def floor(rows: list[tuple[int, int]], kind: str, ceiling: roofline.Roofline) -> dict[str, Any]:
    """Operations and bytes of steps with so many images and texts, and the seconds they would take at best."""
    hidden, out = SETTINGS["sentences"][1]
    operations = traffic = 0
    weights = (IMAGE_DIM + TEXT_DIM) * hidden + 2 * hidden * out
    for counts in rows:
        for count, width in zip(counts, (IMAGE_DIM, TEXT_DIM), strict=True):
            # Forward and the weights' gradient for each layer; the inputs' gradient for the second alone.
            operations += count * (4 * width * hidden + 6 * hidden * out)
            # Features are read, written where the batch gathers them, and read forward and back.
            traffic += 4 * 4 * count * width
        # Weights read forward and back, gradients written; Adam reads four arrays and writes three.
        traffic += 4 * (2 + 1 + 7) * weights
    return ceiling.floor(operations, traffic, kind)


def steps_of_one_size(data: Made, device: torch.device, ceiling: roofline.Roofline) -> dict[str, Any]:
    """Milliseconds of a step (tf32) eagerly, compiled and as one CUDA graph."""
    torch.set_float32_matmul_precision("high")
    batches = [
        batch
        for batch in SentenceSampler(data, SentenceSamplerRecipe(BATCH), seed=0).triplets(1)
        if len(batch.images) == BATCH
    ]
    found = floor([(BATCH, BATCH)], "tf32", ceiling)
    ways: dict[str, Any] = {}
    for name in ("eager", "compiled", "graph"):
        if name != "eager" and device.type != "cuda":
            continue
        try:
            own = one_size(name, batches[:STEPS], data, device)
        # A machine may lack what compiling needs; the other ways go on.
        except Exception as fault:
            ways[name] = {"fault": " ".join(str(fault).split())[:300]}
        else:
            ways[name] = own | {"share_of_floor": round(1e3 * found["floor_s"] / own["step_ms"], 4)}
    same = all(same_loss(ways, name) for name, way in ways.items() if "fault" not in way)
    return {"pairs": BATCH, **found, "ways": ways, "losses_are_the_same": same}


def one_size(name: str, batches: list[RankingBatch], data: Made, device: torch.device) -> dict[str, Any]:
    torch.manual_seed(0)
    network = new_network(device)
    optimizer = torch.optim.Adam(network.parameters(), 1e-4, fused=True, capturable=device.type == "cuda")
    loss = own_loss(RankingRecipe((1.0, 1.5, 0.0, 0.0), hardest=SETTINGS["sentences"][2]))
    if name == "compiled":
        network.images.compile()
        network.texts.compile()
        loss = torch.compile(loss)

    def take(batch: RankingBatch, factor: float | Tensor) -> tuple[Loss, Tensor]:
        total = step(network, optimizer, data, batch, loss)
        return Loss(total), total

    way: TakeStep = GraphedSteps(take, device) if name == "graph" else take
    start = time.perf_counter()
    for batch in batches:
        way(batch, 1.0)
    roofline.wait(device)
    ready = time.perf_counter() - start
    start = time.perf_counter()
    for batch in batches:
        last, _ = way(batch, 1.0)
    roofline.wait(device)
    taken = (time.perf_counter() - start) / len(batches)
    return {
        "step_ms": round(1e3 * taken, 3),
        "getting_ready_s": round(ready, 2),
        "last_loss": round(last.total.item(), 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=IMAGES, help="how many, each with five captions")
    parser.add_argument("--compile", action="store_true", help="compile the branches")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/two_branch-full.json"))
    arguments = parser.parse_args()
    found, held = full(torch.device(arguments.device), arguments.images, arguments.compile)
    tell({"benchmark": "two_branch-full", **found, **machine()}, arguments.out)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
