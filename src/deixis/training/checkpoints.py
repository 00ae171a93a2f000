"""Checkpoints: all that the rest of a run depends on, in one safetensors file that is written atomically.

The last two are kept, in case a disk damages the last one. The header has a SHA-256 of the tensors and, as JSON, the
position in the run; loading executes no code.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from deixis.errors import InputError
from deixis.files import atomic_write, require_regular

LAST, BEFORE = "last.safetensors", "before.safetensors"


class Mean(msgspec.Struct):
    """A mean that can be continued."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def value(self) -> float:
        return self.total / self.count


class Position(msgspec.Struct):
    """The position in a run: `step` steps of epoch `epoch` are done. Epochs are counted from 1."""

    epoch: int = 1
    step: int = 0
    #: Means over the epoch so far.
    loss: Mean = msgspec.field(default_factory=Mean)
    parts: dict[str, Mean] = {}
    #: The best epoch so far by the schedule's figure, and its figures.
    best_epoch: int | None = None
    best_figures: dict[str, float] = {}
    #: Training time over all starts of the run.
    seconds: float = 0.0
    #: Size of the log at this position.
    log_bytes: int = 0

    @property
    def reached(self) -> str:
        """The position in words."""
        return f"step {self.step} of epoch {self.epoch}" if self.step else f"epoch {self.epoch - 1}"


class Checkpoint(NamedTuple):
    """`damage`: why the checkpoint after it could not be used."""

    position: Position
    tensors: dict[str, Tensor]
    damage: InputError | None = None


def write_checkpoint(folder: Path, position: Position, tensors: Mapping[str, Tensor]) -> None:
    """Write the last checkpoint and keep the one before it. A kill at any moment leaves at least one complete."""
    if (folder / LAST).exists():
        os.replace(folder / LAST, folder / BEFORE)
    write_tensors(folder / LAST, tensors, {"position": msgspec.json.encode(position).decode()})


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The last checkpoint that is not damaged; None if none was written.

    A damaged one is removed once the one before it has been read, so that it never replaces that one.

    Raises:
        InputError: all checkpoints are damaged.
    """
    damage: InputError | None = None
    for path in (folder / LAST, folder / BEFORE):
        if not path.exists():
            continue
        try:
            tensors, header = read_tensors(path)
            position = msgspec.json.decode(header.get("position", ""), type=Position)
        except InputError as fault:
            damage = damage or fault
        except msgspec.DecodeError as fault:
            damage = damage or InputError(path, f"is damaged ({fault})")
        else:
            if damage is not None:
                (folder / LAST).unlink()
            return Checkpoint(position, tensors, damage)
    if damage is not None:
        raise InputError(damage.path, f"{damage.problem}, and no earlier one is intact; start a new run")
    return None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str] | None = None) -> str:
    """Write tensors and their SHA-256, which is returned. Equal tensors give equal bytes."""
    # A copy of each: safetensors refuses tensors that share memory (tied weights).
    copies = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in sorted(tensors.items())}
    digest = _sha256(copies)
    # One entry, since the order of several, and so the bytes, would be undefined.
    metadata = msgspec.json.encode({**(header or {}), "sha256": digest}).decode()
    with atomic_write(path) as stream:
        stream.write(save(copies, {"deixis": metadata}))
    return digest


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file and its header, checked against their SHA-256."""
    try:
        with safe_open(require_regular(path), "pt") as file:
            metadata = (file.metadata() or {}).get("deixis", "")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = msgspec.json.decode(metadata, type=dict[str, str])
    except (OSError, SafetensorError, msgspec.DecodeError) as fault:
        raise InputError(path, f"is damaged ({fault})") from None
    if header.get("sha256") != _sha256(tensors):
        raise InputError(path, "is damaged (its values do not match their SHA-256)")
    return tensors, header


def _sha256(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
