"""Reading pictures: every format and mode gives the right colours; damaged bytes give an InputError, nothing else."""

from __future__ import annotations

import io
import struct
import threading
import zlib

import numpy as np
import pytest
from PIL import Image as Pillow
from pillow_heif import register_heif_opener

from deixis.corpus import Corpus, Image, make_image
from deixis.errors import DeixisError, InputError
from deixis.vision.reading import FORMATS, Skipped, decode_picture, iterate_pictures, read_size

# The tests write HEIF, too; the package registers it when it first reads a picture.
register_heif_opener(thumbnails=False)


def encode(picture: Pillow.Image, format: str, **options: object) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, format, **options)
    return stream.getvalue()


def corner_picture(width: int = 48, height: int = 32) -> Pillow.Image:
    """Red, green, blue and white quarters: every flip and turn of it looks different."""
    pixels = np.full((height, width, 3), 255, np.uint8)
    pixels[: height // 2, : width // 2] = (255, 0, 0)
    pixels[: height // 2, width // 2 :] = (0, 255, 0)
    pixels[height // 2 :, : width // 2] = (0, 0, 255)
    return Pillow.fromarray(pixels)


def difference(picture: Pillow.Image, expected: Pillow.Image) -> float:
    assert picture.mode == "RGB"
    assert picture.size == expected.size
    return float(np.abs(np.asarray(picture, float) - np.asarray(expected.convert("RGB"), float)).mean())


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_is_read(format: str) -> None:
    # Solid quarters survive even JPEG's and GIF's losses.
    data = encode(corner_picture(), format)
    assert difference(decode_picture(data, name="x"), corner_picture()) < 6
    assert read_size(data) == (48, 32)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_sets_pictures_upright(format: str, orientation: int) -> None:
    # How a camera stores an upright picture: 6 means "turn it a quarter clockwise to see it upright", 8 the reverse.
    stored_as = {
        1: lambda p: p,
        2: lambda p: p[:, ::-1],
        3: lambda p: p[::-1, ::-1],
        4: lambda p: p[::-1],
        5: lambda p: p.swapaxes(0, 1),
        6: lambda p: np.rot90(p, 1),
        7: lambda p: p[::-1, ::-1].swapaxes(0, 1),
        8: lambda p: np.rot90(p, -1),
    }
    upright = corner_picture()
    stored = Pillow.fromarray(np.ascontiguousarray(stored_as[orientation](np.asarray(upright))))
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    data = encode(stored, format, exif=exif)
    picture = decode_picture(data, name="x")
    assert difference(picture, upright) < 6
    assert read_size(data) == picture.size == upright.size


def test_cmyk_keeps_its_colours() -> None:
    for format in ("JPEG", "TIFF"):
        picture = decode_picture(encode(corner_picture().convert("CMYK"), format), name="x")
        assert difference(picture, corner_picture()) < 8


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_sixteen_bit_grey_is_scaled_not_clipped(format: str) -> None:
    levels = np.linspace(0, 65535, 256 * 4).astype(np.uint16).reshape(32, 32)
    picture = decode_picture(encode(Pillow.fromarray(levels), format), name="x")
    np.testing.assert_array_equal(np.asarray(picture)[..., 0], np.rint(levels / 257))


def test_floating_point_and_32_bit_grey_span_black_to_white() -> None:
    ramp = np.linspace(-3, 9, 64).reshape(8, 8)
    for values in (ramp.astype(np.float32), (ramp * 1e6).astype(np.int32)):
        pixels = np.asarray(decode_picture(encode(Pillow.fromarray(values), "TIFF"), name="x"))
        np.testing.assert_allclose(pixels[..., 0], np.linspace(0, 255, 64).reshape(8, 8), atol=1)
    flat = Pillow.fromarray(np.full((4, 4), np.nan, np.float32))
    assert decode_picture(encode(flat, "TIFF"), name="x").getpixel((0, 0)) == (0, 0, 0)


def transparent_pictures() -> list[tuple[str, bytes]]:
    """Pictures that are transparent at the left and red or grey at the right, in every way PNG, GIF and WebP know."""
    alpha = np.zeros((8, 16), np.uint8)
    alpha[:, 8:] = 255
    red = Pillow.new("RGB", (16, 8), (200, 0, 0))
    rgba, grey = red.copy(), Pillow.new("L", (16, 8), 90)
    rgba.putalpha(Pillow.fromarray(alpha))
    grey.putalpha(Pillow.fromarray(alpha))
    keyed = red.copy()
    keyed.paste((1, 2, 3), (0, 0, 8, 8))
    palette = rgba.convert("RGB").quantize(4)
    palette.putdata([1 if a else 0 for a in alpha.ravel()])
    palette.putpalette([9, 9, 9, 200, 0, 0])
    return [
        ("RGBA", encode(rgba, "PNG")),
        ("RGBA WebP", encode(rgba, "WEBP", lossless=True)),
        ("LA", encode(grey, "PNG")),
        ("RGB with a transparent colour", encode(keyed, "PNG", transparency=(1, 2, 3))),
        ("palette with a transparent index", encode(palette, "PNG", transparency=0)),
        ("palette with a table of opacities", encode(palette, "PNG", transparency=bytes([0, 255]))),
        ("GIF", encode(palette, "GIF", transparency=0)),
    ]


@pytest.mark.parametrize(("kind", "data"), transparent_pictures())
def test_transparent_pictures_get_a_white_background(kind: str, data: bytes) -> None:
    picture = decode_picture(data, name=kind)
    assert picture.getpixel((1, 1)) == (255, 255, 255)
    assert picture.getpixel((14, 6)) in {(200, 0, 0), (90, 90, 90)}


def test_one_bit_and_first_frame() -> None:
    assert decode_picture(encode(Pillow.new("1", (3, 3), 1), "PNG"), name="x").getpixel((0, 0)) == (255, 255, 255)
    frames = [Pillow.new("RGB", (6, 6), colour) for colour in ("red", "blue")]
    for format in ("GIF", "TIFF", "WEBP"):
        data = encode(frames[0], format, save_all=True, append_images=frames[1:])
        red, _, blue = decode_picture(data, name="x").getpixel((2, 2))  # type: ignore[misc]
        assert red > 200 > 50 > blue


def png_header(width: int, height: int) -> bytes:
    """A PNG that promises a size and holds no pixels."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    body = b"IDAT" + zlib.compress(b"")
    return head + struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))


def test_the_pixel_cap_is_checked_before_decoding() -> None:
    with pytest.raises(InputError, match=r"bomb\.png: has 12000 × 12000 pixels"):
        decode_picture(png_header(12000, 12000), name="bomb.png")
    with pytest.raises(InputError, match="more pixels than can be read"):
        decode_picture(png_header(10**9, 10**9), name="x")
    with pytest.raises(InputError, match="100"):
        decode_picture(encode(corner_picture(11, 10), "PNG"), name="x", max_pixels=100)
    assert decode_picture(encode(corner_picture(10, 10), "PNG"), name="x", max_pixels=100).size == (10, 10)


def test_very_long_pictures_within_the_cap_are_read() -> None:
    assert decode_picture(encode(Pillow.new("RGB", (1, 100_000)), "PNG"), name="x").size == (1, 100_000)


def test_other_formats_are_refused_even_where_pillow_knows_them() -> None:
    for format in ("PPM", "ICO", "PCX", "TGA"):
        with pytest.raises(InputError, match="not a picture in a known format"):
            decode_picture(encode(Pillow.new("RGB", (16, 16)), format), name="x")
    with pytest.raises(InputError, match="x: is empty"):
        decode_picture(b"", name="x")
    for data in (b"hello", b"%PDF-1.4", b"\xff\xd8\xff", b"GIF89a"):
        with pytest.raises(InputError):
            decode_picture(data, name="x")


@pytest.mark.parametrize("format", ["JPEG", "PNG", "BMP", "WEBP", "TIFF"])
def test_a_truncated_file_is_an_input_error(format: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    data = encode(Pillow.fromarray(noise), format)
    with pytest.raises(InputError, match=r"cut\.img: "):
        decode_picture(data[: len(data) // 2], name="cut.img")


@pytest.mark.parametrize("format", FORMATS)
def test_mutated_bytes_give_a_picture_or_an_input_error(format: str) -> None:
    generator = np.random.default_rng(FORMATS.index(format))
    exif = Pillow.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "described"
    options: dict[str, object] = {} if format in ("BMP", "GIF") else {"exif": exif}
    seeds = [encode(corner_picture(20, 14), format, **options), encode(corner_picture(9, 9).convert("L"), format)]
    if format == "TIFF":
        seeds += [
            encode(corner_picture(20, 14), "TIFF", compression=kind) for kind in ("tiff_lzw", "tiff_adobe_deflate")
        ]
    outcomes = {"picture": 0, "error": 0}
    for round_number in range(400):
        data = bytearray(seeds[round_number % len(seeds)])
        for _ in range(int(generator.integers(1, 6))):
            # Headers are where the trouble is, so half of the mutations fall there.
            reach = min(len(data), 64) if generator.random() < 0.5 else len(data)
            data[int(generator.integers(reach))] = int(generator.choice([0, 1, 127, 128, 255, generator.integers(256)]))
        if generator.random() < 0.2:
            del data[int(generator.integers(len(data))) :]
        try:
            picture = decode_picture(bytes(data), name="x", max_pixels=1_000_000)
        except InputError:
            outcomes["error"] += 1
        else:
            assert picture.mode == "RGB"
            assert read_size(bytes(data)) == picture.size
            outcomes["picture"] += 1
    assert min(outcomes.values()) > 0, outcomes


def test_damaged_exif_does_not_lose_the_picture() -> None:
    for block in (b"Exif\0\0II*\0", b"Exif\0\0garbage", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"):
        picture = decode_picture(encode(corner_picture(), "JPEG", exif=block), name="x")
        assert difference(picture, corner_picture()) < 6


def test_a_large_jpeg_comes_smaller_when_that_is_enough() -> None:
    data = encode(corner_picture(800, 600), "JPEG")
    small = decode_picture(data, name="x", at_least=140)
    assert small.size == (200, 150)
    assert difference(small, corner_picture(800, 600).resize((200, 150))) < 6
    assert decode_picture(data, name="x", at_least=599).size == (800, 600)
    assert decode_picture(encode(corner_picture(80, 60), "PNG"), name="x", at_least=5).size == (80, 60)


def test_reading_from_many_threads_is_quiet_and_right() -> None:
    data = encode(corner_picture(), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff")
    faults: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(30):
                assert decode_picture(data, name="x").size == (48, 32)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


class StubPictures:
    """Pictures from a dict; a missing one is an InputError as in a folder or zip."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    def has(self, image: Image) -> bool:
        return image.file in self.files

    def read(self, image: Image) -> bytes:
        if image.file not in self.files:
            raise InputError("stub", f"has no picture {image.file}")
        return self.files[image.file]


def test_broken_pictures_are_skipped_counted_and_listed() -> None:
    good = encode(corner_picture(), "JPEG")
    files = {"a.jpg": good, "b.jpg": good[:200], "d.jpg": good, "e.jpg": b"not a picture"}
    corpus = Corpus([make_image(name, file=f"{name}.jpg") for name in "abcde"], pictures=StubPictures(files))
    skipped = Skipped()
    assert [image.id for image, _ in iterate_pictures(corpus, corpus, skipped)] == ["a", "d"]
    assert list(skipped.reasons) == ["b", "c", "e"]
    assert len(skipped) == 3
    report = str(skipped)
    assert report.startswith("3 pictures skipped\n  b: b.jpg: ")
    assert "has no picture c.jpg" in report


def test_a_corpus_without_pictures_stops_a_run() -> None:
    corpus = Corpus([make_image("a")], name="text only")
    with pytest.raises(DeixisError, match="text only has no pictures"):
        list(iterate_pictures(corpus, corpus, Skipped()))
