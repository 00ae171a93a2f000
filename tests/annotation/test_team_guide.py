"""The team guide: its backup on PostgreSQL restored over a damaged project, and its system service."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deixis.annotation.project import create_project
from deixis.annotation.schema import open_engine
from deixis.annotation.workbench import Workbench
from deixis.annotation.workflow_records import LINK
from tests.annotation.conftest import fresh_database
from tests.annotation.worlds import made_up_corpus

GUIDE = Path(__file__).parents[2] / "docs" / "team.md"


def command_of_guide(program: str, database: str, folder: Path) -> None:
    """Run the guide's line for a program of PostgreSQL on this database."""
    import pgserver

    (line,) = [line for line in GUIDE.read_text().splitlines() if line.startswith(f"{program} ")]
    words = shlex.split(line, comments=True)
    words[0] = str(Path(pgserver.__file__).parent / "pginstall" / "bin" / program)
    address = database.replace("postgresql+psycopg://", "postgresql://")
    subprocess.run(
        [address if word == "deixis" else word.replace("--dbname=deixis", f"--dbname={address}") for word in words],
        cwd=folder,
        check=True,
        capture_output=True,
    )


@pytest.mark.slow
def test_a_backup_of_postgresql_is_restored_over_a_damaged_project(postgresql: str, tmp_path: Path) -> None:
    where = fresh_database(postgresql)
    create_project(where, made_up_corpus(2), start="mentions")
    with Workbench(where) as bench:
        worker = bench.add_worker("w")
        view = bench.next_task(worker, LINK)
        assert view is not None
        bench.submit(worker, view.token, "same")
        command_of_guide("pg_dump", where, tmp_path)
        later = bench.next_task(worker, LINK)
        assert later is not None
        bench.submit(worker, later.token, "same")
    engine = open_engine(where)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE voided")
    engine.dispose()
    command_of_guide("pg_restore", where, tmp_path)
    with Workbench(where) as bench:
        assert bench.check() == []
        assert sum(task.judgments for task in bench.progress().tasks.values()) == 1


def test_the_system_service_is_one_that_systemd_accepts(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    block = re.search(r"```ini\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert block is not None
    (command,) = re.findall(r"ExecStart=(\S+)", block[1])
    unit = tmp_path / "deixis.service"
    # The program must exist, and systemd ends with code 0 whatever it warns of.
    unit.write_text(block[1].replace(command, sys.executable))
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=True)
    assert "deixis.service" not in verified.stdout + verified.stderr
