"""The wheel installs and runs the same as a checkout, package data included."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import deixis

PACKAGE = Path(deixis.__file__).parent
ROOT = PACKAGE.parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("runs from a checkout")
    folder = tmp_path_factory.mktemp("wheel")
    # The build backend is called directly, so that no network is needed.
    code = f"from hatchling.build import build_wheel; print(build_wheel({str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    return folder / done.stdout.strip().splitlines()[-1]


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    tracked = {
        file.relative_to(PACKAGE.parent).as_posix()
        for file in PACKAGE.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("deixis/")}
    assert packed == tracked


def test_the_wheel_runs_as_the_checkout_does(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    script = site / "bin" / "deixis"
    assert script.exists()
    checkout = PACKAGE.parent

    def outcome(arguments: list[str], python_path: Path) -> str:
        environment = {**os.environ, "PYTHONPATH": str(python_path), "PYTHONSAFEPATH": "1"}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    where = ["-c", "import deixis, sys; sys.stdout.write(deixis.__file__)"]
    assert outcome(where, site) == str(site / "deixis" / "__init__.py")
    # The embedded corpus, the papers' tables and the guard's hashes are data of the package.
    guard = ["-c", "from deixis.corpus.training import _held_out; print(len(_held_out()))"]
    for arguments in (["corpus", "stats", "scenes", "--json"], ["results", "papers"]):
        assert outcome([str(script), *arguments], site) == outcome(["-m", "deixis", *arguments], checkout) != ""
    assert outcome(guard, site) == outcome(guard, checkout) == "2000\n"
