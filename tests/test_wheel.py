"""The wheel installs and runs the same as a checkout, package data included."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import deixis
from tests.photo_commands import try_photo_commands

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
    guard = ["-c", "from deixis.corpus.leak_guard import _held_out; print(len(_held_out()))"]
    for arguments in (["corpus", "stats", "scenes", "--json"], ["results", "papers"]):
        assert outcome([str(script), *arguments], site) == outcome(["-m", "deixis", *arguments], checkout) != ""
    assert outcome(guard, site) == outcome(guard, checkout) == "4500\n"


# tests/cli/test_photos_without_torch.py runs the same commands from the checkout.
@pytest.mark.slow
def test_photos_need_nothing_but_what_the_wheel_requires(wheel: Path, tmp_path: Path) -> None:
    """An environment of its own with the wheel and the packages that it requires, and what these require."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    site = next(environment.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        required = Parser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist", [])
    installed = link_packages(required, site)
    assert not installed & {"torch", "onnx", "scipy", "scikit-learn", "sqlalchemy", "spacy"}
    program = [str(environment / "bin" / "python"), "-m", "deixis"]
    try_photo_commands(program, tmp_path, {"PYTHONNOUSERSITE": "1"})


def link_packages(required: list[str], site: Path) -> set[str]:
    """Links to the packages of this environment that requirements name, and to what those require; their names."""
    waiting, linked = [Requirement(line) for line in required], set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        wanted = [{"extra": extra} for extra in requirement.extras] or [{"extra": ""}]
        if name in linked or not (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            continue
        linked.add(name)
        found = distribution(name)
        for part in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            (site / part).symlink_to(Path(str(found.locate_file(part))))
        for line in found.requires or ():
            other = Requirement(line)
            if other.marker is None or any(other.marker.evaluate(extras) for extras in wanted):
                waiting.append(Requirement(line.partition(";")[0]))
    return linked


def test_the_tracked_files_stay_small() -> None:
    """At most 56 MB, of which the bundle has 31 and the proposer 9; the aim is 48."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("runs from a checkout")
    files = [ROOT / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    assert 20e6 < sum(file.stat().st_size for file in files if file.is_file()) < 56e6
