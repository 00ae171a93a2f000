"""Pictures of an index for a browser: shrunken copies, and only of bytes that were indexed.

A picture is found by its key. With all links resolved, its file must be in an indexed folder, and its contents must
be the indexed ones: a file that replaced it is not shown. Pages show copies drawn from the pixels, upright and without
metadata; only a request for the original returns the file itself.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from io import BufferedReader
from typing import Literal, NamedTuple

from PIL import Image as Pillow

from deixis.corpus.pictures import PICTURE_LIMIT
from deixis.errors import DeixisError, InputError
from deixis.files import open_regular
from deixis.search.collection import Collection
from deixis.search.filters import Filter
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
#: Bytes of an original that are read at a time.
PART_BYTES = 1 << 20
GONE = "this picture is gone or has changed since it was indexed; index again: deixis index"


class NoPicture(DeixisError):
    """There is no such picture, or not any more."""


class ListedPicture(NamedTuple):
    """A picture of a list: its key, a file, when it was taken, and its size, 0 × 0 where that is not known."""

    key: str
    path: str
    date: str
    width: int
    height: int


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


def listed_picture(collection: Collection, picture: int, only: Filter) -> ListedPicture | None:
    """A picture for a list, with the first of its files that passes the filter; None if it is gone."""
    key, paths = collection.key(picture), [path for path in collection.paths(picture) if only.passes_path(path)]
    if not key or not paths:
        return None
    width, height, taken, _ = collection.details(picture)
    return ListedPicture(key, shown(paths[0]), taken or collection.date(picture), width, height)


def picture_file(collection: Collection, key: str) -> PictureFile:
    """The first of a picture's files that is still what was indexed."""
    for path, real in _places(collection, key):
        try:
            data, _ = read_file(real)
        except InputError:
            continue
        if hashlib.sha256(data).hexdigest().startswith(key):
            return PictureFile(shown(path), data)
    raise NoPicture(GONE)


class Original(NamedTuple):
    """The file of a picture, opened at its beginning; whoever asked for it closes it."""

    path: bytes
    size: int
    stream: BufferedReader

    def parts(self) -> Iterator[bytes]:
        """Its bytes, a part at a time, and no more than there were when it was opened."""
        left = self.size
        while left > 0 and (part := self.stream.read(min(PART_BYTES, left))):
            left -= len(part)
            yield part


def open_original(collection: Collection, key: str) -> Original:
    """The same as `picture_file` without holding its bytes in memory."""
    for path, real in _places(collection, key):
        try:
            stream = open_regular(real, follow_links=False)
        except InputError:
            continue
        try:
            size = os.fstat(stream.fileno()).st_size
            if size <= PICTURE_LIMIT and hashlib.file_digest(stream, "sha256").hexdigest().startswith(key):
                stream.seek(0)
                return Original(path, size, stream)
        except OSError:
            pass
        stream.close()
    raise NoPicture(GONE)


def _places(collection: Collection, key: str) -> Iterator[tuple[bytes, bytes]]:
    """The paths of a picture's files in indexed folders, and the same with links resolved."""
    roots = [os.path.realpath(root) for root in collection.roots]
    for path in collection.paths(picture_of(collection, key)):
        real = os.path.realpath(path)
        if any(is_under(real, root) for root in roots):
            yield path, real


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
