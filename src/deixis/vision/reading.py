"""Safe reading of pictures from bytes: whatever a file holds, the outcome is an RGB picture or an `InputError`.

The pixel cap is checked from the header, before anything is decoded. A run over many pictures goes on past a broken
one and lists it (`Skipped`).
"""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from PIL import Image as Pillow
from PIL import UnidentifiedImageError

from deixis.corpus import Corpus, Image
from deixis.errors import DeixisError, InputError

#: The only decoders that strangers' bytes reach.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
#: More pixels are refused. A photo of 108 megapixels passes (0.35 GB once decoded); Pillow itself ends at 179.
MAX_PIXELS = 120_000_000

_EXIF_ORIENTATION = 0x0112
#: EXIF orientation → what sets the picture upright.
_TURNS = {
    2: Pillow.Transpose.FLIP_LEFT_RIGHT,
    3: Pillow.Transpose.ROTATE_180,
    4: Pillow.Transpose.FLIP_TOP_BOTTOM,
    5: Pillow.Transpose.TRANSPOSE,
    6: Pillow.Transpose.ROTATE_270,
    7: Pillow.Transpose.TRANSVERSE,
    8: Pillow.Transpose.ROTATE_90,
}
#: Silencing warnings changes the whole process, so headers are read one at a time (microseconds each).
_header_lock = threading.Lock()


def decode_picture(data: bytes, *, name: str, max_pixels: int = MAX_PIXELS, at_least: int = 0) -> Pillow.Image:
    """The picture as RGB: upright (EXIF orientation applied), over white where transparent, its first frame.

    Args:
        data: the whole file.
        name: what the error calls it.
        max_pixels: refuse larger pictures before decoding.
        at_least: where given, a JPEG may come at 1/2, 1/4 or 1/8 of its size as long as its shorter side keeps this
            many pixels: several times faster for large photos and small networks.

    Raises:
        InputError: the bytes are no picture of a known format, are damaged or cut off, or it is too large.
    """
    with _as_input_error(name):
        image, orientation = _open(data)
        if image.width * image.height > max_pixels:
            raise InputError(
                name, f"has {image.width} × {image.height} pixels, more than the {max_pixels:,} that are read"
            )
        if at_least:
            image.draft(None, (at_least, at_least))
        image.load()
        picture = _to_rgb(image)
        return picture.transpose(_TURNS[orientation]) if orientation in _TURNS else picture


def read_size(data: bytes, *, name: str = "picture") -> tuple[int, int]:
    """Width and height as `decode_picture` would give them, from the header alone."""
    with _as_input_error(name):
        image, orientation = _open(data)
        return (image.height, image.width) if orientation >= 5 else image.size


@dataclass
class Skipped:
    """What a run over pictures had to leave out: image id and reason, in the order met."""

    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, image: Image, fault: DeixisError) -> None:
        self.reasons[image.id] = str(fault)

    def __len__(self) -> int:
        return len(self.reasons)

    def __str__(self) -> str:
        noun = "picture" if len(self) == 1 else "pictures"
        return "\n".join([f"{len(self)} {noun} skipped", *(f"  {id}: {why}" for id, why in self.reasons.items())])


def read_picture(corpus: Corpus, image: Image, *, at_least: int = 0) -> Pillow.Image:
    """The picture of one image of a corpus, decoded; an `InputError` where it is missing or broken."""
    if corpus.pictures is None:
        raise DeixisError(f"corpus {corpus.name or '(unnamed)'} has no pictures")
    return decode_picture(corpus.pictures.read(image), name=image.file or image.id, at_least=at_least)


def iterate_pictures(
    corpus: Corpus, images: Iterable[Image], skipped: Skipped, *, at_least: int = 0
) -> Iterator[tuple[Image, Pillow.Image]]:
    """Each image with its decoded picture; those that cannot be read are noted in `skipped` and passed over."""
    for image in images:
        try:
            picture = read_picture(corpus, image, at_least=at_least)
        except InputError as fault:
            skipped.add(image, fault)
        else:
            yield image, picture


@contextmanager
def _as_input_error(name: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Pillow.DecompressionBombError:
        raise InputError(name, "has more pixels than can be read") from None
    except UnidentifiedImageError:
        raise InputError(name, f"is not a picture in a known format ({', '.join(FORMATS)}), or is damaged") from None
    except MemoryError:
        raise InputError(name, "does not fit into memory once decoded") from None
    # Decoders meet strangers' bytes with struct.error, SyntaxError, IndexError, zlib.error and more.
    except Exception as fault:
        raise InputError(name, f"is damaged or cut off ({fault or type(fault).__name__})") from None


def _open(data: bytes) -> tuple[Pillow.Image, int]:
    """The picture with nothing decoded yet, and its EXIF orientation (1–8)."""
    with _header_lock, warnings.catch_warnings():
        # Odd metadata, and pictures that are large but within our cap, are no news to anybody.
        warnings.simplefilter("ignore")
        image = Pillow.open(io.BytesIO(data), formats=FORMATS)
        # Pillow itself turns a TIFF, and gives its upright size from the start.
        return image, 1 if image.format == "TIFF" else _orientation(image)


def _orientation(image: Pillow.Image) -> int:
    try:
        orientation = image.getexif().get(_EXIF_ORIENTATION, 1)
    except Exception:  # Damaged metadata does not make a picture unreadable.
        return 1
    return orientation if orientation in _TURNS else 1


def _to_rgb(image: Pillow.Image) -> Pillow.Image:
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    if image.mode == "F" or image.mode.startswith("I"):
        return _from_deep_grey(image).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        white = Pillow.new("RGBA", layer.size, "white")
        return Pillow.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")


def _from_deep_grey(image: Pillow.Image) -> Pillow.Image:
    """16-bit grey runs from 0 to 65,535; 32-bit and floating point, which define no white, from darkest to lightest."""
    if image.mode.startswith("I;16"):
        # By a table: as floats, a large picture would take twenty times its bytes.
        return Pillow.fromarray(np.rint(np.arange(65536) / 257).astype(np.uint8)[np.asarray(image)])
    values = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0.0, neginf=0.0)
    black, white = values.min(), values.max()
    scaled = (values - black) / ((white - black) or 1.0) * 255
    return Pillow.fromarray(np.rint(scaled).astype(np.uint8))
