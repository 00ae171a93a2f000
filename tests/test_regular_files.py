"""Only regular files are opened, and nothing is waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deixis.errors import DeixisError, InputError
from deixis.files import hold_folder, open_regular, read_regular, require_database, require_regular

pytestmark = [pytest.mark.skipif(os.name != "posix", reason="makes pipes"), pytest.mark.timeout(20)]


def test_a_regular_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_regular(file, 5) == read_regular(os.fsencode(file), 5) == read_regular(str(file), 9) == b"12345"
    with pytest.raises(InputError, match=r"file: is larger than 4 bytes"):
        read_regular(file, 4)
    assert require_regular(file) == file
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 5) == b"12345"
    with pytest.raises(InputError, match="link: "):
        open_regular(tmp_path / "link", follow_links=False)


def test_pipes_devices_folders_loops_and_what_is_not_there_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    said = {
        "pipe": "is not a regular file",
        "/dev/zero": "is not a regular file",
        "folder": "is a folder",
        "loop": "Too many levels",
        "nowhere": "No such file",
        "zero\0byte": "null",
    }
    for name, problem in said.items():
        with pytest.raises(InputError, match=problem):
            open_regular(tmp_path / name)
        with pytest.raises(InputError, match=problem):
            open_regular(os.fsencode(tmp_path / name), follow_links=False)


@pytest.mark.parametrize("beside", ["-wal", "-shm", "-journal"])
def test_what_sqlite_opens_beside_a_database_is_looked_at_too(beside: str, tmp_path: Path) -> None:
    (tmp_path / "data.sqlite").touch()
    assert require_database(tmp_path / "data.sqlite") == tmp_path / "data.sqlite"
    os.mkfifo(tmp_path / f"data.sqlite{beside}")
    with pytest.raises(InputError, match=rf"data\.sqlite{beside}: is not a regular file"):
        require_database(tmp_path / "data.sqlite")


def test_a_lock_that_is_no_file_is_said_to_be_removed(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(DeixisError, match=r"\.lock: is not a regular file; remove it"):
        hold_folder(tmp_path, "index")
