"""RAW files of cameras, by rawpy (LibRaw).

Cameras store a JPEG preview in them, which is read where it is large enough; else the sensor's pixels are developed at
half their size. Either way, that is the picture, and its size is the picture's size.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from PIL import Image as Pillow

from deixis.errors import InputError
from deixis.vision.picture_formats import RAW_REMEDY, reads_raw

if TYPE_CHECKING:
    import rawpy

#: The longer side from which on a preview is good enough.
PREVIEW_SIDE = 1000
#: LibRaw's codes for how a picture must be turned.
_TURNS = {3: Pillow.Transpose.ROTATE_180, 5: Pillow.Transpose.ROTATE_90, 6: Pillow.Transpose.ROTATE_270}


def raw_preview(data: bytes, name: str) -> tuple[bytes, int] | None:
    """The JPEG preview and how LibRaw says that pictures of this file are turned; None where there is no large one."""
    import rawpy

    with _opened(data, name) as raw:
        try:
            preview = raw.extract_thumb()
        except (rawpy.LibRawNoThumbnailError, rawpy.LibRawUnsupportedThumbnailError):
            return None
        if preview.format != rawpy.ThumbFormat.JPEG:
            return None
        jpeg = bytes(preview.data)
        with Pillow.open(io.BytesIO(jpeg), formats=("JPEG",)) as opened:
            large = max(opened.size) >= PREVIEW_SIDE
        return (jpeg, int(raw.sizes.flip)) if large else None


def turned(picture: Pillow.Image, flip: int) -> Pillow.Image:
    """A preview without an orientation of its own, upright."""
    return picture.transpose(_TURNS[flip]) if flip in _TURNS else picture


def half_size(data: bytes, name: str) -> tuple[int, int]:
    """Width and height of `developed`."""
    with _opened(data, name) as raw:
        width, height = raw.sizes.iwidth // 2, raw.sizes.iheight // 2
        return (height, width) if raw.sizes.flip in (5, 6) else (width, height)


def developed(data: bytes, name: str, max_pixels: int) -> Pillow.Image:
    """The sensor's pixels, two by two, with the camera's white balance; upright."""
    with _opened(data, name) as raw:
        width, height = raw.sizes.raw_width, raw.sizes.raw_height
        if width * height > max_pixels:
            raise InputError(name, f"has {width} × {height} pixels, more than the {max_pixels:,} that are read")
        return Pillow.fromarray(raw.postprocess(half_size=True, use_camera_wb=True, output_bps=8))


@contextmanager
def _opened(data: bytes, name: str) -> Iterator[rawpy.RawPy]:
    if not reads_raw():
        raise InputError(name, f"is a RAW file; to read it: {RAW_REMEDY}")
    import rawpy

    opened: Any = rawpy.imread(io.BytesIO(data))
    with opened as raw:
        yield raw
