"""Sessions of onnxruntime on the CPU. PyTorch is not needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


def open_session(graph: bytes | Path, threads: int = 0) -> InferenceSession:
    """A graph ready to run; `threads` 0 are as many as onnxruntime likes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Errors are raised; warnings and less would only disturb.
    options.log_severity_level = 3
    source = graph if isinstance(graph, bytes) else str(graph)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
