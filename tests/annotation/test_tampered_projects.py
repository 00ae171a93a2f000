"""Whatever happened to a project's file, a command answers or says in one line what is wrong; it never hangs."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, make_url
from sqlalchemy.exc import DBAPIError

from deixis.annotation.project import create_project
from deixis.annotation.workbench import Workbench
from deixis.annotation.workflow_records import Settings
from deixis.corpus import Box
from tests.annotation.conftest import fresh_database
from tests.annotation.worlds import made_up_corpus
from tests.tampering import run_command, tamper

pytestmark = pytest.mark.skipif(os.name != "posix", reason="makes pipes")
ANSWERS = {"link": "same", "chain": "same", "requirement": "box", "quality": "good", "coverage": "all"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three images, two workers, known questions, a hundred answers, a suspension and an invitation."""
    folder = tmp_path_factory.mktemp("tampered")
    build(folder / "project.db")
    return folder


def build(where: str | Path) -> None:
    settings = Settings(test_questions=2, test_attempts=1, first_items=2)
    known = made_up_corpus(60, seed=99, first=1000)
    create_project(where, made_up_corpus(3), start="boxes", known=known, settings=settings, durable=False)
    with Workbench(where, chance=random.Random(0), durable=False) as bench:
        workers = [bench.add_worker(name, role) for name, role in (("ann", "worker"), ("bob", "administrator"))]
        for number in range(100):
            view = bench.next_task(workers[number % 2])
            if view is not None:
                answer = ANSWERS.get(view.task, Box(10, 10, 60, 60))
                bench.submit(workers[number % 2], view.token, answer, comment="odd" if number == 9 else "")
        bench.suspend(workers[0], "drawing", "test")


def check(seed: int, project: Path, work: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, int]:
    chance = random.Random(seed)
    folder = work / f"project-{seed}"
    shutil.copytree(project, folder)
    done = [tamper(folder, chance, "project.db", often=4) for _ in range(chance.choice((1, 1, 2)))]
    file = folder / "project.db"
    commands: list[list[object]] = [
        ["status", file],
        ["workers", file],
        ["review", file],
        ["check", file],
        ["stats", file],
        ["export", file, folder / "out"],
        ["invite", file],
        ["suspend", file, "bob", "quality"],
        ["reinstate", file, "ann", "drawing"],
    ]
    command = chance.choice(commands)
    story = f"seed {seed}: {', '.join(done)}; {command[0]}"
    try:
        run = run_command(["annotate", *command], capsys)
    except BaseException as fault:
        raise AssertionError(f"{story}: {type(fault).__name__}: {fault}") from fault
    assert run.code in ((0, 1, 2) if command[0] == "check" else (0, 2)), (story, run)
    if run.code == 2:
        assert run.err.startswith("deixis: "), (story, run)
        assert run.err.count("\n") == 1, (story, run)
        # Of a worker who is gone, the command says just that.
        assert str(folder) in run.err or "no worker" in run.err, (story, run)
    elif run.code == 1:
        assert run.out, story
    shutil.rmtree(folder, ignore_errors=True)
    return str(command[0]), run.code


@pytest.mark.timeout(240)
def test_a_tampered_project_never_tears_or_hangs_a_command(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = [check(seed, project, tmp_path, capsys) for seed in range(25)]
    assert {0, 2} <= {code for _, code in outcomes}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_more_tampered_projects(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(25, 1200):
        check(seed, project, tmp_path, capsys)


def damages(table: str, column: str, kind: str) -> list[str]:
    """Ways to damage a column of a PostgreSQL database, as statements."""
    text = kind in ("text", "character varying")
    broken = {"bytea": "'\\x5bff'", "boolean": "true", "double precision": "'NaN'"}.get(kind, "'[[['" if text else "-1")
    return [
        f"DROP TABLE {table} CASCADE",
        f"ALTER TABLE {table} DROP COLUMN {column} CASCADE",
        f"ALTER TABLE {table} RENAME COLUMN {column} TO other",
        f"UPDATE {table} SET {column} = {broken}",
        f"UPDATE {table} SET {column} = {'repeat(chr(57), 100000)' if text else broken}",
        f"ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL; UPDATE {table} SET {column} = NULL",
        f"DELETE FROM {table} WHERE random() < 0.5",
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_tampered_project_on_postgresql_never_tears_a_command(
    postgresql: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = fresh_database(postgresql)
    build(where)
    seed = make_url(where).database
    with closing_engine(where) as connection:
        columns = connection.exec_driver_sql(
            "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'public'"
        ).all()
    chance, codes = random.Random(0), set()
    for number in range(60):
        copy = f"{seed}_{number}"
        with closing_engine(postgresql) as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {copy} TEMPLATE {seed}")
        damaged = make_url(where).set(database=copy).render_as_string(hide_password=False)
        statement = chance.choice(damages(*chance.choice(columns)))
        with closing_engine(damaged) as connection, suppress(DBAPIError):
            connection.exec_driver_sql(statement)
        command = chance.choice((["status"], ["workers"], ["review"], ["check"], ["stats"], ["suspend", "bob", "link"]))
        run = run_command(["annotate", command[0], damaged, *command[1:]], capsys)
        story = (statement, command, run)
        assert run.code in (0, 1, 2), story
        assert run.code < 2 or (run.err.startswith("deixis: ") and run.err.count("\n") == 1), story
        codes.add(run.code)
        with closing_engine(postgresql) as connection:
            connection.exec_driver_sql(f"DROP DATABASE {copy} WITH (FORCE)")
    assert {0, 2} <= codes


@contextmanager
def closing_engine(where: str) -> Iterator[Connection]:
    engine = create_engine(where, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()
