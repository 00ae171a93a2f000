"""SIGKILL at any statement or sync of an indexing run loses nothing that was reported, and the next run ends well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.search.fakes import paint_many
from tests.search.test_vector_index import milvus_server

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes that it forks")
needs_server = pytest.mark.skipif(not milvus_server(), reason="no Milvus server: DEIXIS_TEST_MILVUS names none")
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("names", "step", "store"),
    [
        ("colours", 8, "exact"),
        ("other,colours", 23, "approximate"),
        # Each store with each way to change models; the two above have every store and every way once.
        pytest.param("other,colours", 13, "exact", marks=pytest.mark.slow),
        pytest.param("colours", 13, "approximate", marks=pytest.mark.slow),
        # Starting milvus-lite and opening a server's collection take seconds each time.
        pytest.param("colours", 19, ".db", marks=pytest.mark.slow),
        pytest.param("other,colours", 29, ".db", marks=pytest.mark.slow),
        pytest.param("colours", 17, milvus_server(), marks=[pytest.mark.slow, needs_server]),
    ],
    ids=lambda value: None if isinstance(value, int) else value,
)
def test_a_kill_at_any_point_loses_nothing_that_was_reported(names: str, step: int, store: str, tmp_path: Path) -> None:
    if store == ".db":
        pytest.importorskip("pymilvus")
    paint_many(tmp_path / "pictures", 18)
    work, pictures = tmp_path / "work", tmp_path / "pictures"
    command = [sys.executable, "-m", "tests.search.killing", work, pictures, names, str(step), store]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=280)
    assert done.returncode == 0, done.stderr
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(outcomes) >= 6
    assert [each for each in outcomes if not (each["kept"] and each["whole"]) or each["others"]] == []
    # Kills came before anything was reported, and after.
    reported = {each["reported"] for each in outcomes}
    assert 0 in reported
    assert len(reported) > 2
