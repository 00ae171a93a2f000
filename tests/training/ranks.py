"""Processes that train together, as torchrun would start them: `python -m tests.training.ranks JOBS`.

Each job, `(name, count, arguments)`, is a function below, run by `count` processes at once. The program prints for
every job, as JSON, what its processes returned. One program for all jobs, since torch takes seconds to import.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from deixis.corpus import Corpus, open_corpus
from deixis.errors import DeixisError
from deixis.features.store import FeatureStore
from deixis.training import runs
from deixis.training.distributed import GlobalBatchNorm, Ranks, RowGather, joined, make_global
from deixis.training.kinds import KINDS
from deixis.training.masked_norm import MaskedBatchNorm
from deixis.training.recipe import RecipeFile, check_recipe
from deixis.training.running import run_recipe
from deixis.training.task import Gather, compute_all
from deixis.vision.efficientnet_lite import load_efficientnet_lite

CPU = torch.device("cpu")


@cache
def small_corpus() -> Corpus:
    whole = open_corpus("scenes")
    training = [image for image in whole if image.split == "train"][:33]
    return whole.with_images([*training, *[image for image in whole if image.split == "val"][:8]])


def train(ranks: Ranks, settings: dict[str, Any], out: str, stores: list[str], device: str = "cpu") -> str:
    """Train a recipe; the fault, where there is one."""
    recipe, opened = check_recipe(settings, "here"), [*map(FeatureStore, stores)]
    try:
        run_recipe(RecipeFile("", recipe), small_corpus(), opened, out, torch.device(device), ranks=ranks)
    except DeixisError as fault:
        return str(fault)
    return ""


class Layers(nn.Module):
    """All that looks at a whole batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.4), nn.Linear(16, 5)
        )
        self.norm = nn.BatchNorm1d(5, momentum=0.3)


def layers(ranks: Ranks, rows: int) -> dict[str, Any]:
    """Embeddings, gradients and running statistics after two batches, of which late processes may hold nothing."""
    module = Layers().double()
    table = torch.randn(7, 2, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    embed = _shared(ranks, module, table, lambda chosen: module.norm(module.layers(chosen)))
    assert isinstance(module.norm, GlobalBatchNorm) == ranks.together
    for seed in range(2):
        torch.manual_seed(seed)
        embedded = embed(torch.arange(rows).flip(0))
    state = {name: value.tolist() for name, value in module.state_dict().items()}
    return {"embedded": embedded.tolist(), **_gradients(ranks, module), **state}


def one_row(ranks: Ranks) -> str:
    """What a layer says to a batch of one row."""
    module = nn.Sequential(nn.BatchNorm1d(3))
    try:
        gathering(ranks, module)(module, torch.ones(1, 3))
    except ValueError as fault:
        return str(fault)
    return ""


def masked(ranks: Ranks) -> dict[str, Any]:
    """Batch norm over the rows of a mask, of which the last process has none."""
    torch.manual_seed(0)
    norm = MaskedBatchNorm(3).double()
    module, rows = nn.Sequential(norm), torch.randn(8, 3, dtype=torch.float64)
    mask = torch.tensor([True, False, True, True, True, False, False, False])
    out = gathering(ranks, module)(norm, rows, mask)[mask]
    (out * torch.arange(out.numel(), dtype=out.dtype).view_as(out).sin()).sum().backward()
    state = {name: value.tolist() for name, value in module.state_dict().items()}
    return {"normalized": out.tolist(), **_gradients(ranks, module), **state}


def network(ranks: Ranks) -> dict[str, Any]:
    """The backbone of a tower, all of it learning."""
    module = load_efficientnet_lite("efficientnet-lite0").double().train()
    pictures = torch.randn(8, 3, 64, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    embed = _shared(ranks, module, pictures, lambda chosen: module.map(chosen).mean((2, 3)))
    return {"embedded": embed(torch.arange(8)).tolist(), **_gradients(ranks, module)}


def _shared(
    ranks: Ranks, module: nn.Module, table: Tensor, embed: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """What embeds rows of a table by all processes, and steps a loss back that weighs all pairs differently."""
    gather = gathering(ranks, module)

    def step(rows: Tensor) -> Tensor:
        embedded: Tensor = gather(lambda chosen: functional.normalize(embed(table[chosen])), rows)
        weights = torch.arange(len(rows) ** 2, dtype=table.dtype).view(len(rows), -1).sin()
        (embedded @ embedded.T * weights).sum().backward()
        return embedded

    return step


def gathering(ranks: Ranks, module: nn.Module) -> Gather:
    """What computes rows, and a module whose layers see the whole batch."""
    if not ranks.together:
        return compute_all
    gather = RowGather(ranks)
    make_global(module, gather)
    return gather


def _gradients(ranks: Ranks, module: nn.Module) -> dict[str, Any]:
    gradients = {}
    for name, value in module.named_parameters():
        total = value.grad if value.grad is not None else torch.zeros_like(value)
        if ranks.count > 1:
            torch.distributed.all_reduce(total)
        gradients[f"gradient of {name}"] = (total / ranks.count).sum(0).tolist()
    return gradients


def killed(ranks: Ranks, settings: dict[str, Any], out: str, stores: list[str], rank: int, step: int) -> str:
    """`train`, in which one process dies in the middle, the first time that it runs."""
    from deixis.papers.two_branch.task import TwoBranchTask

    loss, left = TwoBranchTask.loss, step

    def fatal(task: Any, batch: Any, gather: Any) -> Any:
        nonlocal left
        left -= 1
        if not left and ranks.number == rank and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return loss(task, batch, gather)

    TwoBranchTask.loss = fatal  # type: ignore[method-assign]
    return train(ranks, settings, out, stores)


JOBS: dict[str, Callable[..., Any]] = {
    "train": train,
    "layers": layers,
    "one_row": one_row,
    "masked": masked,
    "network": network,
    "killed": killed,
}


def quick() -> None:
    """One thread, and what was written outlives a killed process without being synced."""
    torch.set_num_threads(1)
    os.fsync = lambda descriptor: None
    runs.write_curves = lambda folder: folder  # type: ignore[assignment]


def _child(job: str, arguments: list[Any], place: Path, environment: dict[str, str]) -> int:
    child = os.fork()
    if child:
        return child
    os.environ |= environment
    quick()
    with joined("cpu") as ranks:
        place.write_bytes(msgspec.json.encode(JOBS[job](ranks, *arguments)))
    os._exit(0)


def run_job(job: str, count: int, arguments: list[Any]) -> list[Any]:
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        if count > 1:  # Without it a process is alone.
            common["WORLD_SIZE"] = str(count)
        places = [Path(folder) / str(rank) for rank in range(count)]
        children = [
            _child(job, arguments, place, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank, place in enumerate(places)
        ]
        for child in children:
            assert os.waitpid(child, 0)[1] == 0, job
        return [msgspec.json.decode(place.read_bytes()) for place in places]


if __name__ == "__main__":
    if sys.argv[1] in JOBS:  # Started by torchrun, or alone: JOB ARGUMENTS [DEVICE]
        quick()
        with joined(sys.argv[3] if len(sys.argv) > 3 else "cpu") as ranks:
            JOBS[sys.argv[1]](ranks, *msgspec.json.decode(sys.argv[2]))
    else:
        # This process computes nothing itself, so that it can be forked safely; what takes long to import it imports.
        for name in (
            "torch._dynamo",
            "torch.nn.parallel",
            "sklearn.feature_extraction",
            *(path.partition(":")[0] for path in KINDS.values()),
        ):
            import_module(name)
        small_corpus()
        jobs = msgspec.json.decode(sys.argv[1], type=list[tuple[str, int, list[Any]]])
        sys.stdout.write(msgspec.json.encode([run_job(*job) for job in jobs]).decode())
