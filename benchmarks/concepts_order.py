"""What learning order by generation costs: training steps of the SCO model with a generator and without.

    python benchmarks/concepts_order.py [--device cuda] [--out results/benchmarks/concepts_order.json]

Steps (networks forward and back, loss, Adam) at H = 1,024, D = 300, K = 256 and 1,280 numbers of context, on batches of
129 made-up pairs whose sentences have 6 to 20 words of 8,000. Both models take turns on the same batches, and the
median of the turns counts. That the packed pass over all sentences tells what one sentence at a time does is checked in
the run. Beside it stands the same with words told from H numbers, without the map to D before the softmax; and the
floor of each: the operations of its matrices at the rate of one large product, or the bytes of weights, gradients and
Adam at the rate of one large copy, in the same run.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from typing import Any, NamedTuple

import roofline
import torch
from telling import tell
from torch import Tensor, nn
from torch.nn import functional as F

from deixis.papers.concepts_order.loss import structured_ranking
from deixis.papers.concepts_order.network import ConceptsOrderNetwork, OrderRecipe

PAIRS, CONCEPTS, CONTEXT, WORDS, SHORTEST, LONGEST = 129, 256, 1280, 8000, 6, 20
#: How many times as long a step with generation may take.
LIMIT = 3.0
TURNS = 5


class Batch(NamedTuple):
    concepts: Tensor
    context: Tensor
    ids: Tensor


def make_batch(device: torch.device) -> Batch:
    torch.manual_seed(0)
    ids = torch.randint(4, WORDS, (PAIRS, LONGEST))
    lengths = torch.randint(SHORTEST, LONGEST + 1, (PAIRS, 1))
    ids[torch.arange(LONGEST) >= lengths] = 0
    return Batch(torch.rand(PAIRS, CONCEPTS).to(device), torch.randn(PAIRS, CONTEXT).to(device), ids.to(device))


def make_network(device: torch.device, *, generates: bool, word: int = 300) -> ConceptsOrderNetwork:
    recipe = OrderRecipe(word=word)
    return ConceptsOrderNetwork(CONCEPTS, CONTEXT, WORDS, recipe, generates=generates).to(device)


def step(network: ConceptsOrderNetwork, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    fused = network.fuse(batch.concepts, batch.context)
    owner = torch.arange(PAIRS, device=fused.device)
    mismatch, mask = owner[:, None] != owner, torch.ones_like(owner, dtype=torch.bool)
    texts = network.embed_texts(batch.ids)
    loss = structured_ranking(F.normalize(fused), texts, owner, mismatch, mask, 0.2) / PAIRS
    if network.generator is not None:
        loss = loss + network.generator.negative_log_likelihood(fused, batch.ids).mean()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


@torch.no_grad()
def check(network: ConceptsOrderNetwork, batch: Batch) -> None:
    """The packed pass against sentences one at a time."""
    assert network.generator is not None
    fused = network.fuse(batch.concepts, batch.context)
    together = network.generator.negative_log_likelihood(fused, batch.ids)
    for row in range(0, PAIRS, 16):
        alone = network.generator.negative_log_likelihood(fused[row : row + 1], batch.ids[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-3, atol=1e-2)


def measure(device: torch.device, turns: int) -> dict[str, Any]:
    batch = make_batch(device)
    networks: dict[str, ConceptsOrderNetwork] = {
        "matching": make_network(device, generates=False),
        "with_generation": make_network(device, generates=True),
        "without_the_map": make_network(device, generates=True, word=1024),
    }
    # At D = H the words are told from the state itself.
    generator = networks["without_the_map"].generator
    assert generator is not None
    generator.map = nn.Identity()  # type: ignore[assignment]
    check(networks["with_generation"], batch)
    optimizers = {name: torch.optim.Adam(network.parameters(), 2e-4) for name, network in networks.items()}
    seconds: dict[str, list[float]] = {name: [] for name in networks}
    for turn in range(turns + 1):
        for name, network in networks.items():
            began = time.perf_counter()
            step(network, optimizers[name], batch)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if turn:
                seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(own) for name, own in seconds.items()}
    ceiling = roofline.measure(device, "float32")
    floors = {name: floor(network, batch, ceiling) for name, network in networks.items()}
    for name, own in floors.items():
        own["share_of_floor"] = round(own["floor_s"] / medians[name], 4)
    return {
        **{f"{name}_milliseconds": round(1000 * own, 2) for name, own in medians.items()},
        "times_matching": round(medians["with_generation"] / medians["matching"], 2),
        "times_matching_without_the_map": round(medians["without_the_map"] / medians["matching"], 2),
        "roofline": ceiling.record(),
        "floors": floors,
    }


def floor(network: ConceptsOrderNetwork, batch: Batch, ceiling: roofline.Roofline) -> dict[str, Any]:
    """Of a step: each matrix forward, and backward twice, for each row that goes through it."""
    read = int((batch.ids != 0).sum())
    told = read + PAIRS  # and the end of each sentence
    operations = 0
    for name, weight in network.named_parameters():
        if weight.dim() != 2:
            continue
        rows = {"fusion": PAIRS, "sentences": read, "generator": told}[name.partition(".")[0]]
        # A word that is read is looked up; one that is told is a product with all words.
        if "words" in name and not name.startswith("generator"):
            continue
        operations += 6 * rows * weight.numel()
    parameters = sum(weight.numel() for weight in network.parameters())
    # Weights read forward and back, gradients written; Adam reads four arrays and writes three.
    return ceiling.floor(operations, 4 * (2 + 1 + 7) * parameters, "float32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--out")
    options = parser.parse_args()
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    figures = measure(device, options.turns)
    tell({"device": name, "torch": torch.__version__, "limit": LIMIT, **figures}, options.out)
    if figures["times_matching"] > LIMIT:
        sys.exit(f"a step with generation takes {figures['times_matching']} times as long; the limit is {LIMIT}")


if __name__ == "__main__":
    main()
