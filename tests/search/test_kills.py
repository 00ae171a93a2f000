"""SIGKILL at any statement or sync of an indexing run loses nothing that was reported, and the next run ends well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.search.fakes import paint_many

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes that it forks")
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("names", "step"), [("colours", 5), ("other,colours", 9)], ids=["a first index", "another encoder"]
)
def test_a_kill_at_any_point_loses_nothing_that_was_reported(names: str, step: int, tmp_path: Path) -> None:
    paint_many(tmp_path / "pictures", 18)
    command = [sys.executable, "-m", "tests.search.killing", tmp_path / "work", tmp_path / "pictures", names, str(step)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=250)
    assert done.returncode == 0, done.stderr
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(outcomes) >= 10
    assert [each for each in outcomes if not (each["kept"] and each["whole"]) or each["others"]] == []
    # Kills came before anything was reported, and after.
    assert {0, 4, 8} <= {each["reported"] for each in outcomes}
