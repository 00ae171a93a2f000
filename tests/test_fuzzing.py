"""`make fuzz` reads every seed, and finds what is wrong with a reader."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deixis.errors import InputError
from tests.fuzzing.readers import READERS, Reader

if os.name != "posix":
    pytest.skip("pipes, signals and limits are POSIX", allow_module_level=True)
from tests.fuzzing import __main__ as fuzzing

ROOT = Path(__file__).parent.parent


def seeds(folder: Path) -> None:
    (folder / "seed").mkdir(parents=True)
    (folder / "seed" / "file").write_text('{"a": 12, "b": "text"}')


def fuzzed(read: object, work: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The faults that are found in a second."""
    monkeypatch.setattr(fuzzing, "_limit_memory", lambda: None)
    monkeypatch.setenv("DEIXIS_CACHE", str(work))
    monkeypatch.setenv("DEIXIS_INDEX", str(work))
    options = argparse.Namespace(inside=work, seconds=1.0, seed=1, patience=0.01, keep=work / "kept")
    run = fuzzing._Fuzzed(Reader("made", seeds, read), options)  # type: ignore[arg-type]
    run.run()
    assert run._report["examples"] > 1
    return [fault["what"] for fault in run._report["faults"]]


def test_a_reader_without_faults_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(folder: Path) -> None:
        if not (folder / "file").is_file() or b"12" not in (folder / "file").read_bytes():
            raise InputError(folder, "is damaged")

    assert fuzzed(read, tmp_path, monkeypatch) == []


def test_a_traceback_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(folder: Path) -> None:
        if (folder / "file").is_file() and (folder / "file").stat().st_size < 22:
            raise KeyError("a")

    assert any("KeyError" in fault for fault in fuzzed(read, tmp_path, monkeypatch))


def test_a_hang_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(folder: Path) -> None:
        if (folder / "file").is_file() and (folder / "file").stat().st_size != 22:
            time.sleep(60)

    assert any("takes too long" in fault for fault in fuzzed(read, tmp_path, monkeypatch))


def test_a_process_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    """No signal of its own reaches it: neither before its first example nor in one."""
    script = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); sys.stdin.read()"
    for last in (None, "seed; [Edit]"):
        if last:
            (tmp_path / "last").write_text(last)
        with subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        ) as process:
            assert process.stdout is not None
            child = int(process.stdout.readline())
            assert fuzzing._watch(process, tmp_path, 0.02)
            # The child has the pipe's other end as long as it lives.
            assert process.stdout.read() == b"", child


@pytest.mark.timeout(60)
@pytest.mark.parametrize("reader", [name for name, reader in READERS.items() if reader.sign])
@pytest.mark.parametrize("special", ["pipe", "device"])
def test_hashes_are_not_made_of_what_is_no_file(reader: str, special: str, tmp_path: Path) -> None:
    for name in ("manifest.json", "model.json", "model.safetensors"):
        path = tmp_path / name
        os.mkfifo(path) if special == "pipe" else path.symlink_to("/dev/zero")
    sign = READERS[reader].sign
    assert sign is not None
    sign(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_reads_its_seeds_and_refuses_damaged_ones(reader: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzzing", "--reader", reader, "--seconds", "10", "--patience", "5"]
    done = subprocess.run([*command, "--keep", tmp_path, "--seed", "1"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
