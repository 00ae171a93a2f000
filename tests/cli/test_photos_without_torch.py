"""The photo commands neither import PyTorch nor anything else of the extra `research`, nor modules of POSIX alone."""

from __future__ import annotations

import sys
from pathlib import Path

import deixis
from tests.photo_commands import try_photo_commands

ABSENT = ("torch", "onnx", "scipy", "sklearn", "sqlalchemy", "spacy", "resource", "pwd", "grp", "termios")
#: A program that runs `deixis` as if some modules were not installed.
CODE = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from deixis.cli import main
main()
"""


def test_photo_commands_run_without_pytorch(tmp_path: Path) -> None:
    checkout = str(Path(deixis.__file__).parent.parent)
    (tmp_path / "deixis.py").write_text(CODE)
    program = [sys.executable, "-P", str(tmp_path / "deixis.py")]
    try_photo_commands(program, tmp_path, {"PYTHONPATH": checkout})
