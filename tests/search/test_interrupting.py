"""The first Ctrl-C ends `deixis index`, whatever its threads are decoding; the next run goes on."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

#: Deep pictures of many pixels take seconds each; large ones are decoded one after the other.
SIDE, COUNT = 9_000, 40


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_the_first_interrupt_ends_indexing_while_pictures_are_decoded(tmp_path: Path) -> None:
    pixels = zlib.compress(bytes((8 * SIDE + 1) * SIDE), 1)
    (tmp_path / "pictures").mkdir()
    for number in range(COUNT):
        head = chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 16, 6, 0, 0, 0)) + chunk(b"tEXt", b"n\0%d" % number)
        whole = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
        (tmp_path / "pictures" / f"{number:02}.png").write_bytes(whole)
    index = tmp_path / "index"
    command = [sys.executable, "-m", "deixis", "index", tmp_path / "pictures", "--index", index]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 120
            while not (index / "current").exists():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            time.sleep(1.5)
            start = time.monotonic()
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, errors
    assert (out, errors) == ("", "deixis: interrupted; run the same command again to continue\n")
    assert time.monotonic() - start < 15
