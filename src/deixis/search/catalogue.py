"""What an index knows: contents by hash, the files that have them, and the encoder that all is bound to (SQLite, WAL).

A content is a picture's bytes; it has one row among the vectors however many files hold it, and keeps it when they are
renamed. A row counts once the transaction that names it is committed, which is after its numbers are on the disk.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from deixis.adapters.encoders import Identity
from deixis.errors import InputError
from deixis.vision.picture_files import Stamp

CATALOGUE = "catalogue.sqlite"
VERSION = 1
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE roots (path BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE contents (id INTEGER PRIMARY KEY AUTOINCREMENT, sha256 BLOB NOT NULL UNIQUE, place INTEGER NOT NULL);
CREATE TABLE files (
    path BLOB PRIMARY KEY,
    size INTEGER NOT NULL,
    modified INTEGER NOT NULL,
    changed INTEGER NOT NULL,
    content INTEGER REFERENCES contents (id),
    problem TEXT
) WITHOUT ROWID;
CREATE INDEX files_by_content ON files (content);
"""


class FileRow(NamedTuple):
    """A file as it was last looked at: either a content or the reason why there is none."""

    path: bytes
    stamp: Stamp
    content: int | None
    problem: str | None


class Catalogue:
    """One connection. A writer is made with `create` or `write`, a reader with `read`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path

    @classmethod
    def create(cls, folder: Path, identity: Identity, encoder: str) -> None:
        """Make an empty catalogue; half of one never comes under its name."""
        temporary = folder / f".{CATALOGUE}.part"
        temporary.unlink(missing_ok=True)
        connection = sqlite3.connect(temporary, isolation_level=None)
        try:
            connection.executescript(_SCHEMA)
            values = {
                "version": str(VERSION),
                "identity": msgspec.json.encode(identity).decode(),
                "encoder": encoder,
                "rows": "0",
            }
            connection.executemany("INSERT INTO meta VALUES (?, ?)", values.items())
        finally:
            connection.close()
        os.replace(temporary, folder / CATALOGUE)

    @classmethod
    def write(cls, folder: Path) -> Catalogue:
        path = folder / CATALOGUE
        with _damage(path):
            connection = sqlite3.connect(path, isolation_level=None)
            connection.execute("PRAGMA journal_mode=WAL")
            # A commit that was reported survives a loss of power.
            connection.execute("PRAGMA synchronous=FULL")
        return cls(connection, path)._checked()

    @classmethod
    def read(cls, folder: Path) -> Catalogue:
        """A reader, for any thread; where the folder cannot be written, nobody writes beside it either."""
        path = folder / CATALOGUE
        mode = "mode=ro" if os.access(folder, os.W_OK) else "immutable=1"
        with _damage(path):
            address = f"{path.absolute().as_uri()}?{mode}"
            # SQLite lets one thread in at a time.
            connection = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
        return cls(connection, path)._checked()

    def _checked(self) -> Catalogue:
        version = self.meta("version")
        if version != str(VERSION):
            raise InputError(self._path, f"is of version {version}, this program reads {VERSION}; index again")
        return self

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        """All or nothing of what is written inside; a `DEFERRED` one sees one state of all tables."""
        with _damage(self._path):
            self._connection.execute(f"BEGIN {kind}")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def meta(self, key: str) -> str:
        with _damage(self._path):
            found = self._connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        if found is None:
            raise InputError(self._path, f"is damaged (it has no {key!r})")
        return str(found[0])

    def setting(self, key: str) -> str:
        """The same for what need not be there; empty where it is not."""
        found = self._connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return str(found[0]) if found else ""

    def set_meta(self, key: str, value: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    @property
    def identity(self) -> Identity:
        return msgspec.json.decode(self.meta("identity"), type=Identity)

    @property
    def rows(self) -> int:
        """Rows among the vectors that count, those of contents that are gone included."""
        return int(self.meta("rows"))

    def roots(self) -> list[bytes]:
        return [row[0] for row in self._connection.execute("SELECT path FROM roots ORDER BY path")]

    def add_roots(self, roots: Iterable[bytes]) -> None:
        self._connection.executemany("INSERT OR IGNORE INTO roots VALUES (?)", [(root,) for root in roots])

    def remove_root(self, root: bytes) -> None:
        self._connection.execute("DELETE FROM roots WHERE path = ?", (root,))

    def files(self) -> Iterator[FileRow]:
        query = "SELECT path, size, modified, changed, content, problem FROM files"
        for path, size, modified, changed, content, problem in self._connection.execute(query):
            yield FileRow(path, Stamp(size, modified, changed), content, problem)

    def put_files(self, rows: Iterable[FileRow]) -> None:
        self._connection.executemany(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)",
            [(row.path, *row.stamp, row.content, row.problem) for row in rows],
        )

    def remove_files(self, paths: Iterable[bytes]) -> None:
        self._connection.executemany("DELETE FROM files WHERE path = ?", [(path,) for path in paths])

    def known(self) -> dict[bytes, int]:
        """Hash of every content → its id."""
        return dict(self._connection.execute("SELECT sha256, id FROM contents"))

    def add_contents(self, places: Mapping[bytes, int]) -> dict[bytes, int]:
        """New contents by hash, and where among the vectors each is; the ids they get."""
        cursor = self._connection.cursor()
        ids = {}
        for sha256, place in places.items():
            cursor.execute("INSERT INTO contents (sha256, place) VALUES (?, ?)", (sha256, place))
            ids[sha256] = int(cursor.lastrowid or 0)
        return ids

    def remove_orphans(self) -> int:
        """Forget contents that no file has; how many."""
        query = "DELETE FROM contents WHERE id NOT IN (SELECT content FROM files WHERE content IS NOT NULL)"
        return self._connection.execute(query).rowcount

    def places(self) -> list[tuple[int, int]]:
        """(id, place) of every content that a file has, by id."""
        query = "SELECT id, place FROM contents WHERE id IN (SELECT content FROM files) ORDER BY id"
        return list(self._connection.execute(query))

    def move(self, places: Mapping[int, int], rows: int) -> None:
        """Give contents other places among the vectors."""
        moves = [(place, content) for content, place in places.items()]
        self._connection.executemany("UPDATE contents SET place = ? WHERE id = ?", moves)
        self.set_meta("rows", str(rows))

    def paths(self, content: int) -> list[bytes]:
        query = "SELECT path FROM files WHERE content = ? ORDER BY path"
        return [row[0] for row in self._connection.execute(query, (content,))]

    def sha256(self, content: int) -> bytes | None:
        """The hash of a content; None if it is gone."""
        found = self._connection.execute("SELECT sha256 FROM contents WHERE id = ?", (content,)).fetchone()
        return None if found is None else bytes(found[0])

    def by_hash(self, start: bytes) -> int | None:
        """The content whose hash begins so; None where there is none, or more than one."""
        query = "SELECT id FROM contents WHERE sha256 BETWEEN ? AND ? LIMIT 2"
        found = self._connection.execute(query, (start, start.ljust(32, b"\xff"))).fetchall()
        return int(found[0][0]) if len(found) == 1 else None

    def changes(self) -> int:
        """A number that is another one once somebody else has written to the catalogue."""
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def problems(self) -> dict[bytes, str]:
        query = "SELECT path, problem FROM files WHERE problem IS NOT NULL ORDER BY path"
        return dict(self._connection.execute(query))

    def counts(self) -> tuple[int, int]:
        """Files that are pictures, and how many different pictures they are."""
        query = "SELECT count(*), count(DISTINCT content) FROM files WHERE content IS NOT NULL"
        files, contents = self._connection.execute(query).fetchone()
        return int(files), int(contents)

    def faults(self) -> list[str]:
        """What SQLite itself finds wrong with the file."""
        with _damage(self._path):
            found = [str(row[0]) for row in self._connection.execute("PRAGMA quick_check")]
        return [] if found == ["ok"] else found

    def copy_to(self, folder: Path) -> None:
        """The whole catalogue as a file in another folder."""
        target = folder / CATALOGUE
        target.unlink(missing_ok=True)
        self._connection.execute("VACUUM INTO ?", (str(target),))


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as fault:
        raise InputError(path, f"cannot be used ({fault})") from None
