"""Sessions of onnxruntime on the CPU. PyTorch is not needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


def open_session(graph: bytes | Path, threads: int = 0, sizes: Mapping[str, int] | None = None) -> InferenceSession:
    """A graph ready to run.

    Args:
        threads: 0 are as many as onnxruntime likes.
        sizes: of axes that the graph leaves open, by name; a graph whose sizes are known runs faster.
    """
    # Its official builds report what they run to their maker; set before the import, this turns all of it off.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Threads that wait sleep: where other programs run too, waiting in a loop took three times the CPU time.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Errors are raised; warnings and less would only disturb.
    options.log_severity_level = 4
    for name, size in (sizes or {}).items():
        options.add_free_dimension_override_by_name(name, size)
    source = graph if isinstance(graph, bytes) else str(graph)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
