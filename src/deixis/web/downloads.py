"""Several originals in one ZIP file, written while it is sent: no more than a part of a picture is in memory.

A selection is kept under a name that nobody guesses, so that a browser can fetch it as a file.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import zipfile
from collections.abc import Iterator, Sequence
from threading import BoundedSemaphore

from deixis.search.collection import Collection
from deixis.vision.picture_files import shown
from deixis.web.indexed_pictures import NoPicture, open_original, picture_of
from deixis.web.search_desk import Busy
from deixis.web.shelf import Shelf

#: Selections that are kept, and ZIP files that are sent at a time.
KEPT, SENT = 64, 4
#: The file in a ZIP that lists what could not be put in.
MISSING = "not included.txt"


class Downloads:
    """The selections of a server."""

    def __init__(self) -> None:
        self._kept: Shelf[str, tuple[str, ...]] = Shelf(KEPT)
        self._room = BoundedSemaphore(SENT)

    def keep(self, keys: Sequence[str]) -> str:
        """Keep a selection of pictures; the name it goes by."""
        name = secrets.token_urlsafe(24)
        self._kept.put(name, tuple(dict.fromkeys(keys)))
        return name

    def find(self, name: str) -> tuple[str, ...]:
        keys = self._kept.find(name)
        if keys is None:
            raise NoPicture("this download is over; select the pictures again")
        return keys

    def begin(self) -> None:
        """Take one of the places for those who fetch; `end` gives it back."""
        if not self._room.acquire(blocking=False):
            raise Busy("too many downloads at once; try again in a moment")

    def end(self) -> None:
        self._room.release()


def zipped(collection: Collection, keys: Sequence[str]) -> Iterator[bytes]:
    """A ZIP file of originals in parts; pictures that are gone or have changed are listed in it."""
    written, missing, names = _Written(), list[str](), set[str]()
    with zipfile.ZipFile(written, "w") as archive:
        for key in keys:
            try:
                original = open_original(collection, key)
            except NoPicture:
                missing.append(_path_of(collection, key))
                continue
            with original.stream:
                info = zipfile.ZipInfo(_free(file_name(original.path), names), _moment(collection, key))
                info.external_attr = 0o644 << 16
                with archive.open(info, "w") as member:
                    for part in original.parts():
                        member.write(part)
                        yield written.take()
            yield written.take()
        if missing:
            archive.writestr(_free(MISSING, names), "Gone or changed since they were indexed:\n" + "\n".join(missing))
    yield written.take()


def file_name(path: bytes) -> str:
    """The name of a file that every system can have."""
    name = re.sub(r'[\x00-\x1f\x7f/\\:*?"<>|]', "_", shown(os.path.basename(path))).strip(" .")
    return name or "picture"


def _free(name: str, taken: set[str]) -> str:
    """The name, with a number where another file has it already."""
    stem, suffix = os.path.splitext(name)
    free, number = name, 2
    while free.lower() in taken:
        free, number = f"{stem} ({number}){suffix}", number + 1
    taken.add(free.lower())
    return free


def _path_of(collection: Collection, key: str) -> str:
    try:
        return shown(collection.paths(picture_of(collection, key))[0])
    except (NoPicture, IndexError):
        return f"a picture that is not in the index any more ({key})"


def _moment(collection: Collection, key: str) -> tuple[int, int, int, int, int, int]:
    """When a picture was taken, as ZIP files have it: from 1980 on."""
    date = collection.date(picture_of(collection, key))
    year, month, day, hour, minute, second = map(int, re.findall(r"\d+", date or "1980-01-01T00:00:00"))
    return (year, month, day, hour, minute, second) if 1980 <= year <= 2107 else (1980, 1, 1, 0, 0, 0)


class _Written(io.RawIOBase):
    """A file that hands on what was written to it."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        part = bytes(data)  # type: ignore[call-overload]
        self._parts.append(part)
        return len(part)

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)
