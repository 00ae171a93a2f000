"""Graphs run on this machine, and nothing is reported to others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from deixis.adapters.bundles import packaged_folder

OPEN = """
import sys
from pathlib import Path
from deixis.vision.onnx_sessions import open_session
open_session(Path(sys.argv[1]))
"""


def test_onnxruntime_keeps_no_events_to_send(tmp_path: Path) -> None:
    unset = {
        name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")
    }
    graph = packaged_folder() / "texts.onnx"
    subprocess.run([sys.executable, "-c", OPEN, str(graph)], check=True, env={**unset, "HOME": str(tmp_path)})
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []
