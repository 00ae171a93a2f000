"""Atomic writes: whole or not at all, with ordinary permissions."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from deixis.files import atomic_write, write_text


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


def test_a_long_name_is_no_obstacle(tmp_path: Path) -> None:
    name = "長" * 80 + ".txt"
    write_text(tmp_path / name, "text")
    assert os.listdir(tmp_path) == [name]
