"""HEIC and AVIF files made by hand, from the coded bytes of a real one: with another size, or a grid of one tile."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator

from PIL import Image as Pillow


def encoded(kind: str, side: int) -> bytes:
    stream = io.BytesIO()
    Pillow.new("RGB", (side, side), (90, 90, 90)).save(stream, kind, quality=30)
    return stream.getvalue()


def remade(
    kind: str, source: bytes, size: tuple[int, int], *, grid: tuple[int, int] = (1, 1), tile: tuple[int, int]
) -> bytes:
    """A file that says it has `size`: of a grid of rows and columns, all of them the picture of `source`.

    Args:
        kind: HEIF or AVIF.
        source: what the coded bytes are taken from.
        tile: the size that the file says a tile has.
    """
    item, brand = (b"hvc1", b"heic") if kind == "HEIF" else (b"av01", b"avif")
    coded = next(source[start + 8 : end] for name, start, end in _boxes(source) if name == b"mdat")
    properties = _inside(source, b"meta", b"iprp", b"ipco")
    configuration = next(properties[start:end] for name, start, end in _boxes(properties) if name in (b"hvcC", b"av1C"))
    tiles, is_grid = grid[0] * grid[1], grid != (1, 1)
    described = struct.pack(">BBBBII", 0, 1, grid[0] - 1, grid[1] - 1, *size) if is_grid else b""
    items = [_item(1, item), *([_item(2, b"grid")] if is_grid else [])]
    sizes = [
        _full(b"ispe", struct.pack(">II", *tile)),
        *([_full(b"ispe", struct.pack(">II", *size))] if is_grid else []),
    ]
    used = [struct.pack(">HBBB", 1, 2, 0x81, 2), *([struct.pack(">HBB", 2, 1, 3)] if is_grid else [])]
    references = struct.pack(">HH", 2, tiles) + struct.pack(f">{tiles}H", *[1] * tiles)

    def head(start: int) -> bytes:
        places = [struct.pack(">HHHHII", 1, 0, 0, 1, start, len(coded))]
        places += [struct.pack(">HHHHII", 2, 1, 0, 1, 0, len(described))] if is_grid else []
        return _box(b"ftyp", brand, bytes(4), b"mif1", brand) + _full(
            b"meta",
            _full(b"hdlr", bytes(4), b"pict", bytes(13)),
            _full(b"pitm", struct.pack(">H", len(items))),
            _full(b"iloc", struct.pack(">BBH", 0x44, 0, len(places)), *places, version=1),
            _full(b"iinf", struct.pack(">H", len(items)), *items),
            _full(b"iref", _box(b"dimg", references)) if is_grid else b"",
            _box(b"iprp", _box(b"ipco", configuration, *sizes), _full(b"ipma", struct.pack(">I", len(used)), *used)),
            _box(b"idat", described) if is_grid else b"",
        )

    return head(len(head(0)) + 8) + _box(b"mdat", coded)


def _box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def _full(kind: bytes, *parts: bytes, version: int = 0) -> bytes:
    return _box(kind, struct.pack(">I", version << 24), *parts)


def _item(number: int, kind: bytes) -> bytes:
    return _full(b"infe", struct.pack(">HH4s", number, 0, kind), b"\0", version=2)


def _boxes(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    start = 0
    while start + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, start)
        yield kind, start, start + size
        start += size


def _inside(data: bytes, *path: bytes) -> bytes:
    for wanted in path:
        start, end = next((start, end) for kind, start, end in _boxes(data) if kind == wanted)
        data = data[start + (12 if wanted == b"meta" else 8) : end]
    return data
