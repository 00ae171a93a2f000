"""Projects for the tests, on SQLite and on a real PostgreSQL (from PyPI's pgserver, where it is installed)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

from deixis.annotation.project import create_project
from deixis.annotation.workbench import Workbench
from deixis.annotation.workflow_records import Settings
from tests.annotation.worlds import made_up_corpus


class Clock:
    """Time that passes on command."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a PostgreSQL server of our own."""
    pgserver = pytest.importorskip("pgserver", reason="pgserver, a PostgreSQL from PyPI, is not installed")
    with warnings.catch_warnings():
        # Where the machine has no XDG_RUNTIME_DIR, platformdirs says so.
        warnings.simplefilter("ignore")
        server = pgserver.get_server(tmp_path_factory.mktemp("postgresql"))
    yield server.get_uri().replace("postgresql://", "postgresql+psycopg://")
    server.cleanup()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new project can be made."""
    if request.param == "sqlite":
        return str(tmp_path / "project.db")
    return fresh_database(request.getfixturevalue("postgresql"))


def fresh_database(server: str) -> str:
    """The URL of a new, empty database."""
    from sqlalchemy import create_engine, text

    name = f"deixis_{uuid4().hex}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return server.replace("/postgres?", f"/{name}?")


MakeBench = Callable[..., Workbench]


@pytest.fixture
def make_bench(place: str, clock: Clock) -> Iterator[MakeBench]:
    """Make a project of made-up images and open it; with `known`, workers are tested and watched."""
    opened: list[Workbench] = []

    def make(images: int = 3, known: int = 0, seed: int = 1, **settings: object) -> Workbench:
        create_project(
            place,
            made_up_corpus(images),
            start="mentions",
            known=made_up_corpus(known, seed=99, first=1000) if known else None,
            known_each=80,
            settings=Settings(**settings),  # type: ignore[arg-type]
            durable=False,
        )
        opened.append(Workbench(place, clock=clock, chance=Random(seed), durable=False))
        return opened[-1]

    yield make
    for bench in opened:
        bench.close()
