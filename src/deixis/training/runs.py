"""A run folder: everything that a training writes, and what it needs to continue after a kill.

    recipe.toml         the recipe as it was given
    run.json            what determines the outcome: the recipe with every setting, hashes of corpus and features
    environment.json    for each start: command, device, versions, position in the run
    log.jsonl           one line per step and per epoch
    checkpoints/        while the run is not finished
    model.safetensors   the weights of the best epoch, float32
    README.md           the model card
    curves.png          loss and validation figures
    model.json          written last: a run that has it is finished

One process writes at a time. A folder with a run of another recipe is refused; a finished run is left as it is.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from deixis.errors import DeixisError, InputError
from deixis.files import LOCK, atomic_write, hold_folder, open_regular, read_json, write_text
from deixis.metrics.former_names import with_current_names
from deixis.metrics.results import command_line, flatten, versions
from deixis.training.checkpoints import (
    Checkpoint,
    Position,
    read_checkpoint,
    read_tensors,
    write_checkpoint,
    write_tensors,
)
from deixis.training.run_card import draw_curves, model_card
from deixis.training.run_records import ModelRecord, Note, Record, RunPlan, Start, TrainingReport, batch_means

RECIPE, PLAN, ENVIRONMENT, LOG, CHECKPOINTS = "recipe.toml", "run.json", "environment.json", "log.jsonl", "checkpoints"
WEIGHTS, CARD, CURVES, MODEL = "model.safetensors", "README.md", "curves.png", "model.json"


class RunFolder:
    """Writes a run, as a context manager that holds a lock. The lock is released if the process dies.

    If several processes train one model, only the first has a `RunFolder`.

    Args:
        folder: created if it does not exist.
        plan: what is trained. A folder with another plan is refused.
        recipe: the text of the recipe as it was given.
        published_batch: the paper's mean counts of a batch, for the model card; None: batches are not counted.

    Raises:
        InputError: the folder contains another run, or other files.
        DeixisError: another process is writing to it.
    """

    def __init__(
        self,
        folder: str | Path,
        plan: RunPlan,
        recipe: str = "",
        published_batch: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.plan, self._recipe = Path(folder), plan, recipe
        self._published_batch = published_batch
        self._log: IO[bytes] | None = None

    def __enter__(self) -> RunFolder:
        self._refuse_other_files()
        self._lock = hold_folder(self.folder, "run")
        try:
            with self._faults():
                self._begin()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._log is not None:
            self._log.close()
        if fault is not None:
            self._remove_if_empty()
        self._lock.release()

    def _remove_if_empty(self) -> None:
        """Remove the folder of a start that failed before the first step, so that it can be used for another recipe."""
        log, written = self.folder / LOG, {self.folder / name for name in (RECIPE, ENVIRONMENT, LOG, LOCK, PLAN)}
        if set(self.folder.iterdir()) - written or (log.exists() and log.stat().st_size):
            return
        for path in written:
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def _refuse_other_files(self) -> None:
        """Refuse a folder with other files: before the plan is written, a run has only the recipe and the lock."""
        if not self.folder.exists() or (self.folder / PLAN).exists():
            return
        before_plan = {self.folder / LOCK, self.folder / RECIPE, *self.folder.glob(".*.part")}
        if not self.folder.is_dir() or set(self.folder.iterdir()) - before_plan:
            raise InputError(self.folder, "already exists and is not a run; choose another folder")

    def _begin(self) -> None:
        for leftover in (*self.folder.glob(".*.part"), *self.folder.glob(f"{CHECKPOINTS}/.*.part")):
            leftover.unlink()
        if (self.folder / PLAN).exists():
            _check_same(self.folder, read_plan(self.folder), self.plan)
            return
        write_text(self.folder / RECIPE, self._recipe)
        _write_json(self.folder / PLAN, self.plan)

    @property
    def finished(self) -> bool:
        return is_finished(self.folder)

    def resume(self, device: torch.device) -> Checkpoint | None:
        """The checkpoint to continue from, or None; the log is cut to its state at that time."""
        checkpoint = read_checkpoint(self.folder / CHECKPOINTS)
        position = checkpoint.position if checkpoint else Position()
        with self._faults():
            self._log = (self.folder / LOG).open("ab")
            self._log.truncate(min(position.log_bytes, self._log.tell()))
            self._log.seek(0, os.SEEK_END)
            starts = read_starts(self.folder) if (self.folder / ENVIRONMENT).exists() else []
            _write_json(self.folder / ENVIRONMENT, [*starts, _start(device, position)])
        if checkpoint is not None and checkpoint.damage is not None:
            self.log(Note(f"{checkpoint.damage}; the run continues from the checkpoint before it"))
        return checkpoint

    def log(self, record: Record) -> None:
        assert self._log is not None, "resume() opens the log"
        with self._faults():
            self._log.write(msgspec.json.encode(record) + b"\n")
            self._log.flush()

    def checkpoint(self, position: Position, tensors: Mapping[str, Tensor]) -> None:
        """Save all that the rest of the run depends on."""
        assert self._log is not None, "resume() opens the log"
        with self._faults():
            os.fsync(self._log.fileno())
            position.log_bytes = self._log.tell()
            write_checkpoint(self.folder / CHECKPOINTS, position, tensors)

    def finish(self, weights: Mapping[str, Tensor], report: TrainingReport) -> None:
        """Write the weights, the card and the curves, and mark the run as finished."""
        float_weights = {name: value.float() if value.is_floating_point() else value for name, value in weights.items()}
        with self._faults():
            digest = write_tensors(self.folder / WEIGHTS, float_weights)
            write_text(self.folder / CARD, self._card(report))
            if report.epochs:
                try:
                    write_curves(self.folder)
                except DeixisError as fault:
                    self.log(Note(str(fault)))
            recipe = self.plan.recipe
            _write_json(self.folder / MODEL, ModelRecord(recipe["name"], recipe["kind"], report, digest))
        # No longer needed, and several times as large as the weights.
        shutil.rmtree(self.folder / CHECKPOINTS, ignore_errors=True)

    def _card(self, report: TrainingReport) -> str:
        try:
            batches = {} if self._published_batch is None else batch_means(read_log(self.folder))
        except InputError:
            batches = {}  # The log is damaged; the note of the curves says so.
        return model_card(self.plan, report, read_starts(self.folder), batches, self._published_batch or {})

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Turn errors of the system (no space, no permission) into one line."""
        try:
            yield
        except OSError as fault:
            problem = f"cannot be written ({fault.strerror or fault}); earlier checkpoints are intact"
            raise DeixisError(f"{self.folder}: {problem}") from None


def read_plan(folder: str | Path) -> RunPlan:
    """The plan of a run folder. Raises `InputError` if the folder is not a run."""
    path = Path(folder) / PLAN
    if not path.exists():
        raise InputError(folder, f"is not a run (it has no {PLAN})")
    plan = read_json(path, RunPlan)
    try:
        return msgspec.structs.replace(plan, recipe=with_current_names(plan.recipe))
    except RecursionError:
        raise InputError(path, "is damaged (its recipe is nested too deeply)") from None


def is_finished(folder: str | Path) -> bool:
    return (Path(folder) / MODEL).exists()


def read_model(folder: str | Path) -> ModelRecord:
    """The outcome of a finished run."""
    read_plan(folder)
    if not is_finished(folder):
        raise InputError(folder, "is not finished; run the same `deixis train` again to continue it")
    return read_json(Path(folder) / MODEL, ModelRecord)


def read_weights(folder: str | Path) -> dict[str, Tensor]:
    """The weights of a finished run, checked against the SHA-256 in its `model.json`."""
    tensors, header = read_tensors(Path(folder) / WEIGHTS)
    if header["sha256"] != read_model(folder).weights_sha256:
        raise InputError(Path(folder) / WEIGHTS, f"does not match the SHA-256 in {MODEL}")
    return tensors


def read_starts(folder: str | Path) -> list[Start]:
    """All starts of a run."""
    return read_json(Path(folder) / ENVIRONMENT, list[Start])


def read_log(folder: str | Path) -> list[Record]:
    """The log so far, without a last line that is not complete."""
    path = Path(folder) / LOG
    decoder = msgspec.json.Decoder(Record)
    records: list[Record] = []
    if not path.exists():
        return records
    with open_regular(path) as stream:
        for line_number, line in enumerate(stream, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                records.append(decoder.decode(line))
            except (msgspec.DecodeError, ValueError, RecursionError) as fault:
                raise InputError(path, f"is damaged ({fault})", f"line {line_number}") from None
    return records


def write_curves(folder: str | Path) -> Path:
    """Draw the log to `curves.png`. Without matplotlib, a `DeixisError` says what to install."""
    path = Path(folder) / CURVES
    picture = draw_curves(read_log(folder), read_plan(folder).recipe)
    with atomic_write(path) as stream:
        stream.write(picture)
    return path


def refuse_another(folder: str | Path, asked: RunPlan) -> None:
    """Raise an `InputError` if a folder has a run of another recipe or corpus; features are not compared yet."""
    if (Path(folder) / PLAN).exists():
        existing = read_plan(folder)
        _check_same(Path(folder), msgspec.structs.replace(existing, features=asked.features), asked)


def _check_same(folder: Path, existing: RunPlan, asked: RunPlan) -> None:
    before, now = dict(flatten(existing.identity)), dict(flatten(asked.identity))
    different = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if different:
        name = different[0]
        first = f"{name} is {before.get(name)!r} there and {now.get(name)!r} here"
        more = f", and {len(different) - 1} more" if len(different) > 1 else ""
        raise InputError(folder, f"has a run of another recipe ({first}{more}); choose another folder")


def _start(device: torch.device, position: Position) -> Start:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return Start(
        started=datetime.now(UTC).replace(microsecond=0),
        command=command_line(sys.argv[1:]),
        device=f"{device.type}: {name}",
        threads=torch.get_num_threads(),
        versions=versions(),
        epoch=position.epoch,
        step=position.step,
        processes=dist.get_world_size() if dist.is_initialized() else 1,
    )


def _write_json(path: Path, value: Any) -> None:
    with atomic_write(path) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
