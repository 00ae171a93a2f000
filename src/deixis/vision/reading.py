"""Safe reading of pictures from bytes: whatever a file holds, the outcome is an RGB picture or an `InputError`.

Pixels, and what decoding would cost in time and memory, are checked before anything is decoded (`headers`); where only
decoding shows the cost, it is done in another process (`decoding_process`). A run over many pictures goes on past a
broken one and lists it (`Skipped`).
"""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache

import numpy as np
from PIL import Image as Pillow
from PIL import UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from deixis.corpus import Corpus, Image
from deixis.errors import DeixisError, InputError
from deixis.vision.decoding_process import LARGE_PIXELS, Header, decode_apart, header_apart, large_lock
from deixis.vision.headers import decoding_problem
from deixis.vision.picture_formats import is_raw, reads_raw
from deixis.vision.raw_pictures import developed, half_size, raw_preview, turned

#: The only decoders that strangers' bytes reach.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF", "HEIF")
#: More pixels are refused. A photo of 108 megapixels passes (0.43 GB once decoded); Pillow itself ends at 179.
MAX_PIXELS = 120_000_000
#: Pixels that are converted to RGB at a time, so that only the picture and its RGB copy are held whole.
BAND_PIXELS = 1 << 20

_EXIF_ORIENTATION, _EXIF_IFD, _EXIF_TAKEN = 0x0112, 0x8769, 0x9003
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
        InputError: there are no bytes, they are no picture of a known format, damaged or cut off, or it is too large or
            takes too long to decode.
    """
    if not data:
        raise InputError(name, "is empty")
    if _is_decoded_apart(data, name):
        return decode_apart(data, name, max_pixels, at_least)
    return decode_here(data, name, max_pixels, at_least)


def decode_here(data: bytes, name: str, max_pixels: int, at_least: int) -> Pillow.Image:
    """`decode_picture` in this process, whatever the format."""
    with _as_input_error(name):
        if is_raw(name):
            return _decode_raw(data, name, max_pixels, at_least)
        image, orientation = _open(data, name, max_pixels)
        if image.width * image.height > max_pixels:
            raise InputError(
                name, f"has {image.width} × {image.height} pixels, more than the {max_pixels:,} that are read"
            )
        if at_least:
            image.draft(None, (at_least, at_least))
        if isinstance(image, TiffImageFile):
            with _quietly():
                # Of a TIFF, Pillow warns here, and not again once there is memory for it.
                image.load_prepare()
        with large_lock if image.width * image.height > LARGE_PIXELS else nullcontext():
            size = image.size
            image.load()
            if image.size != size and image.format == "HEIF":
                raise InputError(name, f"is damaged: its header says {size}, and its picture has {image.size} pixels")
            image = _to_rgb(image)
            return image.transpose(_TURNS[orientation]) if orientation in _TURNS else image


def read_header(data: bytes, *, name: str = "picture") -> Header:
    """Size and time of a picture, as `decode_picture` would give it; nothing of it is decoded."""
    return header_apart(data, name, MAX_PIXELS) if _is_decoded_apart(data, name) else header_here(data, name)


def read_size(data: bytes, *, name: str = "picture") -> tuple[int, int]:
    """Width and height of a picture, upright, from its header."""
    header = read_header(data, name=name)
    return header.width, header.height


def header_here(data: bytes, name: str) -> Header:
    """`read_header` in this process, whatever the format."""
    with _as_input_error(name):
        if is_raw(name):
            return _raw_header(data, name)
        image, orientation = _open(data, name, MAX_PIXELS)
        width, height = (image.height, image.width) if orientation >= 5 else image.size
        return Header(width, height, _taken(image))


def _is_decoded_apart(data: bytes, name: str) -> bool:
    return reads_raw() if is_raw(name) else data[4:8] == b"ftyp"


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
        # LibRaw's faults are bytes.
        problem = fault.args[0].decode(errors="replace") if fault.args and isinstance(fault.args[0], bytes) else fault
        raise InputError(name, f"is damaged or cut off ({problem or type(fault).__name__})") from None


@contextmanager
def _quietly() -> Iterator[None]:
    """Odd metadata, and pictures that are large but within our cap, are not worth a warning."""
    with _header_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _open(data: bytes, name: str, max_pixels: int) -> tuple[Pillow.Image, int]:
    """The picture with nothing decoded yet, and its EXIF orientation (1–8)."""
    if problem := decoding_problem(data, max_pixels):
        raise InputError(name, problem)
    formats: tuple[str, ...] = FORMATS
    if data[4:8] == b"ftyp":
        _register_heif()
    else:
        # Pillow knows this format only once it is registered.
        formats = tuple(picture_format for picture_format in FORMATS if picture_format != "HEIF")
    with _quietly():
        image = Pillow.open(io.BytesIO(data), formats=formats)
        # Pillow itself turns a TIFF, and gives its upright size from the start.
        return image, 1 if image.format == "TIFF" else _orientation(image)


@cache
def _register_heif() -> None:
    """Teach Pillow to read HEIF, the format of iPhones."""
    from pillow_heif import register_heif_opener

    register_heif_opener(thumbnails=False)


def _decode_raw(data: bytes, name: str, max_pixels: int, at_least: int) -> Pillow.Image:
    """The preview of a camera's RAW file, or its developed pixels."""
    preview = raw_preview(data, name)
    if preview is None:
        return developed(data, name, max_pixels)
    jpeg, flip = preview
    image, orientation = _open(jpeg, name, max_pixels)
    # Some cameras turn the preview, some note its orientation in it, and some only in the file around it.
    picture = decode_picture(jpeg, name="preview", max_pixels=max_pixels, at_least=at_least)
    return picture if orientation > 1 or image.height > image.width else turned(picture, flip)


def _raw_header(data: bytes, name: str) -> Header:
    preview = raw_preview(data, name)
    if preview is None:
        return Header(*half_size(data, name), "")
    jpeg, flip = preview
    image, orientation = _open(jpeg, name, MAX_PIXELS)
    sideways = orientation >= 5 or (orientation == 1 and image.height <= image.width and flip in (5, 6))
    width, height = (image.height, image.width) if sideways else image.size
    return Header(width, height, _taken(image))


def _orientation(image: Pillow.Image) -> int:
    try:
        orientation = image.getexif().get(_EXIF_ORIENTATION, 1)
    except Exception:  # Damaged metadata does not make a picture unreadable.
        return 1
    return orientation if orientation in _TURNS else 1


def _taken(image: Pillow.Image) -> str:
    try:
        with _quietly():
            noted = str(image.getexif().get_ifd(_EXIF_IFD).get(_EXIF_TAKEN, ""))
        time = datetime.strptime(noted.strip("\0 "), "%Y:%m:%d %H:%M:%S")
    except Exception:  # Damaged metadata does not make a picture unreadable, and cameras without a clock write zeros.
        return ""
    return time.isoformat()


def _to_rgb(image: Pillow.Image) -> Pillow.Image:
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    if image.mode.startswith("I;16"):
        return _in_bands(image, _from_16_bits)
    if image.mode in ("F", "I"):
        return _from_deep_grey(image)
    return _in_bands(image, _over_white if image.has_transparency_data else lambda band: band.convert("RGB"))


def _in_bands(image: Pillow.Image, convert: Callable[[Pillow.Image], Pillow.Image]) -> Pillow.Image:
    """What `convert` makes of a picture, a few rows or columns at a time."""
    if image.width * image.height <= BAND_PIXELS:
        return convert(image)
    picture = Pillow.new("RGB", image.size)
    for box in _bands(image):
        picture.paste(convert(image.crop(box)), box[:2])
    return picture


def _bands(image: Pillow.Image) -> Iterator[tuple[int, int, int, int]]:
    """Boxes of at most `BAND_PIXELS` that cover a picture, cut across its longer side."""
    width, height = image.size
    if height >= width:
        step = max(1, BAND_PIXELS // width)
        yield from ((0, top, width, min(top + step, height)) for top in range(0, height, step))
    else:
        step = max(1, BAND_PIXELS // height)
        yield from ((left, 0, min(left + step, width), height) for left in range(0, width, step))


def _over_white(image: Pillow.Image) -> Pillow.Image:
    layer = image.convert("RGBA")
    return Pillow.alpha_composite(Pillow.new("RGBA", layer.size, "white"), layer).convert("RGB")


def _from_16_bits(image: Pillow.Image) -> Pillow.Image:
    """16-bit grey runs from 0 to 65,535."""
    table = np.rint(np.arange(65536) / 257).astype(np.uint8)
    return Pillow.fromarray(table[np.asarray(image)]).convert("RGB")


def _from_deep_grey(image: Pillow.Image) -> Pillow.Image:
    """32-bit and floating-point grey, which define no white: from darkest to lightest."""

    def values(band: Pillow.Image) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        return np.nan_to_num(np.asarray(band, dtype=np.float64), posinf=0.0, neginf=0.0)

    def scaled(band: Pillow.Image) -> Pillow.Image:
        levels = (values(band) - black) / ((white - black) or 1.0) * 255
        return Pillow.fromarray(np.rint(levels).astype(np.uint8)).convert("RGB")

    limits = [(float(part.min()), float(part.max())) for box in _bands(image) for part in [values(image.crop(box))]]
    black, white = min(low for low, _ in limits), max(high for _, high in limits)
    return _in_bands(image, scaled)
