"""Several processes that train one model, started by torchrun: who they are, and what they exchange.

Every process has the whole task, draws the same batches and seeds torch alike. Each computes some rows of a batch
(`RowGather`) and gets the others' with their gradient; the loss, batch statistics and dropout are those of the whole
batch. So one global batch gives the loss, and to rounding the weights, that it gives in one process, however many
processes share it.

Each process has the loss of the whole batch, and `DistributedDataParallel` averages their gradients. The gradient of
what is summed over processes on the way is summed, too: the mean of all losses is what is minimized.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from deixis.errors import DeixisError
from deixis.training.checkpoints import Checkpoint, Position
from deixis.training.masked_norm import MaskedBatchNorm, update_statistics
from deixis.training.run_records import Record, TrainingReport
from deixis.training.task import Loss, SharedTask

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

    def broadcast(self, message: bytes) -> bytes:
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

    def broadcast_checkpoint(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        """The first process' checkpoint, in all of them: files on its disk need not be on the others'."""
        if not self.together:
            return checkpoint
        position = self.broadcast(msgspec.json.encode(checkpoint.position) if checkpoint else b"")
        tensors = self.broadcast(save(checkpoint.tensors) if checkpoint else b"")
        if not position or self.first:
            return checkpoint
        return Checkpoint(msgspec.json.decode(position, type=Position), load(tensors))

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """The first process alone does what is inside, the others after it: they find what it made."""
        if not self.first:
            self.broadcast(b"")
        yield
        if self.first:
            self.broadcast(b"")


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
        """Nothing: the first process broadcasts its checkpoint."""

    def log(self, record: Record) -> None: ...

    def checkpoint(self, position: Position, tensors: Mapping[str, Tensor]) -> None: ...

    def finish(self, weights: Mapping[str, Tensor], report: TrainingReport) -> None: ...


def shared_loss(task: SharedTask[Any], ranks: Ranks) -> Callable[[Any], Loss]:
    """A task's loss, computed by all processes together; after `backward` every process has the whole gradient.

    Batch norm and dropout of the task's module become those of the whole batch.
    """
    gather = RowGather(ranks)
    make_global(task.module, gather)
    # Groups that are frozen for a while, and rows that another process computes, leave parameters without a gradient.
    return DistributedDataParallel(_TaskLoss(task, gather), find_unused_parameters=True)


class _TaskLoss(nn.Module):
    """Has the parameters of the task's module, but not its buffers: these agree already, and need not be sent."""

    def __init__(self, task: SharedTask[Any], gather: RowGather) -> None:
        super().__init__()
        self.task, self.gather, self.learned = task, gather, nn.ParameterList(task.module.parameters())

    def forward(self, batch: Any) -> Loss:
        return self.task.loss(batch, self.gather)


class RowGather:
    """`deixis.training.task.Gather` by several processes: each computes consecutive rows."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        #: While a function computes: its rows of the batch, and how many the batch has.
        self.rows: range | None = None
        self.count = 0

    def __call__(self, function: Callable[..., Any], *rows: Any) -> Any:
        self.count = len(next(each for each in rows if each is not None))
        own = self.rows = self.ranks.share(self.count)
        try:
            values = function(*(each if each is None else each[own.start : own.stop] for each in rows))
        finally:
            self.rows = None
        return tree_map_only(Tensor, lambda value: self._gathered(value, own), values)

    def _gathered(self, values: Tensor, own: range) -> Tensor:
        """The rows of all processes `(count, …)`, of which these are the process' own."""
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        before = values.new_zeros(own.start, *values.shape[1:])
        after = values.new_zeros(self.count - own.stop, *values.shape[1:])
        # The sum of a row and zeros has the row's own bits.
        return summed(torch.cat([before, values, after]))


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


def make_global(module: nn.Module, gather: RowGather) -> None:
    """Let batch norm and dropout see the whole batch while `gather` computes rows of it.

    Layers are converted in place, since networks may share them.
    """
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.__class__ = GlobalBatchNorm
            cast(GlobalBatchNorm, layer).gather = gather
        elif type(layer) is nn.Dropout:
            layer.__class__ = GlobalDropout
            cast(GlobalDropout, layer).gather = gather


class GlobalBatchNorm(MaskedBatchNorm):
    """Batch norm by the statistics of all processes' rows; `nn.SyncBatchNorm` is for GPUs alone.

    A process may have no rows.
    """

    gather: RowGather

    def _check_input_dim(self, input: Tensor) -> None: ...

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        if not self.training or self.gather.rows is None:
            return super().forward(input, mask)
        # The count of all rows is on the device, which would have to be waited for; this one is on the host.
        if self.gather.count * input.shape[2:].numel() == 1:
            raise ValueError("Expected more than 1 value per channel when training, got one in all processes")
        full, channels = input.to(torch.promote_types(input.dtype, torch.float32)), self.num_features
        others = [axis for axis in range(input.dim()) if axis != 1]
        count = full.new_full((), input.numel() // channels) if mask is None else mask.sum().to(full)
        masked = None if mask is None else ~mask[:, None]
        at_least_one = count.clamp(min=1)
        mean = (full if masked is None else full.masked_fill(masked, 0)).sum(others) / at_least_one
        shape = (1, channels, *[1] * (input.dim() - 2))
        deviation = (full - mean.view(shape)).square()
        variance = (deviation if masked is None else deviation.masked_fill(masked, 0)).sum(others) / at_least_one
        own = torch.cat([mean, variance, count[None]])
        number, processes = self.gather.ranks.number, self.gather.ranks.count
        before, after = own.new_zeros(number, len(own)), own.new_zeros(processes - 1 - number, len(own))
        table = summed(torch.cat([before, own[None], after]))
        means, variances, counts = table[:, :channels], table[:, channels:-1], table[:, -1:]
        # The statistics of a union: Chan, Golub and LeVeque (1979), equation 2.1, for any number of parts.
        total = counts.sum()
        mean = (counts * means).sum(0) / total
        variance = (counts * (variances + (means - mean).square())).sum(0) / total
        update_statistics(self, mean.detach(), variance.detach() * (total / (total - 1)).detach())
        scale = self.weight * (variance + self.eps).rsqrt()
        normalized: Tensor = (full - mean.view(shape)) * scale.view(shape) + self.bias.view(shape)
        return normalized.to(input.dtype)


class GlobalDropout(nn.Dropout):
    """Draws for the whole batch, as one process would, and uses what falls on its own rows."""

    gather: RowGather

    def forward(self, input: Tensor) -> Tensor:
        own = self.gather.rows
        if own is None or not self.training or not self.p:
            return super().forward(input)
        kept = functional.dropout(input.new_ones(self.gather.count, *input.shape[1:]), self.p)
        return input * kept[own.start : own.stop]
