"""What may go wrong when a model is loaded from files of a stranger, made one line that names the folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from torch.utils._python_dispatch import TorchDispatchMode

from deixis.errors import InputError

#: What a model may take while it is loaded: so many bytes, and so many times the bytes of its files. Weights of 8 bits
#: become 32, are copied once, and features may need a backbone of their own.
FREE_BYTES, BYTES_PER_BYTE = 2 << 30, 16
#: What settings and weights that do not fit end in.
_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    RuntimeError,
    SafetensorError,
    StopIteration,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
)


@contextmanager
def loading(folder: Path) -> Iterator[None]:
    """Around the loading of a model: settings and weights that do not fit, or a network far too large, are an
    `InputError`."""
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) if folder.is_dir() else 0
    try:
        with _Limit(FREE_BYTES + BYTES_PER_BYTE * size):
            yield
    except _FAULTS as fault:
        told = " ".join(str(fault).split())[-200:]
        problem = f"cannot be loaded: its settings and weights do not fit ({type(fault).__name__}: {told})"
        raise InputError(folder, problem) from fault


class _Limit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses new tensors that together are larger than the files could ever fill."""

    def __init__(self, limit: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = limit

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _MAKERS:
            self._left -= prod(args[0]) * 4
            if self._left < 0:
                raise MemoryError(f"a tensor of the shape {tuple(args[0])} is too large for these files")
        return func(*args, **(kwargs or {}))


_aten = torch.ops.aten
_MAKERS = frozenset(
    (_aten.empty.memory_format, _aten.zeros.default, _aten.ones.default, _aten.full.default, _aten.randn.default)
)
