"""Finding picture files in folders that may hold anything.

Names are bytes, as the system has them: they need not be UTF-8. Links are not followed, so nothing is met twice and no
loop has an end to wait for; they are counted, and told. Hidden files and folders are left out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from deixis.corpus.pictures import PICTURE_SUFFIXES
from deixis.vision.picture_files import Stamp, stamp_of

if TYPE_CHECKING:
    pass

_SUFFIXES = frozenset(map(os.fsencode, PICTURE_SUFFIXES))


class Found(NamedTuple):
    path: bytes
    stamp: Stamp


class Walk:
    """One walk through a folder; what was met beside picture files is told when it is over."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        #: Path → reason, of what has a picture's name and is no file, and of folders that cannot be listed.
        self.problems: dict[bytes, str] = {}
        #: Folders that could not be listed: nothing is known of what is in them.
        self.closed: list[bytes] = []
        self.links = 0

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
                if entry.name.startswith(b"."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    if _is_named_picture(entry.name):
                        self.problems[entry.path] = "is a folder"
                elif entry.is_symlink():
                    self.links += 1
                elif _is_named_picture(entry.name):
                    found = self._found(entry)
                    if found is not None:
                        yield found

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


def _is_named_picture(name: bytes) -> bool:
    return os.path.splitext(name)[1].lower() in _SUFFIXES
