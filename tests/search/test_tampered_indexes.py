"""Whatever happened to the files of an index, a command answers, or says in one line what is wrong; it never hangs."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from deixis.search.indexing import index_folders
from tests.search.fakes import CellModel, paint_many
from tests.tampering import run_command, tamper

pytestmark = pytest.mark.skipif(os.name != "posix", reason="makes pipes")
COMMANDS = ("search", "doctor", "index", "status", "similar")


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An index for each way to search in the process."""
    folder = tmp_path_factory.mktemp("tampered")
    paint_many(folder / "pictures", 60)
    found = {}
    for store in ("exact", "approximate"):
        found[store] = folder / store
        index_folders(found[store], [folder / "pictures"], CellModel(), "cells", store=store)
    return found


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("loading", "search.engine", "search.doctor"):
        monkeypatch.setattr(f"deixis.{module}.load_search_model", lambda name, device="auto": CellModel())


def check(seed: int, indexes: dict[str, Path], work: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, int]:
    chance = random.Random(seed)
    store, command = chance.choice(sorted(indexes)), chance.choice(COMMANDS)
    index, pictures = work / f"index-{seed}", indexes[store].parent / "pictures"
    shutil.copytree(indexes[store], index)
    done = [tamper(index, chance, "catalogue.sqlite") for _ in range(chance.choice((1, 1, 2)))]
    arguments: dict[str, list[object]] = {
        "search": ["search", "red", "--index", index],
        "doctor": ["doctor", "--index", index],
        "index": ["index", pictures, "--index", index],
        "status": ["status", "--index", index],
        "similar": ["similar", pictures / "0000.png", "--index", index],
    }
    story = f"seed {seed}: {', '.join(done)}; {command}"
    try:
        run = run_command(arguments[command], capsys)
    except BaseException as fault:
        raise AssertionError(f"{story}: {type(fault).__name__}: {fault}") from fault
    # Code 1: doctor found a problem, or a search found nothing.
    assert run.code in ((0, 1) if command == "doctor" else (0, 1, 2)), (story, run)
    if run.code == 2:
        assert run.err.startswith("deixis: "), (story, run)
        assert run.err.count("\n") == 1, (story, run)
        assert str(index) in run.err, (story, run)
        # The remedy: another index, or to remove what is in the place of the lock.
        assert "deixis index" in run.err or "; remove it" in run.err, (story, run)
    elif run.code == 1:
        assert ("PROBLEM" if command == "doctor" else "No match") in run.out, (story, run)
        assert "Traceback" not in run.out + run.err, (story, run)
    shutil.rmtree(index, ignore_errors=True)
    return command, run.code


def test_a_setting_of_thousands_of_letters_is_not_repeated_in_full(
    indexes: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(indexes["exact"], tmp_path / "index")
    [catalogue] = (tmp_path / "index").glob("*/catalogue.sqlite")
    with closing(sqlite3.connect(catalogue)) as connection:
        [(table,)] = connection.execute("SELECT name FROM sqlite_master WHERE sql LIKE '%key%value%'").fetchall()
        connection.execute(f"UPDATE {table} SET value = ?", ("[" * 5000,))
        connection.commit()
    run = run_command(["status", "--index", tmp_path / "index"], capsys)
    assert run.code == 2
    assert len(run.err) < 1200
    assert str(tmp_path / "index") in run.err


@pytest.mark.timeout(120)
def test_a_tampered_index_never_tears_or_hangs_a_command(
    indexes: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = [check(seed, indexes, tmp_path, capsys) for seed in range(30)]
    assert {code for _, code in outcomes} == {0, 1, 2}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_more_tampered_indexes(
    indexes: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(30, 1500):
        check(seed, indexes, tmp_path, capsys)
