"""Files on disk: atomic writes, folders with one writer, the cache folder.

A crash never leaves half a file that looks whole.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from deixis.errors import DeixisError, InputError

if TYPE_CHECKING:
    from filelock import FileLock

#: The file in a folder that its writer holds.
LOCK = ".lock"


@contextmanager
def atomic_write(path: str | Path, *, sync: bool = True) -> Iterator[IO[bytes]]:
    """Open a binary file that appears under `path` only when the block ends well.

    The bytes go to a temporary name in the same folder, are synced, then renamed over `path`. Without `sync` a kill
    still leaves no half file, but a loss of power may: for thousands of small files that can be written again.
    """
    path = Path(path)
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
        _sync_folder(path.parent)


def write_text(path: str | Path, text: str) -> None:
    """Write a whole UTF-8 text file atomically, with `\\n` line ends on every system."""
    with atomic_write(path) as stream:
        stream.write(text.encode())


def cache_folder() -> Path:
    """Where Deixis keeps what it can compute again: `$DEIXIS_CACHE`, or the user's cache folder."""
    chosen = os.environ.get("DEIXIS_CACHE")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("deixis", appauthor=False))


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system lets a folder be synced."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
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
    with taken(path) as ours:
        if ours:
            yield
            return
    warnings.warn(f"waiting for another process that makes {folder}", stacklevel=3)
    with taken(path, wait=True):
        yield
