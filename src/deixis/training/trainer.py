"""The trainer of every model: epochs of steps, validation, checkpoints.

A step depends on nothing but the weights, the optimizer's state, and (seed, epoch, step): batches depend on the task's
seed and the epoch, and torch's generators are seeded before each step. So a run that was killed and continued ends, on
the CPU, with the same weights, bit for bit. Optimizer steps are in `deixis.training.optimization`, files in
`deixis.training.runs`.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from typing import Any, Final, NamedTuple, cast

import msgspec
import torch
from torch import Tensor

from deixis.errors import DeixisError, InputError
from deixis.training.checkpoints import Mean, Position
from deixis.training.distributed import ALONE, FollowingRun, Ranks, shared_loss
from deixis.training.graph_capture import GraphedSteps, TakeStep, can_capture_graphs
from deixis.training.optimization import Learner
from deixis.training.run_records import EpochRecord, StepRecord, TrainingReport
from deixis.training.runs import RunFolder, read_model
from deixis.training.schedule import Schedule
from deixis.training.task import KeepsFiles, Loss, SharedTask, Task

#: Steps between reads of the losses. Reading waits for the GPU, which should always have work queued.
READ_EVERY: Final = {"cpu": 1, "cuda": 25}
#: A checkpoint at the end of an epoch is skipped until this many times the time to write one has passed.
CHECKPOINT_SHARE: Final = 10


class Progress(NamedTuple):
    """Where a run is; `epoch_record` is set at the end of an epoch."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    epoch_record: EpochRecord | None = None


class _Step(NamedTuple):
    """A finished step, with its figures still on the device."""

    number: int
    loss: Loss
    gradient_norm: Tensor
    learning_rate: float


def train(
    task: Task[Any],
    schedule: Schedule,
    run: RunFolder | FollowingRun,
    *,
    seed: int,
    device: torch.device,
    ranks: Ranks = ALONE,
    progress: Callable[[Progress], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
    checkpoint_minutes: float = 5.0,
    checkpoint_steps: int | None = None,
    graphs: bool = True,
) -> TrainingReport:
    """Train a task into a run folder, from the start or from the last checkpoint.

    Args:
        task: what to learn; its module is on `device`.
        run: entered. A finished run is left as it is.
        seed: seed of random numbers within a step (dropout); batches depend on the task's own seed.
        ranks: the processes that train it together.
        progress: called after each read of the losses, and at the end of every epoch.
        say: called with a line that says where a run continues.
        checkpoint_minutes: time between two checkpoints within an epoch.
        checkpoint_steps: also write a checkpoint after this many steps.
        graphs: on a GPU, and in one process, capture steps as CUDA graphs (`deixis.training.graph_capture`).

    Raises:
        DeixisError: the loss or its gradient became NaN or infinite. The message names the epoch, step and batch;
            checkpoints are from before that.
    """
    if run.finished:
        return read_model(run.folder).report
    with torch.random.fork_rng([device] if device.type == "cuda" else []), _gpu_settings(device), ExitStack() as stack:
        saving = _Saving(60 * checkpoint_minutes, checkpoint_steps)
        training = _Training(task, schedule, run, seed, device, ranks, progress or (lambda _: None), saving)
        if not ranks.together and can_capture_graphs(schedule, device):
            training.step = stack.enter_context(GraphedSteps(training.step, device, capture=graphs))
        if training.resume():
            say(f"continuing after {training.position.reached}")
        while not training.is_over:
            training.run_epoch()
        return training.finish()


@contextmanager
def _gpu_settings(device: torch.device) -> Iterator[None]:
    """On a GPU: matrix products in TF32, several times faster and precise enough for training.

    cuDNN's attention is turned off: its gradients can be NaN while the loss is finite (pytorch/pytorch#196678).
    """
    precision = torch.get_float32_matmul_precision()
    cudnn_attention = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cuda.enable_cudnn_sdp(cudnn_attention)


class _Saving:
    """When the next checkpoint is due."""

    def __init__(self, seconds: float, steps: int | None) -> None:
        self._seconds, self._steps = seconds, steps
        self._last, self._took, self._steps_since = time.monotonic(), 0.0, 0

    def after_step(self) -> bool:
        self._steps_since += 1
        return time.monotonic() - self._last >= self._seconds or self._steps_since == self._steps

    def after_epoch(self) -> bool:
        return time.monotonic() - self._last >= CHECKPOINT_SHARE * self._took

    @contextmanager
    def writing(self) -> Iterator[None]:
        start = time.monotonic()
        yield
        self._last = time.monotonic()
        self._took, self._steps_since = self._last - start, 0


def _read(steps: Sequence[_Step]) -> list[list[float]]:
    """Loss, gradient norm and parts of each step, in one copy per dtype: a copy waits for all work on a shared GPU."""
    figures = [[step.loss.total, step.gradient_norm, *step.loss.parts.values()] for step in steps]
    together: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for value in chain.from_iterable(figures):
        if isinstance(value, Tensor):
            together.setdefault((value.device, value.dtype), []).append(value.detach())
    read = {kind: iter(torch.stack(values).tolist()) for kind, values in together.items()}
    return [
        [float(next(read[value.device, value.dtype]) if isinstance(value, Tensor) else value) for value in step_figures]
        for step_figures in figures
    ]


class _Training:
    """A run in progress."""

    def __init__(
        self,
        task: Task[Any],
        schedule: Schedule,
        run: RunFolder | FollowingRun,
        seed: int,
        device: torch.device,
        ranks: Ranks,
        progress: Callable[[Progress], None],
        saving: _Saving,
    ) -> None:
        self.task, self.schedule, self.run = task, schedule, run
        self.seed, self.device, self.progress, self.saving = seed, device, progress, saving
        self.ranks = ranks
        self.loss_of = shared_loss(cast(SharedTask[Any], task), ranks) if ranks.together else task.loss
        self.learner = Learner(task.module, schedule)
        self.step: TakeStep = self._step
        self.position = Position()
        #: The weights of the best epoch so far.
        self.best_weights: dict[str, Tensor] = {}
        #: Steps whose losses have not been read yet.
        self.unread: list[_Step] = []
        self.read_every = READ_EVERY[device.type]
        self.started = time.monotonic()

    def resume(self) -> bool:
        """Restore the last checkpoint; returns whether there is one."""
        checkpoint = self.ranks.broadcast_checkpoint(self.run.resume(self.device))
        if checkpoint is None:
            if self.schedule.figure is not None:
                # So that an unknown figure is reported now, not after the first epoch.
                self._figures()
            return False
        self.position = checkpoint.position
        self.started -= self.position.seconds
        best = {name: value for name, value in checkpoint.tensors.items() if name.startswith("kept/")}
        self.best_weights = {name.removeprefix("kept/"): value.to(self.device) for name, value in best.items()}
        try:
            self.learner.restore(checkpoint.tensors)
        except (KeyError, RuntimeError) as fault:
            problem = f"its checkpoint does not fit the model ({str(fault).splitlines()[0]}); start a new run"
            raise InputError(self.run.folder, problem) from None
        return True

    @property
    def is_over(self) -> bool:
        return self.position.epoch > self.schedule.epochs or self.stops_early

    @property
    def stops_early(self) -> bool:
        """Whether the schedule's figure has not improved for `patience` epochs."""
        best, patience = self.position.best_epoch, self.schedule.patience
        return best is not None and patience is not None and self.position.epoch - 1 - best >= patience

    def run_epoch(self) -> None:
        """The rest of the current epoch, its validation and its checkpoint."""
        position = self.position
        batches = self.task.batches(position.epoch)
        steps = len(batches)
        if not steps:
            raise DeixisError(f"epoch {position.epoch} has no batches: there is nothing to train on")
        self.learner.begin_epoch(position.epoch)
        for batch in islice(batches, position.step, None):
            self._take_step(batch, steps)
            if self.saving.after_step():
                self._read_losses(steps)
                self._checkpoint()
        self._read_losses(steps)
        record = self._end_epoch()
        self.run.log(record)
        self.progress(Progress(record.epoch, self.schedule.epochs, record.steps, steps, record.loss, record))
        position.epoch, position.step, position.loss, position.parts = position.epoch + 1, 0, Mean(), {}
        if self.saving.after_epoch():
            self._checkpoint()

    def _take_step(self, batch: Any, steps: int) -> None:
        position = self.position
        position.step += 1
        self._seed_torch(f"step {position.epoch} {position.step}")
        factor = self.schedule.rate_factor(position.epoch, position.step, steps)
        loss, norm = self.step(batch, factor)
        self.unread.append(_Step(position.step, loss, norm, self.schedule.learning_rate * factor))
        if len(self.unread) >= self.read_every:
            self._read_losses(steps)

    def _step(self, batch: Any, factor: float | Tensor) -> tuple[Loss, Tensor]:
        """One optimizer step; the loss and the gradient's norm stay on the device."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._autocast):
            loss = self.loss_of(batch)
        norm = self.learner.step(loss.total, factor)
        return loss.detached(), norm

    @property
    def _autocast(self) -> bool:
        precision = self.schedule.precision
        return precision == "bfloat16" or (precision == "mixed" and self.device.type == "cuda")

    def _seed_torch(self, moment: str) -> None:
        """Make torch's next random numbers depend on the seed and the moment alone."""
        seed = int.from_bytes(hashlib.sha256(f"{self.seed} {moment}".encode()).digest()[:8], "big") >> 1
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _read_losses(self, steps: int) -> None:
        """Log the steps since the last read. A loss that is NaN or infinite ends the run before anything is saved."""
        position = self.position
        for step, (total, norm, *values) in zip(self.unread, _read(self.unread), strict=True):
            for name, value in (("loss", total), ("gradient", norm)):
                if not math.isfinite(value):
                    raise DeixisError(self._diagnosis(step.number, name, value))
            parts = dict(zip(step.loss.parts, values, strict=True))
            position.loss.add(total)
            for name, value in parts.items():
                if math.isfinite(value):
                    position.parts.setdefault(name, Mean()).add(value)
            self.run.log(StepRecord(position.epoch, step.number, total, norm, step.learning_rate, dict(parts)))
            self.progress(Progress(position.epoch, self.schedule.epochs, step.number, steps, total))
        self.unread.clear()

    def _diagnosis(self, step: int, name: str, value: float) -> str:
        # Made again, since keeping every batch until the losses are read would fill the GPU.
        epoch = self.position.epoch
        batch = self.task.describe(next(islice(self.task.batches(epoch), step - 1, None)))
        return (
            f"the {name} became {value} in epoch {epoch}, step {step}, batch: {batch}; "
            f"checkpoints from before that are in {self.run.folder}"
        )

    def _end_epoch(self) -> EpochRecord:
        """Validate if the schedule says so, and keep the weights if they are the best so far."""
        position, schedule = self.position, self.schedule
        name, previous = schedule.figure, position.best_figures
        figures = self._figures() if schedule.validates(position.epoch) else None
        best = False
        if figures is not None:
            if name is not None and not math.isfinite(figures[name]):
                raise DeixisError(f"the validation figure {name} is {figures[name]} after epoch {position.epoch}")
            figures = {name: value for name, value in figures.items() if math.isfinite(value)}
            better = name is None or not previous or schedule.is_better(figures[name], previous[name])
            best = better and position.epoch >= schedule.first_kept
            if best:
                position.best_epoch, position.best_figures = position.epoch, figures
                self.best_weights = self.learner.weights()
        return EpochRecord(
            epoch=position.epoch,
            steps=position.step,
            loss=position.loss.value,
            parts={name: mean.value for name, mean in position.parts.items()},
            figures=figures,
            best=best,
            seconds=round(self._seconds(), 3),
        )

    def _figures(self) -> dict[str, float]:
        """Validation figures of the current weights, including the schedule's."""
        self._seed_torch(f"validation {self.position.epoch}")
        figures: dict[str, float] = {}
        if self.ranks.first:
            with self.learner.evaluating():
                figures = {name: float(value) for name, value in self.task.validate().items()}
        if self.ranks.together:
            # As hexadecimal text, since JSON has no NaN.
            sent = self.ranks.broadcast(msgspec.json.encode({name: value.hex() for name, value in figures.items()}))
            figures = {
                name: float.fromhex(value) for name, value in msgspec.json.decode(sent, type=dict[str, str]).items()
            }
        name = self.schedule.figure
        if name is not None and name not in figures:
            known = ", ".join(figures) or "none"
            raise DeixisError(f"schedule.figure: the validation has no figure {name!r}; it has: {known}")
        return figures

    def _checkpoint(self) -> None:
        self.position.seconds = self._seconds()
        best = {f"kept/{name}": value for name, value in self.best_weights.items()}
        with self.saving.writing():
            self.run.checkpoint(self.position, {**self.learner.tensors(), **best})

    def _seconds(self) -> float:
        return time.monotonic() - self.started

    def finish(self) -> TrainingReport:
        position = self.position
        assert position.best_epoch is not None, "the last epoch is always validated"
        report = TrainingReport(
            epoch=position.best_epoch,
            epochs=position.epoch - 1,
            figures=position.best_figures,
            stopped_early=position.epoch <= self.schedule.epochs,
            seconds=round(self._seconds(), 3),
            parameters=sum(value.numel() for value in self.task.module.parameters()),
        )
        self.task.module.load_state_dict(self.best_weights)
        if self.ranks.first and isinstance(self.task, KeepsFiles):
            self.task.save(self.run.folder)
        self.run.finish(self.best_weights, report)
        return report
