"""Pictures of an index for a browser: shrunken copies, and only of bytes that were indexed.

A picture is found by its key. Its file must lie, with all links resolved, in a folder that was indexed, and still hold
what it held then: whatever was put in its place is shown to nobody. What a browser gets is drawn anew from the pixels,
upright and without metadata.
"""

from __future__ import annotations

import hashlib
import io
import os
from typing import Literal, NamedTuple

from PIL import Image as Pillow

from deixis.errors import DeixisError, InputError
from deixis.search.collection import Collection
from deixis.search.walking import is_under
from deixis.vision.picture_files import read_file, shown
from deixis.vision.reading import decode_picture, read_size
from deixis.web.shelf import Shelf

Size = Literal["thumbnail", "screen"]
#: Pixels of the longer side at most.
SIDES: dict[Size, int] = {"thumbnail": 400, "screen": 1600}
QUALITY = 85
#: Bytes of shrunken pictures kept in memory: some five thousand thumbnails.
KEPT_BYTES = 128 << 20


class NoPicture(DeixisError):
    """There is no such picture, or not any more."""


class PictureFile(NamedTuple):
    """An indexed picture's file: its path for people, and its bytes."""

    path: str
    data: bytes


class IndexedPictures:
    """The pictures of whichever collection is handed in, by key."""

    def __init__(self) -> None:
        self._kept: Shelf[tuple[str, Size], bytes] = Shelf(KEPT_BYTES, len)

    def kept(self, key: str, size: Size) -> bytes | None:
        """What `shrunken` gives, if it is at hand."""
        return self._kept.find((key, size))

    def shrunken(self, collection: Collection, key: str, size: Size) -> bytes:
        """A picture as a JPEG of that size at most."""
        return self._kept.get((key, size), lambda: _shrink(picture_file(collection, key), SIDES[size]))


def picture_of(collection: Collection, key: str) -> int:
    """The number of a picture in a collection."""
    picture = collection.find(key)
    if picture is None:
        raise NoPicture("there is no such picture in the index")
    return picture


def picture_file(collection: Collection, key: str) -> PictureFile:
    """The first of a picture's files that is still what was indexed."""
    roots = [os.path.realpath(root) for root in collection.roots]
    for path in collection.paths(picture_of(collection, key)):
        real = os.path.realpath(path)
        if not any(is_under(real, root) for root in roots):
            continue
        try:
            data, _ = read_file(real)
        except InputError:
            continue
        if hashlib.sha256(data).hexdigest().startswith(key):
            return PictureFile(shown(path), data)
    raise NoPicture("this picture is gone or has changed since it was indexed; index again: deixis index")


def size_of(file: PictureFile) -> tuple[int, int]:
    """Width and height, upright, of the picture as it is on the disk."""
    return read_size(file.data, name=file.path)


def _shrink(file: PictureFile, side: int) -> bytes:
    width, height = size_of(file)
    # A JPEG may come shrunken from its decoder, if not below what is wanted.
    at_least = side * min(width, height) // max(width, height) if max(width, height) > side else 0
    picture = decode_picture(file.data, name=file.path, at_least=at_least)
    picture.thumbnail((side, side), Pillow.Resampling.LANCZOS, reducing_gap=3.0)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=QUALITY, progressive=True)
    return buffer.getvalue()
