"""A training step as one CUDA graph, where batches differ in nothing but the numbers in their tensors.

A step of a small network keeps a GPU busy for less time than it takes to launch its kernels one by one. Recorded once,
forward, backward, clipping, optimizer and averaging are launched together. Steps seed torch as before, so that a graph
draws what the step that it was recorded from would draw. A batch of another size (the last of an epoch, or texts of
another length) is stepped as ever until it has come up often enough for a graph of its own. Where recording fails,
steps are taken as ever, too.
"""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from deixis.training.bucket_padding import pays
from deixis.training.schedule import Schedule
from deixis.training.task import Loss, OfOneForm, Task

#: Steps before a graph is recorded: libraries choose their kernels, and optimizer and average begin.
WARM_UP: Final = 3
#: What batches of one graph have in common.
Form = tuple[torch.Size | int | None, ...]
#: Of a batch and the factor of the learning rate: the figures of the step that it takes, and the gradient's norm.
TakeStep = Callable[[Any, float | Tensor], tuple[Loss, Tensor]]


def can_be_recorded(task: Task[Any], schedule: Schedule, device: torch.device) -> bool:
    """Whether all that a step depends on stays where it is."""
    return pays(schedule, device) and isinstance(task, OfOneForm) and task.one_form


class Graphed:
    """Takes steps like `step`, by graphs of it, which share their memory: no two are at work at once.

    Once it is left they are gone, and do not wait to be collected: a process that is forked would try to free them, and
    where another step is recorded meanwhile, to free one ends that.
    """

    def __init__(self, step: TakeStep) -> None:
        self._step = step
        self._seen: Counter[Form] = Counter()
        #: Batches of their own, into which others are copied.
        self._places: dict[Form, Any] = {}
        self._graphs: dict[Form, _Graph] = {}
        self._pool: Any = None
        self._failed = False

    def __enter__(self) -> Graphed:
        return self

    def __exit__(self, *fault: object) -> None:
        self._forget()

    def _forget(self) -> None:
        self._graphs.clear()
        self._places.clear()

    def __call__(self, batch: Any, factor: float | Tensor) -> tuple[Loss, Tensor]:
        form = form_of(batch)
        self._seen[form] += 1
        if self._failed or self._seen[form] < WARM_UP:
            return self._step(batch, factor)
        if self._seen[form] == WARM_UP:
            # The last step before it is recorded is taken in its place: kernels may be compiled for where tensors lie.
            self._places[form] = tree_map_only(Tensor, torch.clone, batch)
            # Figures that are the batch's own would become those of the next.
            loss, norm = self._step(self._places[form], factor)
            return tree_map_only(Tensor, torch.clone, loss), norm
        if form not in self._graphs:
            self._record(form)
        return self._graphs[form].step(batch, factor) if form in self._graphs else self._step(batch, factor)

    def _record(self, form: Form) -> None:
        # While it is recorded, a step computes nothing: after a fault the weights are as before.
        try:
            self._graphs[form] = _Graph(self._step, self._places[form], self._pool)
            self._pool = self._graphs[form].pool
        except RuntimeError as fault:
            # Older graphs draw from a generator that is no longer the one that is seeded.
            self._failed = True
            self._forget()
            reason = str(fault).partition("\n")[0]
            warnings.warn(f"steps are taken kernel by kernel: recording a CUDA graph failed ({reason})", stacklevel=2)


class _Graph:
    """A step that was recorded with a batch of its own, into which others are copied.

    Args:
        pool: of a graph to share memory with.
    """

    def __init__(self, step: TakeStep, batch: Any, pool: Any) -> None:
        self._batch = batch
        self._factor = torch.ones((), device=_tensors(batch)[0].device)
        self._graph = torch.cuda.CUDAGraph()
        with _nothing_collected(), _undone_by_a_fault(), torch.cuda.graph(self._graph, pool=pool):
            self._loss, norm = step(self._batch, self._factor)
            parts = {name: value for name, value in self._loss.parts.items() if isinstance(value, Tensor)}
            self._figures = torch.stack([value.float() for value in (self._loss.total, norm, *parts.values())])
        self._parts = [*parts]
        self.pool = self._graph.pool()

    def step(self, batch: Any, factor: float | Tensor) -> tuple[Loss, Tensor]:
        for place, value in zip(_tensors(self._batch), _tensors(batch), strict=True):
            place.copy_(value)
        self._factor.fill_(factor)
        self._graph.replay()
        # The next step writes to the same place, and those of other graphs may.
        total, norm, *parts = self._figures.clone()
        return Loss(total, {**self._loss.parts, **dict(zip(self._parts, parts, strict=True))}), norm


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Graphs of a run before, freed while another is recorded, would end the recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _undone_by_a_fault() -> Iterator[None]:
    """A recording that fails leaves PyTorch on its stream, with a generator that waits for its end."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    before = generator.clone_state()
    with torch.cuda.stream(torch.cuda.current_stream()):
        try:
            yield
        except RuntimeError:
            generator.graphsafe_set_state(before)
            raise


def form_of(batch: Any) -> Form:
    """The shapes of a batch's tensors, its whole numbers and what it lacks, which a step may have branched by."""
    leaves = (leaf for leaf in tree_leaves(batch) if leaf is None or isinstance(leaf, Tensor | int))
    return tuple(leaf.shape if isinstance(leaf, Tensor) else leaf for leaf in leaves)


def _tensors(batch: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
