"""A camera's RAW file made by hand: a DNG whose sensor saw one colour, with or without a JPEG preview."""

from __future__ import annotations

import io
import struct

import numpy as np
from PIL import Image as Pillow

#: TIFF types: bytes, text, 16 and 32 bits, ratios.
_FORMATS = {1: "B", 2: "c", 3: "H", 4: "I", 5: "II", 10: "ii"}


def dng(size: tuple[int, int], colour: tuple[int, int, int], *, preview: Pillow.Image | None = None) -> bytes:
    """A file of `size` with a Bayer pattern; the preview is in a second directory."""
    width, height = size
    sensor = np.empty((height, width), "<u2")
    red, green, blue = (value * 257 for value in colour)
    sensor[0::2, 0::2], sensor[0::2, 1::2], sensor[1::2, 0::2], sensor[1::2, 1::2] = red, green, green, blue
    ratio = [value for row in np.eye(3) for entry in row for value in (int(entry * 10000), 10000)]
    tags = {
        254: (4, [0]),
        256: (4, [width]),
        257: (4, [height]),
        258: (3, [16]),
        259: (3, [1]),
        262: (3, [32803]),
        271: (2, b"Maker\0"),
        272: (2, b"Camera\0"),
        274: (3, [1]),
        277: (3, [1]),
        278: (4, [height]),
        33421: (3, [2, 2]),
        33422: (1, [0, 1, 1, 2]),
        50706: (1, [1, 4, 0, 0]),
        50708: (2, b"Maker Camera\0"),
        50721: (10, ratio),
        50728: (5, [1, 1] * 3),
        50778: (3, [21]),
    }
    pictures = [(tags, sensor.tobytes())]
    if preview is not None:
        buffer = io.BytesIO()
        preview.save(buffer, "JPEG", quality=95)
        small = {254: (4, [1]), 256: (4, [preview.width]), 257: (4, [preview.height]), 258: (3, [8, 8, 8])}
        small |= {259: (3, [7]), 262: (3, [6]), 277: (3, [3]), 278: (4, [preview.height])}
        pictures.append((small, buffer.getvalue()))
    return _tiff(pictures)


def _tiff(pictures: list[tuple[dict[int, tuple[int, bytes | list[int]]], bytes]]) -> bytes:
    data = bytearray(b"II*\0" + struct.pack("<I", 8))
    for number, (tags, pixels) in enumerate(pictures):
        tags = {**tags, 273: (4, [0]), 279: (4, [len(pixels)])}
        start = len(data)
        tail = start + 2 + 12 * len(tags) + 4
        outside = bytearray()
        packed = {tag: _packed(kind, values) for tag, (kind, values) in tags.items()}
        longer = sum(len(value) + len(value) % 2 for value in packed.values() if len(value) > 4)
        packed[273] = struct.pack("<I", tail + longer)
        data += struct.pack("<H", len(tags))
        for tag in sorted(tags):
            kind, values = tags[tag]
            count = len(values) // (2 if kind in (5, 10) else 1)
            value = packed[tag]
            data += struct.pack("<HHI", tag, kind, count)
            if len(value) <= 4:
                data += value.ljust(4, b"\0")
            else:
                data += struct.pack("<I", tail + len(outside))
                outside += value + b"\0" * (len(value) % 2)
        after = tail + len(outside) + len(pixels)
        after += after % 2
        data += struct.pack("<I", after if number + 1 < len(pictures) else 0) + outside + pixels
        data += b"\0" * (after - len(data))
    return bytes(data)


def _packed(kind: int, values: bytes | list[int]) -> bytes:
    if isinstance(values, bytes):
        return values
    letter = _FORMATS[kind][0]
    return struct.pack(f"<{len(values)}{letter}", *values)
