"""Pictures as phones and cameras write them: HEIC, AVIF, RAW."""

from __future__ import annotations

import io

import pillow_heif
import pytest
from PIL import Image as Pillow

from deixis.errors import InputError
from deixis.vision import picture_formats, raw_pictures, reading
from deixis.vision.picture_formats import is_raw, readable_suffixes
from deixis.vision.reading import decode_picture, read_size
from tests.vision.raw_files import dng

pillow_heif.register_heif_opener()
LEFT, RIGHT = (0, 0, 255), (255, 0, 0)


def picture() -> Pillow.Image:
    drawn = Pillow.new("RGB", (120, 80), RIGHT)
    drawn.paste(LEFT, (0, 0, 60, 80))
    return drawn


@pytest.mark.parametrize("kind", ["AVIF", "HEIF"])
@pytest.mark.parametrize(
    ("orientation", "size", "corner"),
    [(1, (120, 80), LEFT), (3, (120, 80), RIGHT), (6, (80, 120), LEFT), (8, (80, 120), RIGHT)],
)
def test_phone_pictures_come_upright(
    kind: str, orientation: int, size: tuple[int, int], corner: tuple[int, int, int]
) -> None:
    exif, stream = Pillow.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    picture().save(stream, kind, exif=exif.tobytes(), quality=90)
    read = decode_picture(stream.getvalue(), name="a.heic")
    assert read.size == size == read_size(stream.getvalue())
    assert read.mode == "RGB"
    assert read.getpixel((4, 4)) == pytest.approx(corner, abs=12)


@pytest.mark.parametrize("kind", ["AVIF", "HEIF"])
def test_too_many_pixels_are_refused_before_decoding(kind: str) -> None:
    stream = io.BytesIO()
    picture().save(stream, kind)
    with pytest.raises(InputError, match="120 × 80 pixels"):
        decode_picture(stream.getvalue(), name="a.avif", max_pixels=9_000)
    with pytest.raises(InputError):
        decode_picture(stream.getvalue()[:-200], name="a.avif")


def test_a_raw_file_is_its_preview_where_that_is_large() -> None:
    pytest.importorskip("rawpy")
    preview = Pillow.new("RGB", (1200, 800), (10, 200, 10))
    data = dng((64, 48), (200, 40, 40), preview=preview)
    read = decode_picture(data, name="photos/a.DNG")
    assert read.size == (1200, 800) == read_size(data, name="a.dng")
    assert read.getpixel((600, 400)) == pytest.approx((10, 200, 10), abs=4)
    assert decode_picture(data, name="a.dng", at_least=300).size == (600, 400)


def test_a_raw_file_without_a_preview_is_developed_at_half_its_size() -> None:
    pytest.importorskip("rawpy")
    for preview in (None, Pillow.new("RGB", (160, 120), (10, 200, 10))):
        data = dng((64, 48), (200, 40, 40), preview=preview)
        read = decode_picture(data, name="a.dng")
        assert read.size == (32, 24) == read_size(data, name="a.dng")
        red, green, _ = read.getpixel((16, 12))
        assert red > green
    with pytest.raises(InputError, match="64 × 48 pixels"):
        decode_picture(data, name="a.dng", max_pixels=100)
    with pytest.raises(InputError, match=r"\([^']*\)$"):  # LibRaw's message, not the representation of its bytes
        decode_picture(data[:300], name="a.dng")


def test_without_rawpy_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (picture_formats, raw_pictures, reading):
        monkeypatch.setattr(module, "reads_raw", lambda: False)
    assert ".cr2" not in readable_suffixes()
    assert ".heic" in readable_suffixes()
    assert is_raw("photos/IMG_1.CR2")
    with pytest.raises(InputError, match=r"pip install 'deixis\[raw\]'"):
        decode_picture(dng((8, 8), (1, 2, 3)), name="a.dng")
