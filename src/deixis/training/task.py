"""The interface between the trainer and what it trains: a module, batches, a loss, validation figures.

A task has its own data and settings (corpus, features, sampler, margins); the trainer (`deixis.training.trainer`)
knows none of them. Every paper has its tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from torch import Tensor, nn

Batch = TypeVar("Batch")
One = TypeVar("One", covariant=True)


class Loss(NamedTuple):
    """The scalar to minimize, and its parts by name, which are averaged and logged."""

    total: Tensor
    parts: Mapping[str, Tensor | float] = {}

    def detached(self) -> Loss:
        """The same values without their autograd graph."""
        parts = {name: value.detach() if isinstance(value, Tensor) else value for name, value in self.parts.items()}
        return Loss(self.total.detach(), parts)


class Batches(Generic[Batch]):
    """The batches of one epoch, made one by one as they are iterated over."""

    def __init__(self, count: int, batches: Iterable[Batch]) -> None:
        self._count, self._batches = count, batches

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)


class SizedBatches(Protocol[One]):
    """`Batches`, a list, a sampler: anything with a length that can be iterated over."""

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
    """Something to train. Epochs are counted from 1.

    A killed run continues in the middle of an epoch. So all that later steps depend on must follow from the seed and
    the epoch, or be a parameter or buffer of the module: nothing else is saved. The trainer seeds torch before every
    step, so dropout and other uses of torch's default generator need no care.
    """

    @property
    def module(self) -> nn.Module:
        """Everything that is trained, already on its device."""
        ...

    def batches(self, epoch: int) -> SizedBatches[Batch]:
        """The batches of an epoch, which depend on the seed and the epoch alone.

        A task that changes by epoch (two-branch networks: neighbourhood constraints in the last two of ten) puts that
        into its batches: a batch carries all that its loss depends on.
        """
        ...

    def loss(self, batch: Batch) -> Loss:
        """The loss of a batch.

        A batch that declares its dimensions (`deixis.training.bucket_padding`) may be padded with zeros and False.
        """
        ...

    def validate(self) -> Mapping[str, float]:
        """Figures on the validation split, by name. The schedule names the one that selects the best epoch.

        Called in evaluation mode and without gradients, with the averaged weights if the schedule averages. Also
        called once before the first epoch, to check that the schedule's figure exists.
        """
        ...

    def describe(self, batch: Batch) -> str:
        """Describes a batch in an error message: its image ids."""
        ...


class SharedTask(Task[Batch], Protocol[Batch]):
    """A task that several processes can train together."""

    def loss(self, batch: Batch, gather: Gather = compute_all) -> Loss:
        """The loss of the whole batch; `gather` computes all that depends on single rows."""
        ...


@runtime_checkable
class KeepsFiles(Protocol):
    """A task whose model needs more than its weights (a vocabulary, fitted text features)."""

    def save(self, folder: Path) -> None:
        """Write it into the run folder. Called once, with the final weights, before the run is marked as finished."""
        ...
