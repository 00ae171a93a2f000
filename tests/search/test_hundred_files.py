"""A hundred broken, hostile and odd files: the rest is indexed, each bad one is listed, and nothing is met twice."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
from PIL import Image as Pillow

from deixis.search.collection import Collection
from deixis.search.indexing import index_folders
from tests.search.fakes import ColourModel

FORMATS = {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp", "GIF": ".gif", "BMP": ".bmp", "TIFF": ".tif"}
FORMATS |= {"AVIF": ".avif", "HEIF": ".heic"}
pillow_heif.register_heif_opener()


def picture_bytes(kind: str, seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (24, 32, 3), np.uint8)
    stream = io.BytesIO()
    Pillow.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A picture that says it is large and has nothing inside."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))


def bad_files() -> dict[bytes, bytes]:
    """Names and contents of files of which no picture can be made."""
    found: dict[bytes, bytes] = {}
    for seed, (kind, suffix) in enumerate(FORMATS.items()):
        whole, end = picture_bytes(kind, seed), suffix.encode()
        for cut in (0, 1, 4, 8, 12, 20):
            found[b"cut-%d" % cut + end] = whole[:cut]
        found[b"zeros" + end] = bytes(len(whole))
        found[b"headless" + end] = whole[16:]
        found[b"text" + end] = b"<?php system($_GET['x']); ?>"
    for number, (width, height) in enumerate([(60_000, 60_000), (2**31 - 1, 1), (1, 2**31 - 1), (0, 0), (10, 10)]):
        found[b"bomb-%d.png" % number] = png_header(width, height)
    found |= {
        b"gif-bomb.gif": b"GIF89a\xff\xff\xff\xff\x00\x00\x00",
        b"bmp-bomb.bmp": b"BM" + struct.pack("<IIIIiiHHII", 0, 0, 54, 40, 2**30, 2**30, 1, 24, 0, 0) + bytes(8),
        b"svg.png": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"script.jpg": b"#!/bin/sh\nrm -rf /\n",
        b"zip.jpg": b"PK\x03\x04" + bytes(60),
        b"pdf.png": b"%PDF-1.7\n" + bytes(60),
        b"ps.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n",
        b"line\nbreak.jpg": b"no picture",
        b"\xff\xfe\xfd.jpg": b"no picture",
        b"\x1b[31mred.jpg": b"no picture",
        b"-rf.png": b"no picture",
        b" .png": b"",
    }
    return found


def good_files() -> dict[bytes, bytes]:
    """Odd, and pictures all the same."""
    found = {
        b"plain%d" % seed + suffix.encode(): picture_bytes(kind, 100 + seed)
        for seed, (kind, suffix) in enumerate(FORMATS.items())
    }
    names = (
        b"a\nb.png",
        b"\xff\xfe.png",
        "é\u202egnp.png".encode(),
        b"-n.png",
        b"SHOUT.PNG",
        b"wrong.jpg",
        b"x" * 240 + b".png",
        b"%s%n.png",
        b"con.png",
        b"'; --.png",
    )
    found |= {name: picture_bytes("PNG", 200 + number) for number, name in enumerate(names)}
    for number, (mode, size) in enumerate(
        [
            ("1", (9, 9)),
            ("L", (1, 3000)),
            ("P", (3000, 1)),
            ("LA", (8, 8)),
            ("RGBA", (5, 5)),
            ("I;16", (6, 6)),
            ("CMYK", (7, 7)),
        ]
    ):
        stream = io.BytesIO()
        Pillow.new(mode, size, number + 1 if mode in ("1", "L", "P", "I;16") else None).save(
            stream, "TIFF" if mode in ("CMYK", "I;16") else "PNG"
        )
        found[b"mode-%d" % number + (b".tif" if mode in ("CMYK", "I;16") else b".png")] = stream.getvalue()
    return found


@pytest.mark.skipif(os.name == "nt", reason="names are bytes on POSIX systems alone")
def test_a_hundred_files(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path / "pictures")
    os.mkdir(folder)
    bad, good = bad_files(), good_files()
    for name, content in {**bad, **good}.items():
        with open(os.path.join(folder, name), "wb") as stream:
            stream.write(content)
    for name in (b"folder.jpg", b"folder.png"):
        os.mkdir(os.path.join(folder, name))
    os.mkfifo(os.path.join(folder, b"pipe.png"))
    links = {b"loop": folder, b"loop.jpg": b"loop.jpg", b"away.jpg": b"/etc/passwd", b"gone.png": b"nowhere.png"}
    for name, target in links.items():
        os.symlink(target, os.path.join(folder, name))
    assert len(bad) + len(good) + len(links) + 3 >= 100
    model, index = ColourModel(), tmp_path / "index"
    report = index_folders(index, [tmp_path / "pictures"], model, "colours")
    listed = {each.path for each in report.unreadable}
    expected = {
        os.path.join(folder, name).decode(errors="backslashreplace")
        for name in {*bad, b"folder.jpg", b"folder.png", b"pipe.png"}
    }
    assert listed == expected
    assert all(each.reason and "\n" not in each.reason for each in report.unreadable)
    assert report.links == len(links)
    collection = Collection(index)
    paths = {path for picture in collection.ids.tolist() for path in collection.paths(picture)}
    assert paths == {os.path.join(folder, name) for name in good}
    assert np.isfinite(collection.embeddings_of(collection.ids)).all()
    encoded = model.encoded
    again = index_folders(index, [tmp_path / "pictures"], model, "colours")
    assert (model.encoded, again.unreadable) == (encoded, report.unreadable)
