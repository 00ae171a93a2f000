"""Picture files that a person names, read safely."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from deixis.corpus.pictures import PICTURE_LIMIT
from deixis.errors import InputError
from deixis.files import open_regular
from deixis.vision.reading import decode_picture

if TYPE_CHECKING:
    from PIL.Image import Image as Picture


class Stamp(NamedTuple):
    """What changes when a file does: bytes, nanoseconds. `changed` is the inode's own time, which no program sets."""

    size: int
    modified: int
    changed: int


#: Of a file that must be looked at again.
NEVER = Stamp(-1, 0, 0)


def stamp_of(status: os.stat_result) -> Stamp:
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read_file(path: bytes) -> tuple[bytes, Stamp]:
    """The bytes of a regular file and its stamp, `NEVER` where it changed meanwhile; else an `InputError`.

    Links are not followed: one put in a file's place would lead elsewhere.
    """
    try:
        with open_regular(path, follow_links=False) as stream:
            status = os.fstat(stream.fileno())
            if status.st_size > PICTURE_LIMIT:
                raise InputError(shown(path), f"is larger than {PICTURE_LIMIT:,} bytes")
            data = stream.read(PICTURE_LIMIT + 1)
            same = stamp_of(os.fstat(stream.fileno())) == stamp_of(status)
    except OSError as fault:
        raise InputError(shown(path), fault.strerror or str(fault)) from None
    return data, stamp_of(status) if same else NEVER


def read_picture_file(path: str | Path, *, at_least: int = 0) -> Picture:
    """The picture of a file that a person names, whose links are followed (`deixis.vision.reading.decode_picture`)."""
    data, name = read_named_file(path)
    return decode_picture(data, name=name, at_least=at_least)


def read_named_file(path: str | Path) -> tuple[bytes, str]:
    """The bytes of a file that a person names, whose links are followed, and its name for messages."""
    name = os.fsencode(path)
    data, _ = read_file(os.path.realpath(name))
    return data, shown(name)


def as_picture(picture: str | Path | Picture, *, at_least: int = 0) -> Picture:
    """A picture, or what a file that is named holds."""
    return read_picture_file(picture, at_least=at_least) if isinstance(picture, str | Path) else picture


def shown(path: bytes) -> str:
    """A path as text for people and JSON: bytes that are not UTF-8 as `\\xff`, line breaks as they are."""
    return path.decode(errors="backslashreplace")


def printable(text: str) -> str:
    """Text of strangers for a terminal: what would move its cursor or colour it is told by its escape."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
