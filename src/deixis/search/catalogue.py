"""What an index knows: contents by hash, the files that have them, and the model that all is bound to (SQLite, WAL).

A content is a picture's bytes; it has one row among the vectors however many files hold it, and keeps it when they are
renamed. A row counts once the transaction that names it is committed, which is after its numbers are on the disk.

A file that was damaged, or that somebody else wrote, is an `InputError`, whichever question meets the damage: the
tables must be those of `_SCHEMA`, and every value is checked.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from deixis.adapters.search_model import Identity
from deixis.errors import InputError
from deixis.files import require_database
from deixis.search.walking import is_under
from deixis.vision.fingerprints import BYTES as FINGERPRINT_BYTES
from deixis.vision.picture_files import Stamp

CATALOGUE = "catalogue.sqlite"
VERSION = 2
#: Added in version 2. A size of 0 × 0 could not be read; `taken` is the camera's local time, as in 2024-07-14T15:20:31.
_DETAILS = """
CREATE TABLE details (
    content INTEGER PRIMARY KEY,
    width INTEGER NOT NULL,
    height INTEGER NOT NULL,
    taken TEXT,
    fingerprint BLOB NOT NULL
);
"""
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
#: The longest side that a picture may have.
MAX_SIDE = 1_000_000
#: Kinds of wrong entries, and the queries that count them.
_WRONG_ENTRIES = {
    "pictures have an impossible size, date or fingerprint": f"""
        SELECT count(*) FROM details WHERE typeof(width) <> 'integer' OR typeof(height) <> 'integer'
        OR width NOT BETWEEN 0 AND {MAX_SIDE} OR height NOT BETWEEN 0 AND {MAX_SIDE} OR (width = 0) <> (height = 0)
        OR typeof(fingerprint) <> 'blob' OR length(fingerprint) NOT IN (0, {FINGERPRINT_BYTES})
        OR taken NOT GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:[0-9][0-9]'
        """,
    "pictures have no hash": "SELECT count(*) FROM contents WHERE typeof(sha256) <> 'blob' OR length(sha256) <> 32",
    "files have the number of a picture that is not there": (
        "SELECT count(*) FROM files WHERE content IS NOT NULL AND content NOT IN (SELECT id FROM contents)"
    ),
    "sizes or dates belong to no picture": (
        "SELECT count(*) FROM details WHERE content NOT IN (SELECT id FROM contents)"
    ),
}
#: Added to what is said of a damaged index.
REMEDY = "make a new index with: deixis index DIR --index OTHER"
#: What SQLite says of disks and of other processes, not of the file.
_NOT_DAMAGE = ("BUSY", "LOCKED", "FULL", "READONLY", "CANTOPEN", "PERM", "IOERR", "NOMEM", "INTERRUPT")
#: The most numbers that an embedding, and all cells of a picture, may have.
MAX_DIM, MAX_CELL_NUMBERS = 1 << 16, 1 << 20
#: Files that are listed at a time.
LISTED = 10_000
Values = tuple[Any, ...]
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}")


class FileRow(NamedTuple):
    """A file as it was last looked at: either a content or the reason why there is none."""

    path: bytes
    stamp: Stamp
    content: int | None
    problem: str | None


class Details(NamedTuple):
    """Width and height of a picture, upright, when it was taken, and its fingerprint; each empty if it is not known."""

    width: int = 0
    height: int = 0
    taken: str = ""
    fingerprint: bytes = b""


class ListedFile(NamedTuple):
    """A file that is a picture, and when that was taken: by its camera's clock, or else the time of the file."""

    content: int
    path: bytes
    size: int
    modified: int
    taken: str


class Catalogue:
    """One connection. A writer is made with `create` or `write`, a reader with `read`.

    A writer upgrades a catalogue of version 1. A reader leaves it as it is; no details are known of its pictures.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self.path = connection, path
        self._has_details = True

    @classmethod
    def create(cls, folder: Path, identity: Identity, model: str) -> None:
        """Make an empty catalogue; half of one never comes under its name."""
        temporary = folder / f".{CATALOGUE}.part"
        temporary.unlink(missing_ok=True)
        connection = sqlite3.connect(temporary, isolation_level=None)
        try:
            connection.executescript(_SCHEMA + _DETAILS)
            values = {
                "version": str(VERSION),
                "identity": msgspec.json.encode(identity).decode(),
                "encoder": model,
                "rows": "0",
            }
            connection.executemany("INSERT INTO meta VALUES (?, ?)", values.items())
        finally:
            connection.close()
        os.replace(temporary, folder / CATALOGUE)

    @classmethod
    def write(cls, folder: Path) -> Catalogue:
        path = folder / CATALOGUE
        _require(path)
        with _damage(path):
            connection = sqlite3.connect(path, isolation_level=None)
            connection.execute("PRAGMA journal_mode=WAL")
            # A commit that was reported survives a loss of power.
            connection.execute("PRAGMA synchronous=FULL")
        catalogue = cls(connection, path)._checked()
        catalogue._upgrade()
        return catalogue

    @classmethod
    def read(cls, folder: Path) -> Catalogue:
        """A reader, for any thread; where the folder cannot be written, nobody writes beside it either."""
        path = folder / CATALOGUE
        mode = "mode=ro" if os.access(folder, os.W_OK) else "immutable=1"
        _require(path)
        with _damage(path):
            address = f"{path.absolute().as_uri()}?{mode}"
            # SQLite lets one thread in at a time.
            connection = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
        return cls(connection, path)._checked()

    def _checked(self) -> Catalogue:
        try:
            # First what there is: a view in a table's place may never end.
            rows = self._all("SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!'")
            if not any(row[:2] == ("table", "meta") for row in rows):
                raise _damaged(self.path, "it has no table of settings")
            version = self.meta("version")
            if version not in ("1", str(VERSION)):
                raise InputError(self.path, f"is of version {version}, this program reads 1 to {VERSION}; {REMEDY}")
            self._has_details = version != "1"
            tables = _SCHEMA + (_DETAILS if self._has_details else "")
            if {_spaced(str(row[2])) for row in rows} != {_spaced(part) for part in tables.split(";")} - {""}:
                raise _damaged(self.path, "its tables are not those of an index")
        except BaseException:
            self.close()
            raise
        return self

    def _upgrade(self) -> None:
        if not self._has_details:
            with self.transaction():
                self._all(_DETAILS.strip().rstrip(";"))
                self.set_meta("version", str(VERSION))
            self._has_details = True

    def _all(self, query: str, parameters: Sequence[Any] = (), *types: type | tuple[type, ...]) -> list[Values]:
        """The rows of a query, whose values must be of these types."""
        with _damage(self.path):
            rows = self._connection.execute(query, parameters).fetchall()
        for column, kind in enumerate(types):
            if not all(isinstance(row[column], kind) for row in rows):
                raise _damaged(self.path, f"a value is of the wrong type in the answer to {query!r}")
        return rows

    def _do(self, statement: str, rows: Iterable[Values]) -> None:
        with _damage(self.path):
            self._connection.executemany(statement, rows)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        """All or nothing of what is written inside; a `DEFERRED` one sees one state of all tables."""
        with _damage(self.path):
            self._connection.execute(f"BEGIN {kind}")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def meta(self, key: str) -> str:
        values = self._all("SELECT value FROM meta WHERE key = ?", (key,), str)
        if not values:
            raise _damaged(self.path, f"it has no {key!r}")
        return str(values[0][0])

    def setting(self, key: str) -> str:
        """The same for what need not be there; empty where it is not."""
        values = self._all("SELECT value FROM meta WHERE key = ?", (key,), str)
        return str(values[0][0]) if values else ""

    def number(self, key: str) -> int:
        """A count or an id among the settings; 0 where it is not there."""
        value = self.setting(key) or "0"
        if not re.fullmatch(r"[0-9]{1,18}", value):
            raise _damaged(self.path, f"{key!r} is {value[:40]!r}")
        return int(value)

    def set_meta(self, key: str, value: str) -> None:
        self._do("INSERT OR REPLACE INTO meta VALUES (?, ?)", [(key, value)])

    @property
    def identity(self) -> Identity:
        try:
            identity = msgspec.json.decode(self.meta("identity"), type=Identity)
        except (msgspec.DecodeError, RecursionError, ValueError) as fault:
            raise _damaged(self.path, f"its model: {fault}") from None
        cells = identity.cells * identity.cell_dim
        if not 1 <= identity.dim <= MAX_DIM or min(identity.cells, identity.cell_dim) < 0 or cells > MAX_CELL_NUMBERS:
            raise _damaged(self.path, f"its model has embeddings of {identity.dim} numbers and {cells} in cells")
        return identity

    @property
    def rows(self) -> int:
        """Rows among the vectors that count, those of contents that are gone included."""
        self.meta("rows")
        return self.number("rows")

    def roots(self) -> list[bytes]:
        return [row[0] for row in self._all("SELECT path FROM roots ORDER BY path", (), bytes)]

    def add_roots(self, roots: Iterable[bytes]) -> None:
        self._do("INSERT OR IGNORE INTO roots VALUES (?)", [(root,) for root in roots])

    def remove_root(self, root: bytes) -> None:
        self._do("DELETE FROM roots WHERE path = ?", [(root,)])

    def files(self) -> list[FileRow]:
        query = "SELECT path, size, modified, changed, content, problem FROM files"
        rows = self._all(query, (), bytes, int, int, int, (int, type(None)), (str, type(None)))
        return [FileRow(path, Stamp(*stamp), content, problem) for path, *stamp, content, problem in rows]

    def put_files(self, rows: Iterable[FileRow]) -> None:
        values = [(row.path, *row.stamp, row.content, row.problem) for row in rows]
        self._do("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", values)

    def remove_files(self, paths: Iterable[bytes]) -> None:
        self._do("DELETE FROM files WHERE path = ?", [(path,) for path in paths])

    def known(self) -> dict[bytes, int]:
        """Hash of every content → its id."""
        return dict(self._all("SELECT sha256, id FROM contents", (), bytes, int))

    def add_contents(self, places: Mapping[bytes, int]) -> dict[bytes, int]:
        """New contents by hash, and where among the vectors each is; the ids they get."""
        ids = {}
        with _damage(self.path):
            cursor = self._connection.cursor()
            for sha256, place in places.items():
                cursor.execute("INSERT INTO contents (sha256, place) VALUES (?, ?)", (sha256, place))
                ids[sha256] = int(cursor.lastrowid or 0)
        return ids

    def remove_orphans(self) -> None:
        """Forget contents that no file has."""
        self._all("DELETE FROM contents WHERE id NOT IN (SELECT content FROM files WHERE content IS NOT NULL)")

        self._all("DELETE FROM details WHERE content NOT IN (SELECT id FROM contents)")

    def without_details(self) -> set[bytes]:
        """The hashes of contents of which nothing but the hash is known."""
        query = "SELECT sha256 FROM contents WHERE id NOT IN (SELECT content FROM details)"
        return {row[0] for row in self._all(query, (), bytes)}

    def put_details(self, details: Mapping[int, Details]) -> None:
        values = [
            (content, width, height, taken or None, fingerprint)
            for content, (width, height, taken, fingerprint) in details.items()
        ]
        self._do("INSERT OR REPLACE INTO details VALUES (?, ?, ?, ?, ?)", values)

    def details(self, content: int) -> Details:
        """What is known of a content."""
        if not self._has_details:
            return Details()
        query = "SELECT width, height, taken, fingerprint FROM details WHERE content = ?"
        rows = self._all(query, (content,), int, int, (str, type(None)), bytes)
        if not rows:
            return Details()
        width, height, taken, fingerprint = rows[0]
        if len(fingerprint) not in (0, FINGERPRINT_BYTES):
            raise _damaged(self.path, f"a fingerprint has {len(fingerprint)} bytes")
        return Details(width, height, self._time(taken), fingerprint)

    def listing(self) -> Iterator[ListedFile]:
        """All files that are pictures."""
        if self._has_details:
            query = (
                "SELECT files.content, path, size, modified, taken FROM files LEFT JOIN details "
                "ON details.content = files.content WHERE files.content IS NOT NULL"
            )
        else:
            query = "SELECT content, path, size, modified, NULL FROM files WHERE content IS NOT NULL"
        types: tuple[type | tuple[type, ...], ...] = (int, bytes, int, int, (str, type(None)))
        with _damage(self.path):
            cursor = self._connection.execute(query)
            while rows := cursor.fetchmany(LISTED):
                for row in rows:
                    if not all(isinstance(value, kind) for value, kind in zip(row, types, strict=True)):
                        raise _damaged(self.path, "a file's entry has values of the wrong type")
                    content, path, size, modified, taken = row
                    yield ListedFile(content, path, size, modified, self._time(taken))

    def _time(self, taken: str | None) -> str:
        if taken and not _TIME.fullmatch(taken):
            raise _damaged(self.path, f"a picture was taken at {taken[:40]!r}")
        return taken or ""

    def places(self) -> list[tuple[int, int]]:
        """(id, place) of every content that a file has, by id; all places are among the rows that count."""
        query = "SELECT id, place FROM contents WHERE id IN (SELECT content FROM files) ORDER BY id"
        places = [(content, place) for content, place in self._all(query, (), int, int)]
        rows = self.rows
        if not all(0 <= place < rows for _, place in places):
            raise _damaged(self.path, f"a picture's place is not among its {rows} rows")
        return places

    def move(self, places: Mapping[int, int], rows: int) -> None:
        """Give contents other places among the vectors."""
        moves = [(place, content) for content, place in places.items()]
        self._do("UPDATE contents SET place = ? WHERE id = ?", moves)
        self.set_meta("rows", str(rows))

    def paths(self, content: int) -> list[bytes]:
        query = "SELECT path FROM files WHERE content = ? ORDER BY path"
        return [row[0] for row in self._all(query, (content,), bytes)]

    def file_times(self, content: int) -> list[int]:
        """When the files of a content were modified, in nanoseconds since 1970."""
        return [row[0] for row in self._all("SELECT modified FROM files WHERE content = ?", (content,), int)]

    def sha256(self, content: int) -> bytes | None:
        """The hash of a content; None if it is gone."""
        hashes = self._all("SELECT sha256 FROM contents WHERE id = ?", (content,), bytes)
        return bytes(hashes[0][0]) if hashes else None

    def by_hash(self, start: bytes) -> int | None:
        """The content whose hash begins so; None where there is none, or more than one."""
        query = "SELECT id FROM contents WHERE sha256 BETWEEN ? AND ? LIMIT 2"
        ids = self._all(query, (start, start.ljust(32, b"\xff")), int)
        return int(ids[0][0]) if len(ids) == 1 else None

    def changes(self) -> int:
        """A number that is another one once somebody else has written to the catalogue."""
        return int(self._all("PRAGMA data_version")[0][0])

    def problems(self) -> dict[bytes, str]:
        query = "SELECT path, problem FROM files WHERE problem IS NOT NULL ORDER BY path"
        return dict(self._all(query, (), bytes, str))

    def counts(self) -> tuple[int, int]:
        """Files that are pictures, and how many different pictures they are."""
        query = "SELECT count(*), count(DISTINCT content) FROM files WHERE content IS NOT NULL"
        [(files, contents)] = self._all(query)
        return int(files), int(contents)

    def faults(self) -> list[str]:
        """What SQLite itself finds wrong with the file."""
        messages = [str(row[0]) for row in self._all("PRAGMA quick_check")]
        return [] if messages == ["ok"] else messages

    def wrong_entries(self) -> list[str]:
        """Entries that no run of `deixis index` writes, one line for each kind."""
        roots = self.roots()
        counts = {"paths are not in the indexed folders": sum(not _is_in(row.path, roots) for row in self.files())}
        for message, query in _WRONG_ENTRIES.items():
            if self._has_details or "details" not in query:
                counts[message] = int(self._all(query, (), int)[0][0])
        return [f"{count:,} {message}" for message, count in counts.items() if count]

    def copy_to(self, folder: Path) -> None:
        """The whole catalogue as a file in another folder."""
        target = folder / CATALOGUE
        target.unlink(missing_ok=True)
        self._all("VACUUM INTO ?", (str(target),))


def _is_in(path: bytes, roots: Sequence[bytes]) -> bool:
    """Whether a path is in one of the folders; a folder that could not be listed is an entry itself."""
    up = os.fsencode(os.pardir) in path.split(os.fsencode(os.sep))
    return not up and b"\0" not in path and any(path == root or is_under(path, root) for root in roots)


def _spaced(statement: str) -> str:
    return " ".join(statement.split())


def _require(path: Path) -> None:
    try:
        require_database(path)
    except InputError as fault:
        raise InputError(fault.path, f"{fault.problem}; {REMEDY}") from None


def _damaged(path: Path, what: str) -> InputError:
    return InputError(path, f"is damaged ({what}); {REMEDY}")


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    # Of a damaged file, SQLite's own words may not be UTF-8.
    except (sqlite3.Error, UnicodeDecodeError) as fault:
        name = getattr(fault, "sqlite_errorname", "").removeprefix("SQLITE_").partition("_")[0]
        if name in _NOT_DAMAGE:
            raise InputError(path, f"cannot be used ({fault})") from None
        raise _damaged(path, str(fault)) from None
