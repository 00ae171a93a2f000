"""A crowd over HTTP and a server that is killed in the middle: nothing acknowledged is lost, nothing counts twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import deixis

SCRIPT = Path(deixis.__file__).parents[2] / "benchmarks" / "annotation_crowd.py"

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX"),
    pytest.mark.skipif(not SCRIPT.exists(), reason="the benchmarks are in the checkout"),
]


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_a_killed_server_keeps_every_acknowledged_answer(tmp_path: Path, database: str) -> None:
    if database == "postgresql":
        pytest.importorskip("pgserver", reason="pgserver, a PostgreSQL from PyPI, is not installed")
    out = tmp_path / "crowd.json"
    options = {"database": database, "workers": 12, "think": 0.2, "seconds": 3, "kills": 1, "up": 2, "images": 12}
    options["warm-up"] = 1
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    subprocess.run([sys.executable, SCRIPT, *words, "--out", out], check=True, capture_output=True)
    counts = json.loads(out.read_text())["counts"]
    assert counts["acknowledged"] > 30, "the crowd got nothing done"
    assert counts["sent_again"] > 0, "nobody was disturbed"
    for fault in ("lost", "changed", "twice", "tables_that_disagree_with_the_log"):
        assert counts[fault] == 0
