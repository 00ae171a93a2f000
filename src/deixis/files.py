"""Files on disk: atomic writes, reading regular files only, folders with one writer, the cache folder.

A crash never leaves half a file that looks whole, and a pipe or device put in a file's place is never opened.
"""

from __future__ import annotations

import os
import re
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

from deixis.errors import DeixisError, InputError

if TYPE_CHECKING:
    from io import BufferedReader

    from filelock import FileLock

#: The file in a folder that its writer holds.
LOCK = ".lock"
#: The most bytes of a file that becomes one record; the largest have some megabytes.
RECORD_LIMIT = 64 << 20
#: The most bytes of a text file with a line for each of many things, such as the words of a vocabulary.
TABLE_LIMIT = 1 << 30

Record = TypeVar("Record")


@contextmanager
def atomic_write(path: str | Path, *, sync: bool = True) -> Iterator[IO[bytes]]:
    """Open a binary file that appears under `path` only when the block ends well.

    The bytes go to a temporary name in the same folder, are synced, then renamed over `path`. Without `sync` a kill
    still leaves no half file, but a loss of power may: for thousands of small files that can be written again.
    """
    path = Path(path)
    refuse_special(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:40]}.{os.urandom(8).hex()}.part")
    try:
        with temporary.open("xb") as stream:
            yield stream
            if sync:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def write_text(path: str | Path, text: str) -> None:
    """Write a whole UTF-8 text file atomically, with `\\n` line ends on every system."""
    with atomic_write(path) as stream:
        stream.write(text.encode())


def refuse_special(path: Path) -> None:
    """Refuse to write to a device or a pipe: renaming a file over `/dev/null` would remove it, for all of the machine.

    Raises:
        InputError: there is something at `path` that is neither a file nor a folder.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(path, "is a device or a pipe, which is not replaced; choose another name")


def open_regular(path: str | bytes | Path, *, follow_links: bool = True) -> BufferedReader:
    """Open a file for reading, if it is a regular one: opening a pipe would wait for a writer for ever.

    Raises:
        InputError: it is something else, is not there, or may not be read.
    """
    # On systems that have the flag, a pipe that comes between a check and the opening does no harm either.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(path, flags if follow_links else flags | getattr(os, "O_NOFOLLOW", 0))
    except (OSError, ValueError) as fault:
        raise InputError(_shown(path), getattr(fault, "strerror", None) or str(fault)) from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise InputError(_shown(path), "is a folder" if stat.S_ISDIR(mode) else "is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_regular(path: str | bytes | Path, limit: int) -> bytes:
    """All bytes of a regular file; an `InputError` where it is none (`open_regular`) or has more than `limit` bytes."""
    with open_regular(path) as stream:
        try:
            data = stream.read(limit + 1)
        except OSError as fault:
            raise InputError(_shown(path), fault.strerror or str(fault)) from None
    if len(data) > limit:
        raise InputError(_shown(path), f"is larger than {limit:,} bytes")
    return data


def read_utf8(path: str | Path) -> str:
    """The text of a regular file; an `InputError` where it is none, or not UTF-8."""
    try:
        return read_regular(path, TABLE_LIMIT).decode()
    except UnicodeDecodeError:
        raise InputError(path, "is not UTF-8 text") from None


def read_json(path: str | Path, type: type[Record], problem: str = "is damaged") -> Record:
    """A JSON file as a record; one that is none is an `InputError` that says `problem` and what is wrong.

    Nested too deeply, a number of thousands of digits, and text that is not UTF-8 are such faults, too.
    """
    import msgspec

    data = read_regular(path, RECORD_LIMIT)
    try:
        return msgspec.json.decode(data, type=type)
    except (msgspec.DecodeError, ValueError, RecursionError) as fault:
        byte = re.search(r"invalid character \(byte (\d+)\)$", str(fault))
        # Python's `json.dump` writes them. The byte of -Infinity is that of its I.
        is_no_number = byte is not None and data.startswith((b"NaN", b"Infinity"), int(byte[1]))
        hint = "; NaN and Infinity are not allowed" if is_no_number else ""
        raise InputError(path, f"{problem} ({_brief(fault)}{hint})") from None


def read_toml(
    path: str | Path, type: type[Record], problem: str = "is no such settings file", limit: int = RECORD_LIMIT
) -> Record:
    """The same for a TOML file."""
    import msgspec

    data = read_regular(path, limit)
    try:
        return msgspec.toml.decode(data, type=type)
    except (msgspec.DecodeError, ValueError, RecursionError) as fault:
        raise InputError(path, f"{problem} ({_brief(fault)})") from None


def _brief(fault: Exception) -> str:
    """What a decoder says, in one line of bearable length."""
    return " ".join(str(fault).split())[:300]


def require_regular(path: str | Path) -> Path:
    """The path of a regular file, for a library that opens files by name; else an `InputError`."""
    open_regular(path).close()
    return Path(path)


def require_database(path: Path) -> Path:
    """The same for SQLite, which opens the files beside a database, too, where they are there."""
    for beside in ("-wal", "-shm", "-journal"):
        file = path.with_name(path.name + beside)
        if os.path.lexists(file):
            require_regular(file)
    return require_regular(path)


def _shown(path: str | bytes | Path) -> str:
    return path.decode(errors="backslashreplace") if isinstance(path, bytes) else str(path)


def cache_folder() -> Path:
    """Where Deixis keeps what it can compute again: `$DEIXIS_CACHE`, or the user's cache folder."""
    chosen = os.environ.get("DEIXIS_CACHE")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("deixis", appauthor=False))


def sync_folder(folder: Path) -> None:
    """Make new names in a folder durable, where the system lets a folder be synced."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows opens no folders.
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hold_folder(folder: Path, what: str) -> FileLock:
    """Make a folder, if need be, and become its one writer until the lock is released or the process dies.

    A lock of the operating system: a killed writer leaves its file, but not the lock.

    Args:
        folder: what is written.
        what: what the folder is, for people: "feature store".

    Raises:
        DeixisError: another process holds it.
        InputError: it cannot be written.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK)
    if os.path.lexists(folder / LOCK) and not (folder / LOCK).is_file():
        raise InputError(folder / LOCK, "is not a regular file; remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise DeixisError(f"{folder}: another process is writing this {what}") from None
    except OSError as fault:
        raise InputError(folder, f"cannot be written ({fault.strerror})") from None
    return lock


@contextmanager
def taken(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold a lock file until the block ends or the process dies; False where another process holds it, unless waiting.

    Raises:
        InputError: it cannot be written.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        yield False
        return
    except OSError as fault:
        raise InputError(path.parent, f"cannot be written ({fault.strerror})") from None
    try:
        yield True
    finally:
        lock.release()


@contextmanager
def in_turn(folder: Path) -> Iterator[None]:
    """Of processes that would make the same folder of the cache one does; the others wait, and find it made."""
    path = cache_folder() / "turns" / f"{folder.name}.lock"
    with taken(path) as is_ours:
        if is_ours:
            yield
            return
    warnings.warn(f"waiting for another process that makes {folder}", stacklevel=3)
    with taken(path, wait=True):
        yield
