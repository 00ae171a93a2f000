"""Safe reading of picture files."""

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
    """Size and times of a file, to detect changes. `changed` is the ctime, which programs cannot set."""

    size: int
    modified: int
    changed: int


#: The stamp of a file that must be read again.
NEVER = Stamp(-1, 0, 0)


def stamp_of(status: os.stat_result) -> Stamp:
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read_file(path: bytes) -> tuple[bytes, Stamp]:
    """The bytes of a regular file and its stamp, `NEVER` if it changed while it was read.

    Symbolic links are not followed. Anything but a regular file is an `InputError`.
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
    """Decode a picture file named by the user; links are followed (`deixis.vision.reading.decode_picture`)."""
    data, name = read_named_file(path)
    return decode_picture(data, name=name, at_least=at_least)


def read_named_file(path: str | Path) -> tuple[bytes, str]:
    """The bytes of a file named by the user, and its name for messages; links are followed."""
    name = os.fsencode(path)
    data, _ = read_file(os.path.realpath(name))
    return data, shown(name)


def as_picture(picture: str | Path | Picture, *, at_least: int = 0) -> Picture:
    """The picture itself, or that of a path."""
    return read_picture_file(picture, at_least=at_least) if isinstance(picture, str | Path) else picture


def shown(path: bytes) -> str:
    """A path as text for messages and JSON: bytes that are not UTF-8 as `\\xff`, line breaks unchanged."""
    return path.decode(errors="backslashreplace")
