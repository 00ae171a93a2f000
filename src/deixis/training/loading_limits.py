"""Loading models from untrusted files: memory is limited, and any error is one line that names the folder."""

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

#: Memory that loading a model may take: a constant plus a multiple of the size of its files. 8-bit weights become
#: 32-bit and are copied once, and features may need a backbone.
FREE_BYTES, BYTES_PER_BYTE = 2 << 30, 16
#: Exceptions raised by settings and weights that do not fit together.
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
    """While a model is loaded, raise an `InputError` for settings and weights that do not fit, or a huge network."""
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) if folder.is_dir() else 0
    try:
        with _Limit(FREE_BYTES + BYTES_PER_BYTE * size):
            yield
    except _FAULTS as fault:
        message = " ".join(str(fault).split())[-200:]
        problem = f"cannot be loaded: its settings and weights do not fit ({type(fault).__name__}: {message})"
        raise InputError(folder, problem) from fault


class _Limit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses to create tensors that together are larger than the limit."""

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
