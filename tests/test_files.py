"""Atomic writes: whole or not at all, with ordinary permissions. What several would make is made once."""

from __future__ import annotations

import os
import stat
import warnings
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from time import sleep

import pytest

from deixis.errors import InputError
from deixis.files import atomic_write, in_turn, write_text


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_appears_whole_or_not_at_all(tmp_path: Path, sync: bool) -> None:
    target = tmp_path / "new" / "file.txt"
    with atomic_write(target, sync=sync) as stream:
        stream.write(b"first")
        assert not target.exists()
    assert target.read_bytes() == b"first"
    with suppress(KeyboardInterrupt), atomic_write(target, sync=sync) as stream:
        stream.write(b"half")
        raise KeyboardInterrupt
    assert target.read_bytes() == b"first"
    assert os.listdir(target.parent) == ["file.txt"]


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_the_umask_is_heeded_and_never_changed(tmp_path: Path, mask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(mask)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda mask: pytest.fail("another thread's files would be open to all"))
            write_text(tmp_path / "file", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~mask


@pytest.mark.skipif(os.name != "posix", reason="makes a pipe")
def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """Renamed over, /dev/null would be gone for all programs of the machine."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(InputError, match="is a device or a pipe"):
            write_text(tmp_path / name, "text")
        assert stat.S_ISFIFO((tmp_path / name).stat().st_mode)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_long_name_is_no_obstacle(tmp_path: Path) -> None:
    name = "長" * 80 + ".txt"
    write_text(tmp_path / name, "text")
    assert os.listdir(tmp_path) == [name]


def test_what_another_process_makes_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path))
    made, order = tmp_path / "made", list[str]()
    held = Event()

    def first() -> None:
        with in_turn(made):
            held.set()
            sleep(0.2)
            order.append("first")

    other = Thread(target=first)
    other.start()
    held.wait()
    with pytest.warns(UserWarning, match="waiting for another process that makes .*made"), in_turn(made):
        order.append("second")
    other.join()
    assert order == ["first", "second"]
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="cannot be written"), in_turn(made):
        pass
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with in_turn(made), in_turn(tmp_path / "another"):
            order.append("third")
