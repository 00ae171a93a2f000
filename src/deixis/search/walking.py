"""Finding picture files in folders that may contain anything.

Names are bytes, as the system has them: they need not be UTF-8. Links are not followed, so there are no loops and
nothing is found twice; they are counted. Hidden files and folders are skipped, and so is what a pattern excludes. Other
files are skipped for their suffix, and counted by it.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from deixis.errors import DeixisError
from deixis.vision.picture_files import Stamp, stamp_of
from deixis.vision.picture_formats import readable_suffixes

#: Patterns to exclude, and characters of one.
MOST_PATTERNS, LONGEST_PATTERN = 500, 500


class Found(NamedTuple):
    path: bytes
    stamp: Stamp


def check_patterns(patterns: Sequence[str]) -> None:
    """A `DeixisError` for patterns that cannot be remembered, or take minutes to prepare."""
    if len(patterns) > MOST_PATTERNS:
        raise DeixisError(f"there are {len(patterns):,} patterns to exclude; {MOST_PATTERNS:,} are possible")
    if (longest := max(map(len, patterns), default=0)) > LONGEST_PATTERN:
        raise DeixisError(f"a pattern to exclude has {longest:,} characters; {LONGEST_PATTERN:,} are possible")
    for pattern in patterns:
        if not pattern.isascii() and pattern.encode(errors="replace").decode() != pattern:
            raise DeixisError(f"the pattern to exclude {pattern!r} is not UTF-8; write ? for such letters")


class Walk:
    """One walk through a folder. After it, the attributes say what there was beside picture files.

    Args:
        exclude: patterns such as `*.gif` or `thumbnails`: names of files and folders, or paths below the root, in
            upper or lower case.
    """

    def __init__(self, root: bytes, exclude: Sequence[str] = ()) -> None:
        self.root = root
        self._exclude = [os.fsencode(pattern.rstrip("/").lower()) for pattern in exclude]
        self._suffixes = frozenset(map(os.fsencode, readable_suffixes()))
        #: Path → reason, for folders named like a picture, special files, and folders that cannot be listed.
        self.problems: dict[bytes, str] = {}
        #: Folders that could not be listed: nothing is known about what is in them.
        self.closed: list[bytes] = []
        self.links = 0
        #: Files that were skipped for their suffix, by suffix in lower case.
        self.skipped: Counter[bytes] = Counter()

    def __iter__(self) -> Iterator[Found]:
        waiting = [self.root]
        while waiting:
            folder = waiting.pop()
            try:
                with os.scandir(folder) as entries:
                    listed = sorted(entries, key=lambda entry: entry.name)
            except OSError as fault:
                self.problems[folder] = f"the folder cannot be listed ({fault.strerror or fault})"
                self.closed.append(folder)
                continue
            for entry in listed:
                if entry.name.startswith(b".") or self._excludes(entry):
                    continue
                suffix = os.path.splitext(entry.name)[1].lower()
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    if suffix in self._suffixes:
                        self.problems[entry.path] = "is a folder"
                elif entry.is_symlink():
                    self.links += 1
                elif suffix not in self._suffixes:
                    self.skipped[suffix] += 1
                elif (file := self._found(entry)) is not None:
                    yield file

    def _excludes(self, entry: os.DirEntry[bytes]) -> bool:
        if not self._exclude:
            return False
        names = entry.name.lower(), os.path.relpath(entry.path, self.root).lower()
        return any(fnmatchcase(name, pattern) for name in names for pattern in self._exclude)

    def _found(self, entry: os.DirEntry[bytes]) -> Found | None:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError as fault:
            self.problems[entry.path] = fault.strerror or str(fault)
            return None
        if not stat.S_ISREG(status.st_mode):
            self.problems[entry.path] = "is not a regular file"
            return None
        return Found(entry.path, stamp_of(status))


def is_under(path: bytes, folder: bytes) -> bool:
    separator = os.fsencode(os.sep)
    return path.startswith(folder.rstrip(separator) + separator)
