"""Small files that would take a decoder minutes or gigabytes are refused before they are decoded."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from deixis.errors import InputError
from deixis.vision import headers
from deixis.vision.headers import decoding_problem
from deixis.vision.reading import MAX_PIXELS, decode_picture, read_size

#: Large enough for loops that take microseconds a step to be felt.
MANY = headers.MAX_PARTS + 10


def encode(picture: Pillow.Image, format: str, **options: object) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, format, **options)
    return stream.getvalue()


def noise(width: int, height: int, mode: str = "RGB") -> Pillow.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 4), dtype=np.uint8)
    return Pillow.fromarray(pixels, "RGBA").convert(mode)


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def many_scans(width: int, height: int, scans: int, *, coding: int = 0xC2, between: bytes = b"") -> bytes:
    """A grey JPEG of one DC scan and empty AC refinement scans; sequential, of scans of one of its two components."""
    components = 1 if coding in (0xC2, 0xCA) else 2
    frame = struct.pack(">BHHB", 8, height, width, components)
    frame += b"".join(bytes([number + 1, 0x11, 0]) for number in range(components))
    tables = bytes([0, 1, *[0] * 15, 0, 0x10, 1, *[0] * 15, 0xE0])
    start = b"\xff\xd8" + segment(0xDB, bytes([0, *[1] * 64])) + segment(coding, frame) + segment(0xC4, tables)
    if components == 1:
        start += segment(0xDA, bytes([1, 1, 0, 0, 0, 0]))
        scan = segment(0xDA, bytes([1, 1, 0, 1, 63, 0x10])) + bytes(8)
    else:
        scan = segment(0xDA, bytes([1, 1, 0, 0, 63, 0]))
    return start + (between + scan) * scans + b"\xff\xd9"


def refused(data: bytes) -> str:
    with pytest.raises(InputError) as caught:
        decode_picture(data, name="x")
    with pytest.raises(InputError, match=r"x: "):
        read_size(data, name="x")
    return caught.value.problem


def test_a_jpeg_of_hundreds_of_scans_is_refused() -> None:
    for coding in (0xC0, 0xC2):
        assert refused(many_scans(9000, 9000, 400, coding=coding)) == "is a JPEG with more than 37 scans"
        assert refused(many_scans(64, 64, 101, coding=coding)) == "is a JPEG with more than 100 scans"
    assert decode_picture(many_scans(64, 64, 90), name="x").size == (64, 64)
    assert "arithmetic coding" in refused(many_scans(64, 64, 1, coding=0xCA))


def test_scans_are_counted_up_to_the_end_of_the_picture_and_not_in_metadata() -> None:
    progressive = encode(noise(40, 40), "JPEG", progressive=True)
    with_video = progressive + b"\xff\xda" * 500
    with_comment = progressive.replace(b"\xff\xda", segment(0xFE, b"\xff\xda" * 500) + b"\xff\xda", 3)
    for data in (with_video, with_comment):
        assert data.count(b"\xff\xda") > 500
        assert decode_picture(data, name="x").size == (40, 40)
    # An end that only a comment has ends nothing.
    hidden = segment(0xFE, b"\xff\xd9")
    assert "more than 100 scans" in refused(many_scans(64, 64, 101, between=hidden))
    # What follows the only scan of a sequential JPEG is not read.
    assert decode_picture(encode(noise(40, 40), "JPEG") + many_scans(64, 64, 400), name="x").size == (40, 40)


def test_a_jpeg_in_several_scans_must_fit_into_memory_with_its_coefficients() -> None:
    data = encode(noise(64, 64, "CMYK"), "JPEG", progressive=True, subsampling=0)
    start = data.index(b"\xff\xc2")
    large = data[: start + 5] + struct.pack(">HH", 10900, 11000) + data[start + 9 :]
    assert refused(large) == "takes 1.4 GB to decode, more than the 1.2 GB that a picture may take"
    assert decoding_problem(data, MAX_PIXELS) == ""


@pytest.mark.parametrize(
    "stuffing",
    [
        segment(0xE1, b"Exif\0\0" + bytes(50)) * 5000,
        segment(0xED, b"Photoshop 3.0\0" + b"8BIM\x04\x04\0\0\0\0\0\0" * 5000) * 100,
        segment(0xDB, bytes([0, *[1] * 64]) * 900) * 100,
        segment(0xFE, b"") * MANY,
        bytes(MANY),
        b"\xff" * MANY,
    ],
    ids=["exif", "photoshop", "tables", "comments", "stray", "fill"],
)
def test_a_jpeg_whose_header_takes_long_to_read_is_refused(stuffing: bytes) -> None:
    data = encode(noise(8, 8), "JPEG")
    assert "too much in front of its picture" in refused(data[:20] + stuffing + data[20:])


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def test_a_png_of_many_chunks_is_refused() -> None:
    data = encode(noise(8, 8), "PNG")
    for kind in (b"IDAT", b"abCd"):
        assert "chunks" in refused(data[:33] + chunk(kind, b"") * MANY + data[33:])
    assert decode_picture(data[:33] + chunk(b"abCd", b"") * 50 + data[33:], name="x").size == (8, 8)


def test_a_gif_of_many_blocks_is_refused() -> None:
    data = encode(noise(8, 8, "L"), "GIF")
    first = 13 + (3 << (data[10] & 7) + 1)
    for blocks in (b"!\xfe" + b"\x01a" * MANY + b"\0", b"!\xfe\0" * MANY, bytes(MANY)):
        assert "blocks in front of its first frame" in refused(data[:first] + blocks + data[first:])
    assert decode_picture(data[:first] + b"!\xfe" + b"\x01a" * 50 + b"\0" + data[first:], name="x").size == (8, 8)


def test_a_webp_too_large_for_its_canvases_is_refused_before_they_are_made() -> None:
    lossless = b"RIFF\x1a\0\0\0WEBPVP8L\x0d\0\0\0\x2f" + struct.pack("<I", 9999 | 9999 << 14) + bytes(8)
    assert refused(lossless) == "takes 1.6 GB to decode, more than the 1.2 GB that a picture may take"
    extended = b"RIFF\x1a\0\0\0WEBPVP8X\x0a\0\0\0" + bytes(4) + struct.pack("<I", 16000)[:3] * 2
    assert "has 16001 × 16001 pixels" in refused(extended)
    lossy = encode(noise(30, 20), "WEBP")
    assert "pixels" in refused(lossy[:26] + struct.pack("<HH", 12000, 12000) + lossy[30:])
    for data in (lossy, encode(noise(30, 20), "WEBP", lossless=True), encode(noise(30, 20, "RGBA"), "WEBP")):
        assert decoding_problem(data, 30 * 20) == ""
        assert "pixels" in decoding_problem(data, 30 * 20 - 1)


def test_a_run_length_coded_bmp_is_small() -> None:
    def coded(width: int, height: int, runs: bytes) -> bytes:
        info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, 0, 0, 0, 256, 0)
        return b"BM" + struct.pack("<IHHI", 0, 0, 0, 54 + 1024) + info + bytes(1024) + runs

    assert "run-length coded BMP" in refused(coded(10_000, 10_000, b"\x01\0\0\0" * 10_000))
    assert decode_picture(coded(10, 10, b"\x0a\0\0\0" * 10), name="x").size == (10, 10)


def tiff(tags: dict[int, tuple[int, int, int]], tail: bytes = b"", *, big: bool = False) -> bytes:
    """A little-endian TIFF of one directory: tag → (type, count, value or offset)."""
    number, count = ("<Q", "<Q") if big else ("<L", "<H")
    start = (b"II+\0\x08\0\0\0" if big else b"II*\0") + struct.pack(number, 16 if big else 8)
    entry = struct.Struct("<HHQQ" if big else "<HHLL")
    entries = b"".join(entry.pack(tag, *value) for tag, value in sorted(tags.items()))
    return start + struct.pack(count, len(tags)) + entries + struct.pack(number, 0) + tail


GREY = {256: (4, 1, 100), 257: (4, 1, 100), 258: (3, 1, 8), 259: (3, 1, 8), 262: (3, 1, 1), 277: (3, 1, 1)}


@pytest.mark.parametrize("big", [False, True])
def test_a_tiff_whose_blocks_or_tags_are_huge_is_refused(big: bool) -> None:
    tile = {322: (4, 1, 40_000), 323: (4, 1, 40_000), 324: (4, 1, 300), 325: (4, 1, 100)}
    assert refused(tiff(GREY | tile, bytes(500), big=big)).startswith("takes 6.4 GB to decode")
    strips = {273: (4, 4 * MANY, 300), 278: (4, 1, 1), 279: (4, 4 * MANY, 300)}
    assert "numbers in its tags" in refused(tiff(GREY | strips, bytes(16 * MANY), big=big))
    exif = tiff({1: (3, 10 * MANY, 500)}, bytes(20 * MANY), big=big)[16 if big else 8 :]
    where = len(tiff(GREY | {0x8769: (4, 1, 0)}, big=big))
    assert "numbers in its tags" in refused(tiff(GREY | {0x8769: (4, 1, where)}, exif, big=big))


def test_a_bigtiff_of_millions_of_tags_is_refused() -> None:
    entries = struct.pack("<HHQQ", 9, 3, 1, 0) * MANY
    assert "tags" in refused(b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, MANY) + entries)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "1", "CMYK", "F", "I;16"])
@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate", "packbits"])
def test_common_tiffs_pass(mode: str, compression: str | None) -> None:
    data = encode(Pillow.new(mode, (300, 200)), "TIFF", compression=compression)
    assert decoding_problem(data, 300 * 200) == ""
    assert decode_picture(data, name="x").size == (300, 200)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "CMYK", "I;16", "I", "F"])
@pytest.mark.parametrize("size", [(150, 90), (90, 150), (30_000, 1), (1, 30_000)])
def test_conversion_in_bands_equals_conversion_at_once(
    mode: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(1).integers(0, 256, (size[1], size[0], 4), dtype=np.uint8)
    if mode in ("I;16", "I", "F"):
        picture = Pillow.fromarray(values.view(np.uint16 if mode == "I;16" else np.int32)[..., 0])
        picture = Pillow.fromarray(np.asarray(picture).astype(np.float32)) if mode == "F" else picture
    elif mode in ("RGBA", "CMYK"):
        picture = Pillow.fromarray(values, mode)
    else:
        picture = Pillow.fromarray(values[..., : 2 if mode == "LA" else 1].squeeze(2 if mode == "P" else ()), mode)
    format = "PNG" if mode in ("RGBA", "LA", "P") else "TIFF"
    data = encode(picture, format, **({"transparency": 3} if mode == "P" else {}))
    monkeypatch.setattr("deixis.vision.reading.BAND_PIXELS", 10_000)
    in_bands = np.asarray(decode_picture(data, name="x"))
    monkeypatch.setattr("deixis.vision.reading.BAND_PIXELS", 10**9)
    np.testing.assert_array_equal(in_bands, np.asarray(decode_picture(data, name="x")))


MEASURE = """
import resource, sys
from deixis.vision.reading import decode_picture
data = open(sys.argv[1], "rb").read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
picture = decode_picture(data, name="x")
print(*picture.size, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "format", "options"),
    [
        ("F", "TIFF", {"compression": "tiff_adobe_deflate"}),
        ("I", "TIFF", {"compression": "tiff_lzw"}),
        ("RGBA", "PNG", {}),
        ("P", "GIF", {"transparency": 0}),
        ("RGB", "JPEG", {"progressive": True}),
    ],
)
def test_the_largest_pictures_stay_within_the_memory_budget(
    mode: str, format: str, options: dict[str, object], tmp_path: Path
) -> None:
    width, height = 12_000, MAX_PIXELS // 12_000
    Pillow.new(mode, (width, height)).save(tmp_path / "picture", format, **options)
    command = [sys.executable, "-W", "error", "-c", MEASURE, str(tmp_path / "picture")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *size, taken = map(int, done.stdout.split())
    assert size == [width, height]
    assert taken <= MAX_PIXELS * headers.BYTES_PER_PIXEL + headers.SMALL
