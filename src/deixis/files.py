"""Files on disk: atomic writes and the cache folder. A crash never leaves half a file that looks whole."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def atomic_write(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a binary file that appears under `path` only when the block ends well.

    The bytes go to a temporary name in the same folder, are synced, then renamed over `path`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name[:80]}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes files that only the owner reads; a result is an ordinary file.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
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


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system lets a folder be synced."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
