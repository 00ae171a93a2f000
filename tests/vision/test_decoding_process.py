"""Formats whose cost only decoding shows are decoded in a process that can be killed."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pillow_heif
import pytest
from PIL import Image as Pillow

from deixis.errors import DeixisError, InputError
from deixis.vision import decoding_process
from deixis.vision.reading import decode_picture, read_size
from tests.vision.heif_files import encoded, remade

pillow_heif.register_heif_opener()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No process of another test, and none left."""
    decoding_process._end_all()
    yield
    decoding_process._end_all()


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """A file of 2 kB that has a decoder decode 256 pictures of four megapixels for one of 64 × 64."""
    return remade("HEIF", encoded("HEIF", 2048), (64, 64), grid=(16, 16), tile=(2048, 2048))


def number_of_processes() -> list[int]:
    return [each._process.pid for each in decoding_process._idle if each.is_ours()]


@pytest.mark.skipif(os.name != "posix", reason="counts seconds of computing")
def test_a_small_file_that_takes_long_is_given_up(bomb: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(bomb) < 3000
    assert read_size(bomb, name="a.heic") == (64, 64)
    monkeypatch.setattr(decoding_process, "CPU_SECONDS", 1)
    with pytest.raises(InputError) as caught:
        decode_picture(bomb, name="a.heic")
    assert str(caught.value) == "a.heic: takes too long or too much memory to decode"
    # The process is gone with its memory, and the next picture gets another.
    assert number_of_processes() == []
    assert decode_picture(encoded("HEIF", 64), name="b.heic").size == (64, 64)


def test_time_is_limited_where_computing_is_not_counted(bomb: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    read_size(bomb, name="a.heic")
    monkeypatch.setattr(decoding_process, "WALL_SECONDS", 0.3)
    with pytest.raises(InputError, match="takes too long"):
        decode_picture(bomb, name="a.heic")


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited there")
def test_a_picture_that_takes_more_memory_than_allowed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # It says that it is small. Without a limit, libavif decodes all of it and scales it down.
    data = remade("AVIF", encoded("AVIF", 1500), (64, 64), tile=(64, 64))
    assert decode_picture(data, name="a.avif", max_pixels=64 * 64).size == (64, 64)
    monkeypatch.setattr(decoding_process, "OWN_BYTES", 1 << 20)
    with pytest.raises(InputError, match=r"a\.avif: "):
        decode_picture(data, name="a.avif", max_pixels=64 * 64)


def test_one_process_serves_picture_after_picture_and_survives_bad_ones() -> None:
    good = encoded("AVIF", 100)
    decode_picture(good, name="a.avif")
    processes = number_of_processes()
    assert len(processes) == 1
    for data, problem in (
        (good[:-20], "cut off"),
        (good[:40], "known format"),
        (b"\0\0\0\x18ftypheic", "known format"),
    ):
        with pytest.raises(InputError, match=rf"b\.avif: .*{problem}"):
            decode_picture(data, name="b.avif")
        with pytest.raises(InputError, match="pixels"):
            decode_picture(good, name="b.avif", max_pixels=99)
    assert decode_picture(good, name="a.avif").size == read_size(good) == (100, 100)
    assert number_of_processes() == processes


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_a_decoder_that_crashes_takes_nothing_along(monkeypatch: pytest.MonkeyPatch) -> None:
    good = encoded("AVIF", 100)
    decode_picture(good, name="a.avif")
    answer = decoding_process._Decoder._answer

    def crash(self: Any) -> Any:
        os.kill(self._process.pid, signal.SIGSEGV)
        self._process.wait()
        return answer(self)

    monkeypatch.setattr(decoding_process._Decoder, "picture", crash)
    with pytest.raises(InputError, match=r"a\.avif: makes its decoder crash"):
        decode_picture(good, name="a.avif")
    monkeypatch.undo()
    assert decode_picture(good, name="a.avif").size == (100, 100)
    # One that died while it was idle is no picture's fault.
    os.kill(number_of_processes()[0], signal.SIGKILL)
    time.sleep(0.2)
    assert decode_picture(good, name="a.avif").size == (100, 100)


def test_threads_have_processes_of_their_own_and_get_their_own_pictures() -> None:
    pictures = [encoded("AVIF", 40 + 10 * number) for number in range(6)]
    with ThreadPoolExecutor(3) as pool:
        sizes = list(pool.map(lambda data: decode_picture(data, name="a.avif").size, pictures * 4))
    assert sizes == [(40 + 10 * number,) * 2 for number in range(6)] * 4
    assert 1 <= len(number_of_processes()) <= 3


def test_nothing_is_imported_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("PIL", "numpy", "struct", "pillow_heif"):
        (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert decode_picture(encoded("AVIF", 64), name="a.avif").size == (64, 64)
    assert not (tmp_path / "ran").exists()


def test_without_a_process_nothing_is_called_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(DeixisError, match="cannot be started: no more processes") as caught:
        decode_picture(encoded("AVIF", 64), name="a.avif")
    assert not isinstance(caught.value, InputError)


@pytest.mark.skipif(os.name != "posix", reason="sends SIGKILL")
def test_the_process_ends_with_the_one_that_uses_it(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Pillow.new("RGB", (50, 50)).save(stream, "AVIF")
    (tmp_path / "a.avif").write_bytes(stream.getvalue())
    code = (
        "import os, signal, sys; from deixis.vision import decoding_process as apart; "
        "from deixis.vision.picture_files import read_picture_file; read_picture_file(sys.argv[1]); "
        "print(apart._idle[0]._process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "a.avif"], capture_output=True, text=True, timeout=60)
    process = int(done.stdout)
    for _ in range(100):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{process}/stat").exists() and Path(f"/proc/{process}/stat").read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    raise AssertionError("it is still there")
