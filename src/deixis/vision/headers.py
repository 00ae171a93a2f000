"""What decoding a picture file would cost, found from its structure before a decoder sees it.

A decoder takes time and memory for what a file claims, and a few bytes can claim a lot: thousands of progressive scans,
a tile of gigabytes, millions of empty blocks. The checks here read only headers and lengths. A picture that passes them
is decoded in seconds at the largest size that is read, and in at most `BYTES_PER_PIXEL` bytes for each pixel allowed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

#: Decoding may hold so many bytes for each pixel that a picture may have: Pillow's copy and the decoder's own.
BYTES_PER_PIXEL = 10
#: Added to that budget, for what does not shrink with the picture.
SMALL = 1 << 20
#: A scan takes up to 0.7 ns per pixel. Encoders write about ten scans; libtiff, too, stops at a hundred.
MAX_SCANS, MAX_SCANNED_PIXELS = 100, 3_000_000_000
#: Segments, chunks, sub-blocks and stray bytes, each of which costs Pillow microseconds.
MAX_PARTS = 100_000
#: Bytes before the first scan of a JPEG (depth maps in extended XMP take a few megabytes), and segments there that
#: Pillow takes apart in Python: Exif, Photoshop's, and quantization tables.
MAX_JPEG_HEADER, MAX_PARSED_SEGMENTS = 32 << 20, 64
#: Numbers in the tags of a TIFF: two for each strip or tile.
MAX_TAG_VALUES = 250_000
#: Pillow decodes run-length coded BMP files in Python.
MAX_RLE_PIXELS = 2_000_000
#: libwebp holds two canvases and Pillow two copies, 4 bytes a pixel each.
_WEBP_BYTES = 16
#: Pillow's RGB.
_PIXEL_BYTES = 4

_NOT_FILL = re.compile(rb"[^\xff]")
_MARKER = re.compile(rb"\xff[^\x00\xff]")
_EXIF_IFD, _GPS_IFD, _INTEROP_IFD = 0x8769, 0x8825, 0xA005
#: TIFF type → bytes of one value.
_TYPE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
#: TIFF types that Pillow leaves as bytes.
_BYTES_TYPES = (1, 2, 7)


def decoding_problem(data: bytes, max_pixels: int) -> str:
    """Why a picture file should not be decoded, in one clause; empty where nothing speaks against it.

    What is damaged or not a picture at all is left to the decoder to report.
    """
    budget = max_pixels * BYTES_PER_PIXEL + SMALL
    try:
        if data.startswith(b"\xff\xd8\xff"):
            return _jpeg_problem(data, budget)
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            return _png_problem(data)
        if data.startswith((b"GIF87a", b"GIF89a")):
            return _gif_problem(data)
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _webp_problem(data, max_pixels, budget)
        if data.startswith(b"BM"):
            return _bmp_problem(data)
        if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
            return _tiff_problem(data, budget)
    except (struct.error, IndexError):
        return ""  # Cut off: the decoder says so.
    return ""


def _memory_problem(needed: int, budget: int) -> str:
    if needed <= budget:
        return ""
    return f"takes {needed / 1e9:.1f} GB to decode, more than the {budget / 1e9:.1f} GB that a picture may take"


def _parts_problem(parts: str) -> str:
    return f"has more than {MAX_PARTS:,} {parts}"


class _JpegHeader(NamedTuple):
    """Start of frame, and where the first scan starts."""

    coding: int
    width: int
    height: int
    #: (horizontal, vertical) sampling factor of each component.
    sampling: list[tuple[int, int]]
    first_scan: int


def _jpeg_problem(data: bytes, budget: int) -> str:
    header = _jpeg_header(data)
    if header is None or isinstance(header, str):
        return header or ""
    if header.coding in (0xC9, 0xCA, 0xCB):
        return "is a JPEG with arithmetic coding, which is not supported"
    # A sequential JPEG whose first scan has all components is decoded row by row, and what follows is not read.
    components = data[header.first_scan + 4]
    if header.coding != 0xC2 and components >= len(header.sampling):
        return ""
    pixels = max(1, header.width * header.height)
    most = min(MAX_SCANS, max(1, MAX_SCANNED_PIXELS // pixels))
    # The plain count is an upper bound: it includes what looks like a scan in metadata or after the picture's end.
    if data.count(b"\xff\xda", header.first_scan) > most and _count_scans(data, header.first_scan, most) > most:
        return f"is a JPEG with more than {most} scans"
    return _memory_problem(pixels * _PIXEL_BYTES + _coefficient_bytes(header), budget)


def _jpeg_header(data: bytes) -> _JpegHeader | str | None:
    """What comes before the first scan; a problem; or None where no frame or no scan is found."""
    position, segments, parsed, stray = 2, 0, 0, 0
    frame: tuple[int, int, int, list[tuple[int, int]]] | None = None
    while True:
        start = data.find(b"\xff", position) + 1
        if start == 0:
            return None
        if data[start] == 0xFF:
            end = _NOT_FILL.search(data, start)
            if end is None:
                return None
            start = end.start()
        stray += start - position - 1
        segments += 1
        if stray > MAX_PARTS or segments > MAX_PARTS or parsed > MAX_PARSED_SEGMENTS or start > MAX_JPEG_HEADER:
            return "is a JPEG with too much in front of its picture"
        marker, position = data[start], start + 1
        if marker == 0 or 0xD0 <= marker <= 0xD9:
            continue
        (length,) = struct.unpack_from(">H", data, position)
        if marker == 0xDA:
            return None if frame is None else _JpegHeader(*frame, position - 2)
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width, count = struct.unpack_from(">HHB", data, position + 3)
            factors = data[position + 9 : position + 8 + 3 * count : 3]
            frame = marker, width, height, [(factor >> 4, factor & 15) for factor in factors]
        parsed += marker in (0xDB, 0xED) or (marker == 0xE1 and data.startswith(b"Exif\0\0", position + 2))
        position += length


def _count_scans(data: bytes, position: int, most: int) -> int:
    """Scans up to the end of the picture, as libjpeg finds them; counting stops at `most` + 1."""
    scans = 0
    while scans <= most and (match := _MARKER.search(data, position)):
        marker, position = data[match.end() - 1], match.end()
        if marker == 0xD9:
            break
        if marker >= 0xC0 and not 0xD0 <= marker <= 0xD8:
            scans += marker == 0xDA
            position += struct.unpack_from(">H", data, position)[0] if position + 2 <= len(data) else 0
    return scans


def _coefficient_bytes(header: _JpegHeader) -> int:
    """What libjpeg holds of a picture in several scans: 64 coefficients of 2 bytes for each block of each component."""
    across = 8 * max((h for h, _ in header.sampling), default=1) or 8
    down = 8 * max((v for _, v in header.sampling), default=1) or 8
    units = -(-header.width // across) * -(-header.height // down)
    return sum(units * h * v * 128 for h, v in header.sampling)


def _png_problem(data: bytes) -> str:
    position = 8
    for _ in range(MAX_PARTS):
        if position + 8 > len(data) or data[position + 4 : position + 8] == b"IEND":
            return ""
        position += 12 + int.from_bytes(data[position : position + 4], "big")
    return _parts_problem("chunks")


def _gif_problem(data: bytes) -> str:
    """Count what Pillow steps over in front of the first frame."""
    position = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    in_extension = False
    for _ in range(MAX_PARTS):
        if position >= len(data):
            return ""
        byte = data[position]
        if in_extension:
            position += 1 + byte
            in_extension = byte != 0
        elif byte in b",;":
            return ""
        else:
            in_extension = byte == ord("!")
            position += 2 if in_extension else 1
    return _parts_problem("blocks in front of its first frame")


def _webp_problem(data: bytes, max_pixels: int, budget: int) -> str:
    """Pillow allocates the canvas as soon as it opens a WebP."""
    kind = data[12:16]
    if kind == b"VP8X":
        width = int.from_bytes(data[24:27], "little") + 1
        height = int.from_bytes(data[27:30], "little") + 1
    elif kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    else:
        width, height = (size & 0x3FFF for size in struct.unpack_from("<HH", data, 26))
    if width * height > max_pixels:
        return f"has {width} × {height} pixels, more than the {max_pixels:,} that are read"
    return _memory_problem(width * height * _WEBP_BYTES, budget)


def _bmp_problem(data: bytes) -> str:
    size, width, height, _, _, compression = struct.unpack_from("<IiiHHI", data, 14)
    run_length_coded = size >= 40 and compression in (1, 2)
    if run_length_coded and (abs(width * height) > MAX_RLE_PIXELS or len(data) > 3 * MAX_RLE_PIXELS):
        return f"is a run-length coded BMP of more than {MAX_RLE_PIXELS:,} pixels"
    return ""


class _Tag(NamedTuple):
    kind: int
    values: int
    #: The bytes of a short value, or where the values are.
    value: bytes


class _Tiff:
    """The first directory of a TIFF or BigTIFF and those that it points to, as far as Pillow reads them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._order = "<" if data.startswith(b"II") else ">"
        self._big = data[2 if self._order == "<" else 3] == 43
        self._entry = struct.Struct(self._order + ("HHQ8s" if self._big else "HHL4s"))
        self.first = self._number("Q" if self._big else "L", 8 if self._big else 4)

    def _number(self, kind: str, position: int) -> int:
        return int(struct.unpack_from(self._order + kind, self._data, position)[0])

    def entries(self, position: int) -> int:
        """How many tags a directory says it has."""
        return self._number("Q" if self._big else "H", position)

    def tags(self, position: int) -> Iterator[tuple[int, _Tag]]:
        position += 8 if self._big else 2
        end = position + self.entries(position - (8 if self._big else 2)) * self._entry.size
        if end > len(self._data):
            end -= -(-(end - len(self._data)) // self._entry.size) * self._entry.size
        for tag_id, kind, count, value in self._entry.iter_unpack(self._data[position:end]):
            yield tag_id, _Tag(kind, count, value)

    def values(self, tag: _Tag | None, default: int) -> list[int]:
        """The first whole numbers of a tag, or the default."""
        code = {3: "H", 4: "L", 16: "Q"}.get(tag.kind) if tag else None
        if tag is None or code is None or not tag.values:
            return [default]
        count, size = min(tag.values, 16), _TYPE_BYTES[tag.kind]
        source, start = tag.value, 0
        if tag.values * size > len(tag.value):
            source, start = self._data, int(struct.unpack(self._order + ("Q" if self._big else "L"), tag.value)[0])
        return list(struct.unpack_from(f"{self._order}{count}{code}", source, start))


def _tiff_problem(data: bytes, budget: int) -> str:
    tiff = _Tiff(data)
    waiting, seen = [tiff.first], set[int]()
    while waiting:
        position = waiting.pop()
        if position in seen:
            continue
        seen.add(position)
        if tiff.entries(position) > MAX_PARTS:
            return _parts_problem("tags")
        numbers = 0
        tags = dict[int, _Tag]()
        for tag_id, tag in tiff.tags(position):
            tags.setdefault(tag_id, tag)
            numbers += tag.values if tag.kind in _TYPE_BYTES and tag.kind not in _BYTES_TYPES else 0
            if numbers > MAX_TAG_VALUES:
                return f"is a TIFF with more than {MAX_TAG_VALUES:,} numbers in its tags"
        if position == tiff.first:
            problem = _memory_problem(_tiff_bytes(tiff, tags), budget)
            if problem:
                return problem
        if len(seen) < 8:
            pointers = (tags.get(tag) for tag in (_EXIF_IFD, _GPS_IFD, _INTEROP_IFD))
            waiting += [pointer for tag in pointers if 0 < (pointer := tiff.values(tag, 0)[0]) < len(data) - 8]
    return ""


def _tiff_bytes(tiff: _Tiff, tags: dict[int, _Tag]) -> int:
    """Pillow's picture, and the strip or tile that libtiff decodes at a time."""

    def value(tag_id: int, default: int) -> int:
        return tiff.values(tags.get(tag_id), default)[0]

    width, height = value(256, 0), value(257, 0)
    sample_bits = max(tiff.values(tags.get(258), 1))
    samples = value(277, 1) if value(284, 1) != 2 else 1
    if 322 in tags:
        rows, columns = value(323, height), value(322, width)
    else:
        rows, columns = min(value(278, height), height), width
    # libtiff may decode to RGBA, whatever the samples are.
    block = rows * columns * max(_PIXEL_BYTES, -(-samples * sample_bits // 8))
    return width * height * _PIXEL_BYTES + block
