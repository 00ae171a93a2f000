"""Pictures of a project as a browser can show them, found by the image's record and by nothing that a request says."""

from __future__ import annotations

import io
from typing import NamedTuple

from sqlalchemy import Engine

from deixis.annotation.project_pictures import project_pictures
from deixis.corpus import Image
from deixis.corpus.pictures import Pictures
from deixis.vision.reading import decode_picture, read_size
from deixis.web.shelf import Shelf

#: Formats by their first bytes that every browser shows; others are sent as PNG.
_SHOWN = ((b"\xff\xd8\xff", "image/jpeg"), (b"\x89PNG\r\n\x1a\n", "image/png"))
#: Bytes of pictures kept in memory: the tasks of one picture come in a row, to several workers.
KEPT_BYTES = 64 << 20


class Shown(NamedTuple):
    """An encoded picture, its media type, and the size in whose pixels boxes are drawn."""

    data: bytes
    media_type: str
    width: int
    height: int


class PictureShelf:
    """Reads pictures of the corpora a project was made of; where it has none, that is told at once."""

    def __init__(self, engine: Engine, *, known: bool) -> None:
        self._places: dict[bool, Pictures] = {False: project_pictures(engine)}
        if known:
            self._places[True] = project_pictures(engine, known=True)
        self._kept: Shelf[tuple[bool, str], Shown] = Shelf(KEPT_BYTES, lambda shown: len(shown.data))

    def get(self, image: Image, known: bool = False) -> Shown:
        """The picture of an image, or an `InputError` that says what is wrong with it."""
        return self._kept.get((known, image.id), lambda: _shown(image, self._places[known].read(image)))


def _shown(image: Image, data: bytes) -> Shown:
    name = image.file or image.id
    width, height = read_size(data, name=name)
    # A corpus may hold smaller copies: boxes are in the pixels of the original, whose size its record tells.
    size = (image.width, image.height) if image.width and image.height else (width, height)
    media_type = next((kind for start, kind in _SHOWN if data.startswith(start)), None)
    if media_type is None:
        buffer = io.BytesIO()
        decode_picture(data, name=name).save(buffer, "PNG")
        data, media_type = buffer.getvalue(), "image/png"
    return Shown(data, media_type, *size)
