"""Runs the graphs of a bundle with onnxruntime, each opened when it is first needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from deixis.adapters.bundles import CAPTION_STEP, PHRASES, TEXTS, WEIGHTS, Bundle
from deixis.errors import InputError
from deixis.vision.onnx_sessions import open_session

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Array = NDArray[Any]
REMEDY = "write its graphs again: deixis export upgrade"
#: Graphs that read a few words, which is slower on two threads than on one.
_SHORT = (TEXTS, PHRASES, CAPTION_STEP)
#: Sessions that are kept open: all graphs, that of the backbone for a few sizes of batches.
MOST_SESSIONS = 16
#: Any size, in the shape that an output must have.
ANY = -1


class GraphRunner:
    """The graphs of one bundle. Faults of a graph are an `InputError` that names its file."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._sessions = lru_cache(MOST_SESSIONS)(self._opened)
        self._checked: set[str] = set()

    def __call__(
        self, name: str, inputs: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]], *, side: int = 0
    ) -> list[Array]:
        """The outputs of a graph.

        Args:
            shapes: of the outputs that are wanted, in their order.
            side: of the pictures that it is given, where the graph takes any.
        """
        path = self.bundle.folder / name
        try:
            batch = len(next(iter(inputs.values()))) if side else 0
            outputs: list[Array] = self._sessions(name, side, batch).run(list(shapes), dict(inputs))
        except InputError:
            raise
        except Exception as fault:  # onnxruntime raises classes of its own, without a common base.
            raise InputError(path, f"cannot be run by onnxruntime ({_brief(fault)}); {REMEDY}") from None
        for output, (output_name, shape) in zip(outputs, shapes.items(), strict=True):
            if output.ndim != len(shape) or any(
                wanted not in (size, ANY) for size, wanted in zip(output.shape, shape, strict=True)
            ):
                problem = f"gives {output_name!r} of the shape {output.shape}, and the manifest says {shape}"
                raise InputError(path, f"{problem}; {REMEDY}")
            if not np.isfinite(output).all():
                raise InputError(path, f"gives values in {output_name!r} that are no numbers; {REMEDY}")
        return outputs

    def _opened(self, name: str, side: int, batch: int) -> InferenceSession:
        for file in {name, WEIGHTS} - self._checked:
            self.bundle.file(file)
            self._checked.add(file)
        threads = 1 if name in _SHORT else _processors()
        sizes = {"height": side, "width": side, "batch": batch} if side else {}
        return open_session(self.bundle.folder / name, threads, sizes)


def _processors() -> int:
    """How many this process may use; 0 where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0


def _brief(fault: Exception) -> str:
    """What onnxruntime says, in one line of bearable length."""
    return " ".join(str(fault).split())[:200]
