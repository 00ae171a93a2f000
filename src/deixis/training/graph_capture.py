"""A training step as one CUDA graph: the adaptor between a trainer's step and batches of many shapes.

A small network computes a step in less time than it takes to launch its kernels one by one. A captured step launches
forward pass, backward pass, clipping, optimizer and averaging together. Batches that declare their dimensions are
padded to few shapes (`deixis.training.bucket_padding`), and each frequent shape gets a graph. The trainer seeds torch
before every step, so a graph uses the same random numbers as an ordinary step. Batches that declare no dimensions, and
steps that cannot be captured, run as ordinary steps.
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

from deixis.training.bucket_padding import Padding, has_dimensions
from deixis.training.placing import to_device
from deixis.training.schedule import Schedule
from deixis.training.task import Loss

#: Ordinary steps before a capture, in which libraries choose kernels and optimizer and average are initialized.
WARM_UP: Final = 3
#: The shapes of a batch; each has a graph of its own.
Shapes = tuple[torch.Size | int | tuple[Any, ...] | None, ...]
#: Takes a step with a batch and a factor of the learning rate; returns the loss and the gradient's norm.
TakeStep = Callable[[Any, float | Tensor], tuple[Loss, Tensor]]


def can_capture_graphs(schedule: Schedule, device: torch.device) -> bool:
    """Whether steps of a schedule can be captured: on a GPU, without frozen groups, with these optimizers."""
    freezes = any(group.frozen_epochs for group in schedule.groups)
    return device.type == "cuda" and not freezes and schedule.optimizer in ("adam", "adamw", "rmsprop", "sgd")


class GraphedSteps:
    """Takes steps by CUDA graphs of `step`. The graphs share memory, since only one runs at a time.

    On exit the graphs are freed at once: a forked process would try to free them, and freeing one while another is
    being captured would end that capture.

    Args:
        step: takes an ordinary step.
        device: where it is taken.
        capture: False: pad batches, but take ordinary steps, for comparison.
    """

    def __init__(self, step: TakeStep, device: torch.device, *, capture: bool = True) -> None:
        self._step, self._device, self._capture = step, device, capture
        self._pad = Padding()
        self._seen: Counter[Shapes] = Counter()
        #: By shapes, the batch that a graph reads. Other batches are copied into it.
        self._inputs: dict[Shapes, Any] = {}
        self._graphs: dict[Shapes, _Graph] = {}
        self._pool: Any = None

    def __enter__(self) -> GraphedSteps:
        return self

    def __exit__(self, *fault: object) -> None:
        self._free()

    def _free(self) -> None:
        self._graphs.clear()
        self._inputs.clear()

    def __call__(self, batch: Any, factor: float | Tensor) -> tuple[Loss, Tensor]:
        if not has_dimensions(batch):
            return self._step(batch, factor)
        batch = to_device(self._pad(batch), self._device)
        shapes = shapes_of(batch)
        self._seen[shapes] += 1
        if not self._capture or self._seen[shapes] < WARM_UP:
            return self._step(batch, factor)
        if self._seen[shapes] == WARM_UP:
            # The last step before the capture already reads the graph's batch: kernels may depend on addresses.
            self._inputs[shapes] = tree_map_only(Tensor, torch.clone, batch)
            # Cloned, since values that are part of the batch would be overwritten by the next one.
            loss, norm = self._step(self._inputs[shapes], factor)
            return tree_map_only(Tensor, torch.clone, loss), norm
        if shapes not in self._graphs:
            self._capture_step(shapes)
        return self._graphs[shapes].step(batch, factor) if shapes in self._graphs else self._step(batch, factor)

    def _capture_step(self, shapes: Shapes) -> None:
        # A step computes nothing while it is captured, so the weights do not change if the capture fails.
        try:
            self._graphs[shapes] = _Graph(self._step, self._inputs[shapes], self._pool)
            self._pool = self._graphs[shapes].pool
        except RuntimeError as fault:
            # Earlier graphs use a generator that is no longer the one that is seeded.
            self._capture = False
            self._free()
            reason = str(fault).partition("\n")[0]
            warnings.warn(f"training without CUDA graphs: capturing a step failed ({reason})", stacklevel=2)


class _Graph:
    """A captured step with its batch, into which others are copied.

    Args:
        pool: memory of another graph to share.
    """

    def __init__(self, step: TakeStep, batch: Any, pool: Any) -> None:
        self._inputs = _by_dtype(batch)
        self._factor = torch.ones((), device=self._inputs[0][0].device)
        self._graph = torch.cuda.CUDAGraph()
        with _no_garbage_collection(), _restored_after_a_fault(), torch.cuda.graph(self._graph, pool=pool):
            self._loss, norm = step(batch, self._factor)
            parts = {name: value for name, value in self._loss.parts.items() if isinstance(value, Tensor)}
            self._figures = torch.stack([value.float() for value in (self._loss.total, norm, *parts.values())])
        self._parts = [*parts]
        self.pool = self._graph.pool()

    def step(self, batch: Any, factor: float | Tensor) -> tuple[Loss, Tensor]:
        for inputs, values in zip(self._inputs, _by_dtype(batch), strict=True):
            torch._foreach_copy_(inputs, values, non_blocking=True)
        self._factor.fill_(factor)
        self._graph.replay()
        # Cloned, since the next step writes to the same memory.
        total, norm, *parts = self._figures.clone()
        return Loss(total, {**self._loss.parts, **dict(zip(self._parts, parts, strict=True))}), norm


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """During a capture: freeing graphs of an earlier run would end it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _restored_after_a_fault() -> Iterator[None]:
    """A failed capture leaves PyTorch on the capture's stream, with a generator in capture mode. Restore both."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    before = generator.clone_state()
    with torch.cuda.stream(torch.cuda.current_stream()):
        try:
            yield
        except RuntimeError:
            generator.graphsafe_set_state(before)
            raise


def shapes_of(batch: Any) -> Shapes:
    """The shapes of a batch's tensors, its integers, its own kinds of tuples and its None fields: all that a step may
    branch on.
    """
    leaves = (leaf for leaf in tree_leaves(batch) if leaf is None or isinstance(leaf, Tensor | int | tuple))
    return tuple(leaf.shape if isinstance(leaf, Tensor) else leaf for leaf in leaves)


def _by_dtype(batch: Any) -> list[list[Tensor]]:
    """The tensors of a batch in groups that one kernel can copy."""
    groups: dict[torch.dtype, list[Tensor]] = {}
    for leaf in tree_leaves(batch):
        if isinstance(leaf, Tensor):
            groups.setdefault(leaf.dtype, []).append(leaf)
    return [*groups.values()]
