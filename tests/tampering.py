"""Ways to damage a folder of files and databases, chosen by a seed; and the command line run in this process."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from deixis.cli import main

#: What a cell or a setting is replaced by.
VALUES: tuple[object, ...] = (
    None,
    "",
    "text",
    b"\xff\x00bytes",
    -1,
    2**62,
    -(2**63),
    1.5,
    float("inf"),
    "9" * 40,
    "-1",
    "1e9",
    "{}",
    "null",
    '{"name":1}',
    "[" * 5000,
)


class Run(NamedTuple):
    code: int
    out: str
    err: str


def run_command(arguments: Sequence[object], capsys: pytest.CaptureFixture[str]) -> Run:
    """What `deixis …` prints and its exit code; an exception that would be a traceback comes through."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["deixis", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(bool(end.code))
    return Run(code, *capsys.readouterr())


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def tamper(folder: Path, chance: random.Random, database: str, *, often: int = 1) -> str:
    """Damage one thing in a folder, `often` times as likely inside a database as otherwise; says what."""
    if not files_of(folder):
        return "nothing is left"
    path = chance.choice(files_of(folder))
    databases = [each for each in files_of(folder) if each.name == database]
    kind = chance.choice(["swap", *FILES, *list(DATABASES) * often] if databases else ["swap", *FILES])
    if kind in DATABASES:
        path = chance.choice(databases)
        with closing(sqlite3.connect(path)) as connection, suppress(sqlite3.Error, IndexError):
            DATABASES[kind](connection, chance)
            connection.commit()
    elif kind == "swap":
        other = chance.choice(files_of(folder))
        one, two = path.read_bytes(), other.read_bytes()
        path.write_bytes(two)
        other.write_bytes(one)
    else:
        FILES[kind](path, chance)
    return f"{kind} {path.relative_to(folder)}"


def _truncate(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size + 1))


def _flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 3, 50)) if data else 0):
        data[chance.randrange(len(data))] ^= chance.randrange(1, 256)
    path.write_bytes(data)


def _noise(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(chance.randrange(2000)))


def _replaced(make: Callable[[Path], object]) -> Callable[[Path, random.Random], None]:
    def replace(path: Path, chance: random.Random) -> None:
        path.unlink()
        make(path)

    return replace


def _delete_folder(path: Path, chance: random.Random) -> None:
    shutil.rmtree(path.parent)


def _wal_beside(path: Path, chance: random.Random) -> None:
    wal = path.with_name(path.name + "-wal")
    # It may be a pipe by now, which nobody reads.
    if wal.is_file() or not os.path.lexists(wal):
        wal.write_bytes(chance.randbytes(500))


FILES: dict[str, Callable[[Path, random.Random], None]] = {
    "truncate": _truncate,
    "flip": _flip,
    "noise": _noise,
    "empty": lambda path, chance: path.write_bytes(b"") and None,
    "delete": lambda path, chance: path.unlink(),
    "delete the folder of": _delete_folder,
    "folder for": _replaced(Path.mkdir),
    "pipe for": _replaced(os.mkfifo),
    "loop for": _replaced(lambda path: path.symlink_to(path.name)),
    "device for": _replaced(lambda path: path.symlink_to("/dev/zero")),
    "no permission for": lambda path, chance: path.chmod(0),
    "wal beside": _wal_beside,
    "pipe as wal of": lambda path, chance: (
        os.mkfifo(path.with_name(path.name + "-wal"))
        if not os.path.lexists(path.with_name(path.name + "-wal"))
        else None
    ),
}


def _tables(connection: sqlite3.Connection) -> list[str]:
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
    return [row[0] for row in found]


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]


def _drop_table(connection: sqlite3.Connection, chance: random.Random) -> None:
    connection.execute(f'DROP TABLE "{chance.choice(_tables(connection))}"')


def _drop_column(connection: sqlite3.Connection, chance: random.Random) -> None:
    table = chance.choice(_tables(connection))
    connection.execute(f'ALTER TABLE "{table}" DROP COLUMN "{chance.choice(_columns(connection, table))}"')


def _rename_column(connection: sqlite3.Connection, chance: random.Random) -> None:
    table = chance.choice(_tables(connection))
    connection.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{chance.choice(_columns(connection, table))}" TO other')


def _set_cells(connection: sqlite3.Connection, chance: random.Random) -> None:
    table = chance.choice(_tables(connection))
    column, value = chance.choice(_columns(connection, table)), chance.choice(VALUES)
    some = chance.choice(("", f" WHERE rowid % 3 = {chance.randrange(3)}"))
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = ?{some}', (value,))


def _set_values(connection: sqlite3.Connection, chance: random.Random) -> None:
    """One setting of a table of keys and values."""
    keyed = [table for table in _tables(connection) if _columns(connection, table)[:2] == ["key", "value"]]
    table = chance.choice(keyed)
    key = chance.choice(sorted(row[0] for row in connection.execute(f'SELECT key FROM "{table}"')))
    connection.execute(f'UPDATE "{table}" SET value = ? WHERE key = ?', (chance.choice(VALUES), key))


def _delete_rows(connection: sqlite3.Connection, chance: random.Random) -> None:
    connection.execute("PRAGMA foreign_keys = OFF")
    table = chance.choice(_tables(connection))
    connection.execute(f'DELETE FROM "{table}"' + chance.choice(("", " WHERE abs(random()) % 2 = 0")))


def _endless_view(connection: sqlite3.Connection, chance: random.Random) -> None:
    table = chance.choice(_tables(connection))
    columns = ", ".join(f'n AS "{column}"' for column in _columns(connection, table))
    connection.execute(f'DROP TABLE "{table}"')
    endless = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r)"
    connection.execute(f'CREATE VIEW "{table}" AS {endless} SELECT {columns} FROM r')


def _trigger(connection: sqlite3.Connection, chance: random.Random) -> None:
    table = chance.choice(_tables(connection))
    connection.execute(f'CREATE TRIGGER t AFTER INSERT ON "{table}" BEGIN SELECT RAISE(ABORT, "no"); END')


DATABASES: dict[str, Callable[[sqlite3.Connection, random.Random], None]] = {
    "drop a table of": _drop_table,
    "drop a column of": _drop_column,
    "rename a column of": _rename_column,
    "set cells of": _set_cells,
    "set a value of": _set_values,
    "delete rows of": _delete_rows,
    "endless view in": _endless_view,
    "trigger in": _trigger,
}
