"""The photo commands need neither PyTorch and the rest of the extra `research`, nor what only POSIX systems have."""

from __future__ import annotations

import sys
from pathlib import Path

import deixis
from tests.photo_commands import try_photo_commands

ABSENT = ("torch", "onnx", "scipy", "sklearn", "sqlalchemy", "spacy", "resource", "pwd", "grp", "termios")
#: What `os` does not have on Windows. (Names that the standard library itself needs on this system are missing here.)
_MISSING = """
    chown chroot fchown fork forkpty getegid geteuid getgid getloadavg
    getpgid getuid initgroups killpg lchown major mkfifo mknod nice posix_fadvise posix_fallocate pread pwrite
    sched_getaffinity sendfile setgid setsid setuid sync sysconf ttyname
"""
NOT_ON_WINDOWS = _MISSING.split()
#: A program that runs `deixis` as if some modules were not installed and `os` had less.
CODE = f"""
import asyncio, os, sys, platformdirs.unix

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
for name in {NOT_ON_WINDOWS}:
    delattr(os, name)
from deixis.cli import main
main()
"""


def test_photo_commands_run_without_pytorch(tmp_path: Path) -> None:
    checkout = str(Path(deixis.__file__).parent.parent)
    (tmp_path / "deixis.py").write_text(CODE)
    program = [sys.executable, "-P", str(tmp_path / "deixis.py")]
    try_photo_commands(program, tmp_path, {"PYTHONPATH": checkout})
