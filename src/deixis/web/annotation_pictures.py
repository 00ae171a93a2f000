"""Pictures of a project for the browser. They are looked up by image record, never by a path from a request."""

from __future__ import annotations

import io
from typing import NamedTuple

from sqlalchemy import Engine

from deixis.annotation.project import project_pictures
from deixis.corpus import Image
from deixis.corpus.pictures import Pictures
from deixis.vision.reading import decode_picture, read_size
from deixis.web.shelf import Shelf

#: First bytes of the formats that every browser shows. Other formats are sent as PNG.
_BROWSER_FORMATS = ((b"\xff\xd8\xff", "image/jpeg"), (b"\x89PNG\r\n\x1a\n", "image/png"))
#: Longest side of a thumbnail, in pixels, and the size of their cache in bytes.
THUMBNAIL_SIDE = 320
THUMBNAIL_BYTES = 32 << 20
#: Size of the picture cache in bytes. The tasks of one picture follow each other, for several workers.
CACHE_BYTES = 64 << 20


class BrowserPicture(NamedTuple):
    """An encoded picture, its media type, and the size in pixels to which box coordinates refer."""

    data: bytes
    media_type: str
    width: int
    height: int


class PictureShelf:
    """Reads and caches the pictures of a project's corpora. Raises an error at once if a corpus has no pictures."""

    def __init__(self, engine: Engine, *, known: bool) -> None:
        self._pictures: dict[bool, Pictures] = {False: project_pictures(engine)}
        if known:
            self._pictures[True] = project_pictures(engine, known=True)
        self._cache: Shelf[tuple[bool, str], BrowserPicture] = Shelf(CACHE_BYTES, lambda shown: len(shown.data))

        self._thumbnails: Shelf[str, bytes] = Shelf(THUMBNAIL_BYTES, len)

    def thumbnail(self, image: Image) -> bytes:
        """A small JPEG of an image to be annotated. Raises `InputError` if it cannot be read."""
        return self._thumbnails.get(image.id, lambda: _shrink(image, self._pictures[False].read(image)))

    def get(self, image: Image, known: bool = False) -> BrowserPicture:
        """The picture of an image. Raises `InputError` if it cannot be read."""
        return self._cache.get((known, image.id), lambda: _encode_for_browser(image, self._pictures[known].read(image)))


def _shrink(image: Image, data: bytes) -> bytes:
    picture = decode_picture(data, name=image.file or image.id, at_least=THUMBNAIL_SIDE)
    picture.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


def _encode_for_browser(image: Image, data: bytes) -> BrowserPicture:
    name = image.file or image.id
    width, height = read_size(data, name=name)
    # The file may be a smaller copy. Boxes refer to the original, whose size is in the image record.
    size = (image.width, image.height) if image.width and image.height else (width, height)
    media_type = next((kind for start, kind in _BROWSER_FORMATS if data.startswith(start)), None)
    if media_type is None:
        buffer = io.BytesIO()
        decode_picture(data, name=name).save(buffer, "PNG")
        data, media_type = buffer.getvalue(), "image/png"
    return BrowserPicture(data, media_type, *size)
