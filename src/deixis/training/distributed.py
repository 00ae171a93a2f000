"""Training one model in several processes, started by torchrun.

Every process has the whole task, makes the same batches and seeds torch alike. Each computes some rows of a batch
(`RowGather`) and gets the others with their gradient; loss, batch statistics and dropout are those of the whole batch.
So a global batch gives the same loss, and to rounding the same weights, in any number of processes.

Each process has the loss of the whole batch, and `DistributedDataParallel` averages the gradients. Sums over processes
also sum their gradients, so the mean of all losses is minimized.
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

#: How long a process waits for another, which may have to extract features. torchrun notices dead processes itself.
TIMEOUT: Final = timedelta(hours=12)


@dataclass(frozen=True)
class Ranks:
    """This process, `number`, of `count` that train together."""

    number: int = 0
    count: int = 1
    #: Whether torchrun started it; even a single process then belongs to a process group.
    started: bool = False

    @property
    def together(self) -> bool:
        """Whether there is a process group."""
        return self.started or self.count > 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes, validates and prints."""
        return self.number == 0

    def share(self, total: int) -> range:
        """The indices, of `total`, that this process computes: consecutive ones."""
        return range(total * self.number // self.count, total * (self.number + 1) // self.count)

    def broadcast(self, message: bytes) -> bytes:
        """Send the message of the first process to all; returns it."""
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
        """Send the checkpoint of the first process to all: the others may not have its files."""
        if not self.together:
            return checkpoint
        position = self.broadcast(msgspec.json.encode(checkpoint.position) if checkpoint else b"")
        tensors = self.broadcast(save(checkpoint.tensors) if checkpoint else b"")
        if not position or self.first:
            return checkpoint
        return Checkpoint(msgspec.json.decode(position, type=Position), load(tensors))

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Let the first process run the block before the others, which then find its files."""
        if not self.first:
            self.broadcast(b"")
        yield
        if self.first:
            self.broadcast(b"")


ALONE: Final = Ranks()


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Join the process group by the environment variables of torchrun; without them, this process is alone."""
    if not {"WORLD_SIZE", "RANK", "MASTER_ADDR"} <= set(os.environ):
        if int(os.environ.get("WORLD_SIZE") or 1) > 1:
            raise DeixisError("WORLD_SIZE is set, but RANK or MASTER_ADDR is not; start training by torchrun")
        yield ALONE
        return
    own_card = device == "cuda" and _take_card()
    store, rank, count = next(rendezvous("env://", timeout=TIMEOUT))
    # After a restart torchrun may pass the same store again, with the addresses of dead processes in it.
    prefixed = PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')} of {count}", store)
    backend = _backend(prefixed, rank, count, own_card)
    dist.init_process_group(backend, store=prefixed, rank=rank, world_size=count, timeout=TIMEOUT)
    try:
        yield Ranks(rank, count, started=True)
    finally:
        dist.destroy_process_group()


def _take_card() -> bool:
    """Select this process' GPU; returns whether no other process uses it."""
    missing = [name for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE") if not os.environ.get(name)]
    if missing:
        raise DeixisError(f"{' and '.join(missing)} must be set to share GPUs; start training by torchrun")
    cards = torch.cuda.device_count()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % cards)
    return int(os.environ["LOCAL_WORLD_SIZE"]) <= cards


def _backend(store: Store, rank: int, count: int, own_card: bool) -> str:
    """The backend of all processes: gloo if any two share a GPU, which NCCL refuses."""
    store.set(f"own card {rank}", str(own_card))
    every = [store.get(f"own card {process}") == b"True" for process in range(count)]
    return "cpu:gloo,cuda:nccl" if all(every) else "gloo"


class FollowingRun:
    """Takes the place of the run folder in all processes but the first, and writes nothing."""

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
    # Parameters have no gradient while their group is frozen, or if other processes compute all rows that use them.
    return DistributedDataParallel(_TaskLoss(task, gather), find_unused_parameters=True)


class _TaskLoss(nn.Module):
    """Has the parameters of the task's module but not its buffers, which are equal already and need not be sent."""

    def __init__(self, task: SharedTask[Any], gather: RowGather) -> None:
        super().__init__()
        self.task, self.gather, self.parameters_of_task = task, gather, nn.ParameterList(task.module.parameters())

    def forward(self, batch: Any) -> Loss:
        return self.task.loss(batch, self.gather)


class RowGather:
    """`deixis.training.task.Gather` in several processes: each computes consecutive rows."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        #: During a call: this process' rows of the batch, and the number of all rows.
        self.rows: range | None = None
        self.count = 0

    def __call__(self, function: Callable[..., Any], *rows: Any) -> Any:
        self.count = len(next(argument for argument in rows if argument is not None))
        share = self.rows = self.ranks.share(self.count)
        try:
            values = function(*(part if part is None else part[share.start : share.stop] for part in rows))
        finally:
            self.rows = None
        return tree_map_only(Tensor, lambda value: self._gathered(value, share), values)

    def _gathered(self, values: Tensor, share: range) -> Tensor:
        """The rows of all processes, `(count, …)`, from those of this process."""
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        before = values.new_zeros(share.start, *values.shape[1:])
        after = values.new_zeros(self.count - share.stop, *values.shape[1:])
        # Adding zeros is exact.
        return summed(torch.cat([before, values, after]))


def summed(values: Tensor) -> Tensor:
    """The sum over all processes, in each of them; gradients are summed as well."""
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
    """Make batch norm and dropout work on the whole batch while `gather` computes some of its rows.

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
    """Batch norm over the rows of all processes; a process may have none. `nn.SyncBatchNorm` works only on GPUs."""

    gather: RowGather

    def _check_input_dim(self, input: Tensor) -> None: ...

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        if not self.training or self.gather.rows is None:
            return super().forward(input, mask)
        # From the host: reading the total below would wait for the device.
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
        local = torch.cat([mean, variance, count[None]])
        rank, processes = self.gather.ranks.number, self.gather.ranks.count
        before, after = local.new_zeros(rank, len(local)), local.new_zeros(processes - 1 - rank, len(local))
        table = summed(torch.cat([before, local[None], after]))
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
    """Draws the mask of the whole batch, as one process would, and applies the part for its rows."""

    gather: RowGather

    def forward(self, input: Tensor) -> Tensor:
        rows = self.gather.rows
        if rows is None or not self.training or not self.p:
            return super().forward(input)
        mask = functional.dropout(input.new_ones(self.gather.count, *input.shape[1:]), self.p)
        return input * mask[rows.start : rows.stop]
