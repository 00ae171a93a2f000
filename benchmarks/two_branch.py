"""What training the embedding network of paper 1 costs: beside other ways to write its loss, and at Flickr30k's size.

    python benchmarks/two_branch.py [--out results/benchmarks/two_branch.json]
    python benchmarks/two_branch.py --full [--device cuda] [--compile] [--out results/benchmarks/two_branch-full.json]

The first: training steps (networks forward and back, loss, Adam) on batches of image-sentence pairs, with the paper's
widths for phrases and for sentences, 4,096 + 6,000 dimensions. The same networks on the same batches with the loss of
Deixis, with a plain loop over pairs, and with pytorch-metric-learning (pip install pytorch-metric-learning), whose
nearest miner takes all triplets that violate the margin: it has none for the K hardest of a pair. The ways take turns,
and the median of the turns counts. The loss alone, forward and back, is timed beside it. That all ways compute the same
is checked in the run: the loop with the K hardest, the library with all triplets.

The second: 29,000 images with five captions each, made on the card with 64 shared dimensions planted in noise; batches
of 500 with neighbourhood sampling and the constraint among sentences, in single precision, TF32 and bfloat16. It needs
PyTorch, NumPy and msgspec alone. Beside the seconds of an epoch stands the floor: the operations of the layers at the
rate of one large product, and the bytes of features and of Adam at the rate of one large copy, of the same run. Batches
there differ in size, since not every image has a second sentence at hand; with batches of one size, without
neighbourhoods, a step is timed eagerly, with the network and its loss compiled, and as the trainer takes it, recorded
as a CUDA graph.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import roofline
import torch
from telling import tell
from torch import Tensor

from deixis.learning.graphs import Graphed, TakeStep
from deixis.learning.losses import Contrast, Direction, RankingLoss, RankingRecipe
from deixis.learning.sampling import RankingBatch, SentenceSampler, SentenceSamplerRecipe
from deixis.learning.task import Loss
from deixis.models.two_branch import EmbeddingRecipe, TwoBranchEmbedding

IMAGE_DIM, TEXT_DIM, CAPTIONS, PLANTED = 4096, 6000, 5, 64
FULL_IMAGES, FULL_BATCH = 29_000, 500
#: Seconds of an epoch at full size in the fastest precision; how many times faster than the others the loss must be.
FULL_LIMIT, SPEED_LIMIT = 10, 1
#: Name → pairs a batch, widths of the branches, K (paper 1, sections 4.3 and 5.3).
SETTINGS = {"phrases": (100, (1024, 512), 30), "sentences": (500, (2048, 512), 10)}
TURNS = 6
#: Steps of one size that are timed.
STEPS = 200
#: A loss of unit rows of images, unit rows of texts and a batch.
Way = Callable[[Tensor, Tensor, RankingBatch], Tensor]


@dataclass(frozen=True)
class Made:
    """Images and captions whose features share planted dimensions."""

    images: Tensor
    texts: Tensor
    image_of: Tensor
    captions: range


def made(images: int, captions: int, device: torch.device) -> Made:
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    shared, image_of = normal(images, PLANTED), torch.arange(images, device=device).repeat_interleave(captions)
    texts = normal(len(image_of), TEXT_DIM)
    for start in range(0, len(texts), 16_384):
        texts[start : start + 16_384] += shared[image_of[start : start + 16_384]] @ normal_map(generator, TEXT_DIM)
    pictures = normal(images, IMAGE_DIM) + shared @ normal_map(generator, IMAGE_DIM)
    return Made(pictures, texts, image_of, range(len(image_of)))


def normal_map(generator: torch.Generator, width: int) -> Tensor:
    """The same map for every block of one width."""
    own = torch.Generator(generator.device).manual_seed(width)
    return torch.randn(PLANTED, width, generator=own, device=generator.device) / 4


def own_loss(recipe: RankingRecipe) -> Way:
    criterion = RankingLoss(recipe)

    def loss(images: Tensor, texts: Tensor, batch: RankingBatch) -> Tensor:
        total: Tensor = criterion(images, texts, batch.contrast).total
        return total

    return loss


def loop_over_pairs(recipe: RankingRecipe) -> Way:
    """Eq. 6 pair by pair, as one would write it down."""

    def one_way(anchors: Tensor, others: Tensor, direction: Direction) -> Tensor:
        total = anchors.new_zeros(())
        for anchor, positive, negative in zip(direction.anchor, direction.positive, direction.negative, strict=True):
            near = (anchors[anchor] - others[positive]).norm()
            far = (anchors[anchor] - others[negative]).norm(dim=1)
            hinges = torch.relu(recipe.margin + near - far)
            total = total + hinges.topk(min(recipe.hardest, len(hinges))).values.sum()
        return total

    def loss(images: Tensor, texts: Tensor, batch: RankingBatch) -> Tensor:
        contrast: Contrast = batch.contrast
        forward = one_way(images, texts, contrast.image_to_text)
        return recipe.weights[0] * forward + recipe.weights[1] * one_way(texts, images, contrast.text_to_image)

    return loss


def metric_learning(recipe: RankingRecipe) -> Way:
    """pytorch-metric-learning: all triplets that violate the margin, in both directions; labels are the images."""
    library = {name: import_module(f"pytorch_metric_learning.{name}") for name in ("losses", "miners", "distances")}
    distance = library["distances"].LpDistance(normalize_embeddings=False)
    reducer = import_module("pytorch_metric_learning.reducers").SumReducer()
    miner = library["miners"].TripletMarginMiner(recipe.margin, "all", distance=distance)
    criterion = library["losses"].TripletMarginLoss(recipe.margin, distance=distance, reducer=reducer)

    def loss(images: Tensor, texts: Tensor, batch: RankingBatch) -> Tensor:
        # Two tensors: given one, the library takes both sides for the same rows and leaves out the matching pairs.
        owner, other_owner = batch.images, batch.images.clone()
        total = images.new_zeros(())
        for weight, one, other in zip(recipe.weights, (images, texts), (texts, images), strict=False):
            total = total + weight * criterion(one, owner, miner(one, owner, other, other_owner), other, other_owner)
        return total

    return loss


def compare() -> tuple[dict[str, Any], bool]:
    """The ways to write the loss, setting by setting."""
    settings = {name: compare_ways(*setting) for name, setting in SETTINGS.items()}
    held = all(
        min(setting["loss_times_faster"].values()) >= SPEED_LIMIT
        and close(setting["loss_of_first_step"]["deixis"], setting["loss_of_first_step"]["loop"])
        and close(setting["loss_of_all_triplets"]["deixis"], setting["loss_of_all_triplets"]["pytorch-metric-learning"])
        for setting in settings.values()
    )
    record = {
        "settings": settings,
        "dimensions": [IMAGE_DIM, TEXT_DIM],
        "turns": TURNS,
        "limits": {"loss_times_faster": SPEED_LIMIT},
        "pytorch_metric_learning": import_module("pytorch_metric_learning").__version__,
    }
    return record, held


def compare_ways(pairs: int, widths: tuple[int, ...], hardest: int) -> dict[str, Any]:
    data = made(2 * pairs, 1, torch.device("cpu"))
    recipe = RankingRecipe((1.0, 1.5, 0.0, 0.0), hardest=hardest)
    ways: dict[str, Way] = {
        "deixis": own_loss(recipe),
        "loop": loop_over_pairs(recipe),
        "pytorch-metric-learning": metric_learning(recipe),
    }
    networks, optimizers = {}, {}
    for way in ways:
        torch.manual_seed(0)
        networks[way] = TwoBranchEmbedding(IMAGE_DIM, TEXT_DIM, EmbeddingRecipe(widths, widths))
        optimizers[way] = torch.optim.Adam(networks[way].parameters(), 1e-4)
    times: dict[str, list[tuple[float, ...]]] = {way: [] for way in ways}
    first_losses: dict[str, float] = {}
    batches = list(SentenceSampler(data, SentenceSamplerRecipe(pairs), 0).triplets(1))
    rows = unit_rows(pairs, 0), unit_rows(pairs, 1)
    for turn in range(TURNS + 1):
        batch = batches[turn % len(batches)]
        # Who comes first finds the batch's features out of cache: everyone does so as often.
        for way in (*ways, *ways)[turn % len(ways) :][: len(ways)]:
            loss = ways[way]
            whole = timed(step, networks[way], optimizers[way], data, batch, loss)
            alone = timed(forward_and_back, loss, *rows, batch)
            if turn:  # the first turn warms up
                times[way].append((whole.seconds, whole.processor, alone.seconds))
            else:
                first_losses[way] = whole.outcome.item()
    medians = {way: [statistics.median(column) for column in zip(*taken, strict=True)] for way, taken in times.items()}

    def ratios(column: int) -> dict[str, float]:
        return {way: round(found[column] / medians["deixis"][column], 2) for way, found in medians.items()}

    return {
        "pairs": pairs,
        "widths": widths,
        "hardest": hardest,
        "steps_per_s": {way: round(1 / found[0], 3) for way, found in medians.items()},
        "loss_ms": {way: round(1000 * found[2], 2) for way, found in medians.items()},
        "loss_of_all_triplets": {
            "deixis": forward_and_back(own_loss(msgspec.structs.replace(recipe, hardest=pairs)), *rows, batches[0]),
            "pytorch-metric-learning": forward_and_back(ways["pytorch-metric-learning"], *rows, batches[0]),
        },
        "loss_of_first_step": {way: round(value, 4) for way, value in first_losses.items()},
        "times_faster": ratios(0),
        "times_less_processor": ratios(1),
        "loss_times_faster": ratios(2),
    }


class Timed(NamedTuple):
    seconds: float
    processor: float
    outcome: Any


def timed(work: Callable[..., Any], *arguments: Any) -> Timed:
    processor, start = time.process_time(), time.perf_counter()
    outcome = work(*arguments)
    return Timed(time.perf_counter() - start, time.process_time() - processor, outcome)


def unit_rows(count: int, seed: int) -> Tensor:
    rows = torch.randn(count, 512, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(rows).requires_grad_()


def forward_and_back(loss: Way, images: Tensor, texts: Tensor, batch: RankingBatch) -> float:
    total = loss(images, texts, batch)
    total.backward()  # type: ignore[no-untyped-call]
    return total.item()


def close(one: float, other: float) -> bool:
    return abs(one / other - 1) < 1e-3


def step(
    network: TwoBranchEmbedding,
    optimizer: torch.optim.Optimizer,
    data: Made,
    batch: RankingBatch,
    loss: Way,
    mixed: bool = False,
) -> Tensor:
    with torch.autocast(data.images.device.type, torch.bfloat16, enabled=mixed):
        images = network.embed_images(data.images[batch.images])
        total = loss(images, network.embed_texts(data.texts[batch.texts]), batch)
    optimizer.zero_grad(set_to_none=True)
    total.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return total.detach()


def full(device: torch.device, images: int, compiled: bool) -> tuple[dict[str, Any], bool]:
    """Epochs at Flickr30k's size in each precision."""
    start = time.perf_counter()
    data = made(images, CAPTIONS, device)
    wait(device)
    making = time.perf_counter() - start
    sampler = SentenceSampler(data, SentenceSamplerRecipe(FULL_BATCH, "sampling"), seed=0)
    start = time.perf_counter()
    rows = [(len(batch.images), len(batch.texts)) for batch in sampler.triplets(1)]
    wait(device)
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
        "pairs": FULL_BATCH,
        "steps": len(rows),
        "texts_a_batch": round(float(np.mean([texts for _, texts in rows])), 1),
        "compiled": compiled,
        "making_data_s": round(making, 2),
        "sampling_alone_s": round(sampling, 2),
        **ceiling.record(),
        "runs": runs,
        "fastest_epoch_s": fastest,
        "steps_of_one_size": fixed,
        "limits": {"fastest_epoch_s": FULL_LIMIT},
    }
    return record, fastest <= FULL_LIMIT


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
    wait(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    totals = train(2)
    wait(device)
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
        for batch in SentenceSampler(data, SentenceSamplerRecipe(FULL_BATCH), seed=0).triplets(1)
        if len(batch.images) == FULL_BATCH
    ]
    found = floor([(FULL_BATCH, FULL_BATCH)], "tf32", ceiling)
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
    return {"pairs": FULL_BATCH, **found, "ways": ways}


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

    way: TakeStep = Graphed(take) if name == "graph" else take
    start = time.perf_counter()
    for batch in batches:
        way(batch, 1.0)
    wait(device)
    ready = time.perf_counter() - start
    start = time.perf_counter()
    for batch in batches:
        last, _ = way(batch, 1.0)
    wait(device)
    taken = (time.perf_counter() - start) / len(batches)
    return {
        "step_ms": round(1e3 * taken, 3),
        "getting_ready_s": round(ready, 2),
        "last_loss": round(last.total.item(), 4),
    }


def wait(device: torch.device) -> None:
    roofline.wait(device)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="an epoch at Flickr30k's size")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--images", type=int, default=FULL_IMAGES, help="with --full: how many, each with five captions"
    )
    parser.add_argument("--compile", action="store_true", help="with --full: compile the branches")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    name = "two_branch-full" if arguments.full else "two_branch"
    if arguments.full:
        found, held = full(torch.device(arguments.device), arguments.images, arguments.compile)
    else:
        found, held = compare()
    record = {
        "benchmark": name,
        **found,
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    tell(record, arguments.out or Path(f"results/benchmarks/{name}.json"))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
