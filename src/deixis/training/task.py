"""What the trainer asks of whatever is to be learned: a module, batches, a loss, figures.

A task holds its own data and settings (corpus, features, sampler, margins); the trainer (`deixis.training.trainer`)
knows none of them. Each paper's learning is a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from torch import Tensor, nn

Batch = TypeVar("Batch")
One = TypeVar("One", covariant=True)


class Loss(NamedTuple):
    """The scalar to step down, and its parts by name: they are averaged and logged."""

    total: Tensor
    parts: Mapping[str, Tensor | float] = {}

    def detached(self) -> Loss:
        """The same figures without the graph behind them."""
        parts = {name: value.detach() if isinstance(value, Tensor) else value for name, value in self.parts.items()}
        return Loss(self.total.detach(), parts)


class Batches(Generic[Batch]):
    """The batches of one epoch: how many, and one after another, made when they are asked for."""

    def __init__(self, count: int, batches: Iterable[Batch]) -> None:
        self._count, self._batches = count, batches

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)


class SizedBatches(Protocol[One]):
    """`Batches`, a list, a sampler: whatever can be counted and walked through."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[One]: ...


class Gather(Protocol):
    """Computes `function(*rows)`, where row i of the result depends on row i of the inputs, and on batch statistics.

    Several processes that train together each compute some of the rows; all of them get all rows, with gradient.
    """

    def __call__(self, function: Callable[..., Any], *rows: Any) -> Any: ...


def compute_all(function: Callable[..., Any], *rows: Any) -> Any:
    """`Gather` in one process."""
    return function(*rows)


class Task(Protocol[Batch]):
    """Something to learn. Epochs are counted from 1.

    A run that was killed is continued in the middle of an epoch, so whatever a later step depends on is decided by
    the seed and the epoch, or is a parameter or buffer of the module: these are saved, nothing else is. The trainer
    seeds torch before every step, so dropout and other draws from torch's own generator need no care.
    """

    @property
    def module(self) -> nn.Module:
        """Everything that is learned, already on its device."""
        ...

    def batches(self, epoch: int) -> SizedBatches[Batch]:
        """The epoch's batches, decided by the seed and the epoch alone, whatever ran before.

        A task that changes by epoch (paper 1: constraints in the last two of ten) makes its batches accordingly; a
        batch carries all that its loss depends on.
        """
        ...

    def loss(self, batch: Batch) -> Loss:
        """The loss of a batch.

        One that declares its dimensions (`deixis.training.bucket_padding`) may come padded with zeros and False.
        """
        ...

    def validate(self) -> Mapping[str, float]:
        """Figures on the validation split, by name; the schedule names the one that decides.

        Called in evaluation mode and without gradients, with the averaged weights where the schedule averages. One
        call comes before the first epoch, to see that the figure is there.
        """
        ...

    def describe(self, batch: Batch) -> str:
        """Names a batch in an error: its image ids."""
        ...


class SharedTask(Task[Batch], Protocol[Batch]):
    """A task that several processes can train together."""

    def loss(self, batch: Batch, gather: Gather = compute_all) -> Loss:
        """The loss of the whole batch; what is computed row by row is computed by `gather`."""
        ...


@runtime_checkable
class KeepsFiles(Protocol):
    """A task whose model needs more than its weights (a vocabulary, fitted text features)."""

    def save(self, folder: Path) -> None:
        """Write that into the run folder; called once, with the weights that are kept, before the run is finished."""
        ...
