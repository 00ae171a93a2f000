"""Several processes that train one model, started by torchrun: who they are, and what they tell each other.

Every process draws the same batches and seeds torch alike, embeds the rows of a batch that it holds, and gets the
others' embeddings with their gradient; the loss, batch statistics and dropout are those of the whole batch. So one
global batch gives the loss, and to rounding the weights, that it gives in one process, however many share it.

Each process has the loss of the whole batch, and `DistributedDataParallel` means their gradients. What is summed over
processes on the way has its gradient summed, too: the mean of all the losses is what is stepped down.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from deixis.errors import DeixisError
from deixis.training.checkpoints import Checkpoint, Position
from deixis.training.masked_norm import keep_statistics
from deixis.training.placing import rows_of
from deixis.training.run_records import Record, TrainingReport
from deixis.training.task import Loss, Task

#: How long one process waits for another: features may have to be extracted first. torchrun sees a death at once.
PATIENCE: Final = timedelta(hours=12)


@dataclass(frozen=True)
class Ranks:
    """This process, by number, among `count` that train together."""

    number: int = 0
    count: int = 1
    #: Whether torchrun started it: a group of one talks as a larger one does.
    started: bool = False

    @property
    def together(self) -> bool:
        """Whether there is a group of processes."""
        return self.started or self.count > 1

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes, validates and talks."""
        return self.number == 0

    def share(self, things: int) -> range:
        """Which of so many things are this process' own: consecutive ones, all of them where it is alone."""
        return range(things * self.number // self.count, things * (self.number + 1) // self.count)

    def told(self, message: bytes) -> bytes:
        """The first process' message, in all of them."""
        if not self.together:
            return message
        length = torch.tensor([len(message)])
        dist.broadcast(length, 0)
        data = torch.zeros(int(length), dtype=torch.uint8)
        if self.first and message:
            data = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        dist.broadcast(data, 0)
        return data.numpy().tobytes()

    def told_checkpoint(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        """The first process' checkpoint, in all of them: files on its disk need not be on the others'."""
        if not self.together:
            return checkpoint
        position = self.told(msgspec.json.encode(checkpoint.position) if checkpoint else b"")
        tensors = self.told(save(checkpoint.tensors) if checkpoint else b"")
        if not position or self.first:
            return checkpoint
        return Checkpoint(msgspec.json.decode(position, type=Position), load(tensors))

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """The first process alone does what is inside, the others after it: they find what it made."""
        if not self.first:
            self.told(b"")
        yield
        if self.first:
            self.told(b"")


ALONE: Final = Ranks()


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Join the processes that torchrun started, by the variables it sets; without torchrun this one is alone."""
    if not {"WORLD_SIZE", "RANK", "MASTER_ADDR"} <= set(os.environ):
        if int(os.environ.get("WORLD_SIZE") or 1) > 1:
            raise DeixisError("WORLD_SIZE is set, but RANK or MASTER_ADDR is not; start training by torchrun")
        yield ALONE
        return
    own_card = device == "cuda" and _take_card()
    store, rank, count = next(rendezvous("env://", timeout=PATIENCE))
    # torchrun may hand the same store to processes that it started again, with the addresses of dead ones in it.
    own = PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')} of {count}", store)
    backend = _backend(own, rank, count, own_card)
    dist.init_process_group(backend, store=own, rank=rank, world_size=count, timeout=PATIENCE)
    try:
        yield Ranks(rank, count, started=True)
    finally:
        dist.destroy_process_group()


def _take_card() -> bool:
    """Choose this process' card; whether it has the card to itself."""
    missing = [name for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE") if not os.environ.get(name)]
    if missing:
        raise DeixisError(f"{' and '.join(missing)} must be set to share cards; start training by torchrun")
    cards = torch.cuda.device_count()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % cards)
    return int(os.environ["LOCAL_WORLD_SIZE"]) <= cards


def _backend(store: Store, rank: int, count: int, own_card: bool) -> str:
    """What all processes talk by. NCCL refuses processes that share a card: where any two do, it is gloo for all."""
    store.set(f"own card {rank}", str(own_card))
    every = [store.get(f"own card {number}") == b"True" for number in range(count)]
    return "cpu:gloo,cuda:nccl" if all(every) else "gloo"


class FollowingRun:
    """Stands for the run folder in a process that is not the first, and writes nothing."""

    finished = False

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def __enter__(self) -> FollowingRun:
        return self

    def __exit__(self, *fault: object) -> None: ...

    def resume(self, device: torch.device) -> None:
        """The first process tells where to go on."""

    def log(self, record: Record) -> None: ...

    def checkpoint(self, position: Position, tensors: Mapping[str, Tensor]) -> None: ...

    def finish(self, weights: Mapping[str, Tensor], report: TrainingReport) -> None: ...


def agreed_loss(task: Task[Any]) -> Callable[[Any], Loss]:
    """A task's loss, whose gradients are those of the whole batch in every process after `backward`."""
    # Groups that are frozen for a while, and rows that another process holds, leave parameters without a gradient.
    return DistributedDataParallel(_Losses(task), find_unused_parameters=True)


class _Losses(nn.Module):
    """Has the parameters of the task's module, but not its buffers: these agree already, and need not be sent."""

    def __init__(self, task: Task[Any]) -> None:
        super().__init__()
        self.task, self.learned = task, nn.ParameterList(task.module.parameters())

    def forward(self, batch: Any) -> Loss:
        return self.task.loss(batch)


class Held(NamedTuple):
    """The rows of a table that this process holds, from row `first` of the whole table on."""

    values: Tensor
    first: int = 0

    def places(self, rows: Tensor) -> Tensor:
        """Where among `rows` of the table those are that are held here."""
        return ((rows >= self.first) & (rows < self.first + len(self.values))).nonzero()[:, 0]


class Sharing:
    """How the processes share the rows of a batch; batch statistics and dropout of the module become global."""

    def __init__(self, ranks: Ranks, module: nn.Module) -> None:
        self.ranks = ranks
        self._at_work = _RowsAtWork()
        if ranks.together:
            _make_global(module, ranks, self._at_work)

    def embedded(self, rows: Tensor, held: Held, embed: Callable[[Tensor], Tensor]) -> Tensor:
        """Embeddings `(rows, dim)` of rows of a table, each made where it is held."""
        if not self.ranks.together:
            return embed(rows_of(held.values, rows))
        places = held.places(rows)
        return self.gathered(places, len(rows), lambda: embed(rows_of(held.values, rows[places] - held.first)))

    def divided(self, count: int, device: torch.device, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """What `compute` gives for the places 0 to `count`, every process taking some of them."""
        own = self.ranks.share(count)
        places = torch.arange(own.start, own.stop, device=device)
        return self.gathered(places, count, lambda: compute(places)) if self.ranks.together else compute(places)

    def gathered(self, places: Tensor, count: int, compute: Callable[[], Tensor]) -> Tensor:
        """The outcomes of all processes `(count, …)`, of which this one computes those at `places`."""
        self._at_work.places, self._at_work.count = places, count
        own = compute()
        own = own.to(torch.promote_types(own.dtype, torch.float32))
        # The sum of rows and zeros has the rows' own bits, and processes need not have as many rows as each other.
        return summed(own.new_zeros(count, *own.shape[1:]).index_copy(0, places, own))


def summed(values: Tensor) -> Tensor:
    """The sum over all processes, in all of them; its gradient is summed likewise."""
    result: Tensor = _Summed.apply(values)  # type: ignore[no-untyped-call]
    return result


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor) -> Tensor:
        return _sum_over_processes(values)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return _sum_over_processes(gradient)


def _sum_over_processes(values: Tensor) -> Tensor:
    total = values.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


class _RowsAtWork:
    """Which rows of the batch pass through the network just now."""

    places: Tensor
    count: int


def _make_global(module: nn.Module, ranks: Ranks, at_work: _RowsAtWork) -> None:
    """Let every layer that looks at the batch, or draws for it, see the whole one. Names in the module stay."""
    for name, child in module.named_children():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            setattr(module, name, GlobalBatchNorm(child, ranks, at_work))
        elif type(child) is nn.Dropout:
            setattr(module, name, _GlobalDropout(child.p, at_work))
        else:
            _make_global(child, ranks, at_work)


class GlobalBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalization by the statistics of all processes' rows; `nn.SyncBatchNorm` refuses a processor's tensors.

    Takes over the parameters and running statistics of another layer. A process may have no rows.
    """

    def __init__(self, layer: nn.modules.batchnorm._BatchNorm, ranks: Ranks, at_work: _RowsAtWork) -> None:
        super().__init__(layer.num_features, layer.eps, layer.momentum)
        self.ranks, self._at_work = ranks, at_work
        self._parameters, self._buffers = layer._parameters, layer._buffers

    def _check_input_dim(self, input: Tensor) -> None: ...

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        # As PyTorch's own. Asked of the host: `total` lies on the device, which would have to be waited for.
        if self._at_work.count * input.shape[2:].numel() == 1:
            raise ValueError("Expected more than 1 value per channel when training, got one in all processes")
        full, channels = input.to(torch.promote_types(input.dtype, torch.float32)), self.num_features
        others = [axis for axis in range(input.dim()) if axis != 1]
        count = input.numel() // channels
        variance, mean = torch.var_mean(full, others, correction=0) if count else (full.sum(others),) * 2
        own = torch.cat([mean, variance, mean.new_tensor([count])])
        place = torch.tensor([self.ranks.number], device=own.device)
        table = summed(own.new_zeros(self.ranks.count, len(own)).index_copy(0, place, own[None]))
        means, variances, counts = table[:, :channels], table[:, channels:-1], table[:, -1:]
        # The statistics of a union: Chan, Golub and LeVeque (1979), equation 2.1, for any number of parts.
        total = counts.sum()
        mean = (counts * means).sum(0) / total
        variance = (counts * (variances + (means - mean).square())).sum(0) / total
        keep_statistics(self, mean.detach(), variance.detach() * (total / (total - 1)).detach())
        shape = (1, channels, *[1] * (input.dim() - 2))
        scale = self.weight * (variance + self.eps).rsqrt()
        normalized: Tensor = (full - mean.view(shape)) * scale.view(shape) + self.bias.view(shape)
        return normalized.to(input.dtype)


class _GlobalDropout(nn.Dropout):
    """Draws for the whole batch, as one process would, and uses what falls on its rows."""

    def __init__(self, p: float, at_work: _RowsAtWork) -> None:
        super().__init__(p)
        self._at_work = at_work

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not self.p:
            return input
        kept = functional.dropout(input.new_ones(self._at_work.count, *input.shape[1:]), self.p)
        return input * kept[self._at_work.places]
