"""Training steps of the two-branch embedding network, with other ways to write its loss.

    python benchmarks/two_branch.py [--out results/benchmarks/two_branch.json]

Steps (forward, backward, loss, Adam) on image-sentence pairs with the paper's widths for phrases and for sentences,
4,096 + 6,000 dimensions: with the loss of Deixis, with a plain loop over pairs, and with pytorch-metric-learning, whose
closest miner takes all triplets that violate the margin (it has none for the K hardest per pair). They run alternately
on the same batches, and the median counts; the loss alone is timed too. The run checks that all compute the same: the
loop with the K hardest, the library with all triplets.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from reporting import write_report
from torch import Tensor

from deixis.papers.two_branch.loss import RankingLoss, RankingRecipe
from deixis.papers.two_branch.network import EmbeddingRecipe, TwoBranchEmbedding
from deixis.training.sampling import RankingBatch
from deixis.training.sentence_pairs import SentenceData, SentenceSampler, SentenceSamplerRecipe

IMAGE_DIM, TEXT_DIM, PLANTED = 4096, 6000, 64
#: How many times faster than the others the loss must be.
SPEED_LIMIT = 1
#: Name → pairs per batch, widths of the branches, K (the two-branch paper, sections 4.3 and 5.3).
SETTINGS = {"phrases": (100, (1024, 512), 30), "sentences": (500, (2048, 512), 10)}
TURNS = 6
#: A loss of unit rows of images, unit rows of texts and a batch.
Way = Callable[[Tensor, Tensor, RankingBatch], Tensor]


def made(images: int, captions: int, device: torch.device) -> SentenceData:
    """Images and captions whose features share planted dimensions."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    shared, image_of = normal(images, PLANTED), torch.arange(images, device=device).repeat_interleave(captions)
    texts = normal(len(image_of), TEXT_DIM)
    for start in range(0, len(texts), 16_384):
        texts[start : start + 16_384] += shared[image_of[start : start + 16_384]] @ normal_map(generator, TEXT_DIM)
    pictures = normal(images, IMAGE_DIM) + shared @ normal_map(generator, IMAGE_DIM)
    names = [str(index) for index in range(len(image_of))]
    return SentenceData(pictures, texts, image_of, tuple(names[:images]), tuple((name,) for name in names), 0)


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

    def one_way(anchors: Tensor, others: Tensor, match: Tensor, negative: Tensor) -> Tensor:
        total = anchors.new_zeros(())
        for anchor, positive in match.nonzero():
            near = (anchors[anchor] - others[positive]).norm()
            far = (anchors[anchor] - others[negative[anchor]]).norm(dim=1)
            hinges = torch.relu(recipe.margin + near - far)
            total = total + hinges.topk(min(recipe.hardest, len(hinges))).values.sum()
        return total

    def loss(images: Tensor, texts: Tensor, batch: RankingBatch) -> Tensor:
        contrast = batch.contrast
        forward = one_way(images, texts, contrast.match_texts, contrast.negative_texts)
        backward = one_way(texts, images, contrast.match_images, contrast.negative_images)
        return recipe.weights[0] * forward + recipe.weights[1] * backward

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
            alone = by_itself(forward_and_back, loss, *rows, batch)
            if turn:  # the first turn warms up
                times[way].append((whole.seconds, whole.processor, alone))
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


def by_itself(work: Callable[..., Any], *arguments: Any) -> float:
    """Seconds that something takes in the median of as many times as fit into a fifth of a second.

    What takes milliseconds would else be timed with caches full of what came before.
    """
    taken = [timed(work, *arguments).seconds]
    while sum(taken) < 0.2:
        taken.append(timed(work, *arguments).seconds)
    return statistics.median(taken)


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
    data: SentenceData,
    batch: RankingBatch,
    loss: Way,
    mixed: bool = False,
) -> Tensor:
    with torch.autocast(data.images.device.type, torch.bfloat16, enabled=mixed):
        images = network.embed_images(data.images[batch.images], batch.image_mask)
        total = loss(images, network.embed_texts(data.texts[batch.texts], batch.text_mask), batch)
    optimizer.zero_grad(set_to_none=True)
    total.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return total.detach()


def machine() -> dict[str, Any]:
    return {
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/two_branch.json"))
    arguments = parser.parse_args()
    found, held = compare()
    write_report({"benchmark": "two_branch", **found, **machine()}, arguments.out)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
