"""Run by `test_kills.py` in a process of its own: an index killed at every statement and sync, then brought to its end.

Prints one JSON line a killed run: how many files were reported as done, and whether all of them were there afterwards.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from deixis.search import indexing, tidying
from deixis.search.collection import Collection
from deixis.search.generations import current_generation
from deixis.search.stores.exact import load_faiss
from tests.search.fakes import CellModel


class Killer:
    """Ends this process, as the system would, at the n-th thing that touches the disk."""

    def __init__(self, at: int) -> None:
        self._left = at

    def count(self, *_: Any) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        connect, fsync, replace = sqlite3.connect, os.fsync, os.replace

        def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
            connection = connect(*arguments, **options)
            connection.set_trace_callback(self.count)
            return connection

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                self.count()
                outcome = function(*arguments)
                self.count()
                return outcome

            return call

        sqlite3.connect = traced  # type: ignore[assignment]
        os.fsync, os.replace = counted(fsync), counted(replace)


def contents(index: Path) -> dict[str, list[float]]:
    """Path → row and cells of all that an index holds, and that a search for them finds."""
    if not (index / "current").exists():
        return {}
    collection = Collection(index)
    rows = collection.embeddings_of(collection.ids)
    assert len(rows) == 0 or (collection.nearest.search(rows, 1).scores > 0.999).all()
    found = {}
    cells = collection.cells_of(collection.ids).reshape(len(rows), 16)
    assert cells.any(1).all()
    for picture, row, own in zip(collection.ids.tolist(), rows, cells, strict=True):
        for path in collection.paths(picture):
            found[os.fsdecode(path)] = np.round(row, 3).tolist() + own.tolist()
    collection.close()
    return found


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives in a process of its own: what a store has open there is no part of this one."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            with os.fdopen(writer, "w") as stream:
                json.dump(function(*arguments), stream)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        outcome = stream.read()
    os.waitpid(child, 0)
    return json.loads(outcome)


def run(index: Path, pictures: Path, name: str, store: str, report: int | None = None) -> None:
    def progress(done: int, total: int) -> None:
        if report is not None:
            os.write(report, f"{done}\n".encode())

    model = CellModel(name)
    # A file of milvus-lite is one process' alone, so that each index has its own.
    store = str(index.with_suffix(store)) if store.startswith(".") else store
    indexing.index_folders(index, [pictures], model, name, store=store, progress=progress)


def killed_run(index: Path, pictures: Path, name: str, store: str, at: int) -> tuple[bool, int]:
    """Whether the run was killed, and how many files it had reported by then."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        Killer(at).install()
        run(index, pictures, name, store, writer)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        lines = stream.read().split()
    status = os.waitpid(child, 0)[1]
    return os.WIFSIGNALED(status), int(lines[-1]) if lines else 0


def main(work: Path, pictures: Path, names: list[str], step: int, store: str) -> None:
    # Once for all children.
    load_faiss()
    if store not in ("exact", "approximate"):
        importlib.import_module("pymilvus")
    indexing.COMMIT_FILES, indexing.BATCH, tidying.UNUSED_ROWS = 4, 2, 0
    whole = work / "whole"
    in_child(run, whole, pictures, names[-1], store)
    wanted = in_child(contents, whole)
    at = 1
    while True:
        index = work / f"killed-{at}"
        for name in names[:-1]:
            in_child(run, index, pictures, name, store)
        before = in_child(contents, index)
        killed, reported = killed_run(index, pictures, names[-1], store, at)
        if not killed:
            return
        there = in_child(contents, index)
        if names[:-1]:
            # The index in use is whole at every moment: the old one, or the new one.
            kept = there in (before, wanted)
        else:
            kept = len(there) >= reported and all(wanted.get(path) == row for path, row in there.items())
        in_child(run, index, pictures, names[-1], store)
        generation = current_generation(index)
        others = [path.name for path in index.iterdir() if path.is_dir() and path != generation]
        outcome = {"at": at, "reported": reported, "there": len(there), "kept": kept}
        print(json.dumps({**outcome, "whole": in_child(contents, index) == wanted, "others": others}), flush=True)
        at += step


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].split(","), int(sys.argv[4]), sys.argv[5])
