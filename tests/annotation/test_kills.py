"""Real kills: every acknowledged answer is there afterwards, once, whatever died in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import select

from deixis.annotation import schema
from deixis.annotation.project import create_project
from deixis.annotation.workbench import Workbench
from tests.annotation.conftest import fresh_database
from tests.annotation.worlds import made_up_corpus

#: A worker's process: answers at random, and writes the token of each acknowledged answer to a file of its own. An
#: answer that was cut off is sent again by the next process of the same worker, as a browser would.
WORKER = """
import os, sys
from random import Random
from deixis.annotation.workbench import StaleTask, Workbench
from deixis.corpus import Box

where, number, acknowledged, sent, seed = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
chance = Random(seed)
bench = Workbench(where)
receipts = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
last = open(sent).read().split("\\t") if os.path.exists(sent) else None
print("ready", flush=True)

def send(token, answer):
    try:
        bench.submit(number, token, answer)
    except StaleTask:
        return
    os.write(receipts, (token + "\\n").encode())

if last is not None and len(last) == 3:
    send(last[0], Box(10, 10, 90, 90) if last[1] == "drawn" else last[1])
while True:
    view = bench.next_task(number)
    if view is None:
        continue
    answer = "drawn" if view.task == "drawing" and chance.random() < 0.7 else chance.choice(view.answers)
    with open(sent, "w") as file:
        file.write(f"{view.token}\\t{answer}\\tend")
    send(view.token, Box(10, 10, 90, 90) if answer == "drawn" else answer)
"""


def storm(where: str, folder: Path, workers: int, kills: int, seconds: float) -> tuple[set[str], int]:
    """Let processes work and kill them all, again and again; gives the acknowledged tokens and how often they came."""
    chance = Random(7)
    create_project(where, made_up_corpus(30, seed=3), start="mentions")
    with Workbench(where) as bench:
        numbers = [bench.add_worker(f"w{number}") for number in range(workers)]
    for round_ in range(kills):
        crowd = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    WORKER,
                    where,
                    str(n),
                    folder / f"receipts{n}",
                    folder / f"sent{n}",
                    str(round_),
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            for n in numbers
        ]
        try:
            for process in crowd:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0.2, 1.0) * seconds)
        finally:
            for process in crowd:
                os.kill(process.pid, signal.SIGKILL)
                process.communicate()
    lines = [line for number in numbers for line in (folder / f"receipts{number}").read_text().split()]
    return set(lines), len(lines)


def assert_nothing_lost(where: str, report: set[str]) -> None:
    with Workbench(where) as bench:
        with schema.reading(bench.engine) as connection:
            log = schema.judgments
            kept = list(connection.execute(select(log.c.token)).scalars())
            rows = list(connection.execute(select(log.c.worker_id, log.c.task, log.c.image_id, log.c.key)))
        asked = [tuple(row) for row in rows]
        settled = [(row.image_id, row.key) for row in rows if row.task in ("link", "chain", "quality")]
        assert len(report) > 20, "the workers got nothing done"
        assert report <= set(kept), "an acknowledged answer is gone"
        assert len(set(kept)) == len(kept)
        assert len(set(asked)) == len(asked), "a worker's answer to one question was counted twice"
        assert len(set(settled)) == len(settled), "two workers were asked what one had to answer"
        assert bench.check() == []
        # Leases of the dead run out; nothing else is left of them.
        assert sum(task.judgments for task in bench.progress().tasks.values()) == len(kept)


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX")
def test_sqlite_keeps_every_acknowledged_answer_through_kills(tmp_path: Path) -> None:
    where = str(tmp_path / "project.db")
    report, _ = storm(where, tmp_path, workers=3, kills=2, seconds=1.5)
    assert_nothing_lost(where, report)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX")
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_ten_kills_of_a_crowd_lose_nothing(tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    where = str(tmp_path / "project.db")
    if kind == "postgresql":
        where = fresh_database(request.getfixturevalue("postgresql"))
    report, _ = storm(where, tmp_path, workers=6, kills=10, seconds=2.0)
    assert_nothing_lost(where, report)
