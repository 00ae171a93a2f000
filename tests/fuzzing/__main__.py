"""Fuzzing: every reader of files is given files that Hypothesis damaged; it must answer, or say what is wrong.

What ends in anything but an answer or a one-line `DeixisError` is a fault: another exception, a hang, a crash, or too
much memory. Seeds are made anew; each reader works in a process of its own. A fault's folder is kept, and the fault is
reported with the edits that made it. Every step of a reader's process has a limit of time, the making of its seeds too:
where the process does not keep it, it is ended with its children, and the report names the step and where it stood.

    python -m tests.fuzzing --seconds 240 --keep .fuzz
    python -m tests.fuzzing --reader bundle --seconds 600 --seed 7
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from deixis.errors import DeixisError
from tests.fuzzing.edits import Edit, apply, edits
from tests.fuzzing.readers import READERS, Reader

#: Seconds that an example may take; a machine that is busy with others gets more time with --patience.
EXAMPLE_SECONDS = 20.0
#: Times that limit, after which a process that does not answer is ended; and as long for imports and seeds.
DEAF, SEEDS = 3.0, 15.0
#: Bytes that an example may take beside what the process has.
EXAMPLE_BYTES = 3 << 30
#: Examples of one run of Hypothesis.
AT_A_TIME = 40


class TooLong(BaseException):
    """No reader catches it."""


class Fault(NamedTuple):
    #: Equal for faults that are the same.
    kind: str
    detail: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=240.0, help="for all readers together")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the clock's, unless given")
    parser.add_argument("--reader", choices=list(READERS), action="append", help="only this one; may be repeated")
    parser.add_argument("--patience", type=float, default=1.0, help="times the limit of seconds for an example")
    parser.add_argument("--keep", type=Path, default=Path(".fuzz"), help="where folders of faults go")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        _Fuzzed(READERS[options.reader[0]], options).run()
        return 0
    names = options.reader or list(READERS)
    print(f"seed {options.seed}; {options.seconds / len(names):.0f} s for each of {len(names)} readers", flush=True)
    faults = 0
    for name in names:
        print(f"{name:>20}  ", end="", flush=True)
        outcome = _in_process(name, options, options.seconds / len(names))
        faults += len(outcome["faults"])
        refused, examples = outcome["refused"], outcome["examples"]
        print(f"{examples:6,} examples, {refused:6,} refused, {len(outcome['faults'])} faults", flush=True)
        for fault in outcome["faults"]:
            print(f"{'':>20}  {fault['what']}\n{'':>20}  {fault['edits']}\n{'':>20}  {fault['folder']}", flush=True)
    return 1 if faults else 0


def _in_process(name: str, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """What a reader made of its examples; a process that hangs or crashes is a fault of its last example."""
    outcome: dict[str, Any] = {"examples": 0, "refused": 0, "faults": []}
    with tempfile.TemporaryDirectory(prefix="deixis-fuzz-") as work:
        deadline = time.monotonic() + seconds
        seed = options.seed
        while True:
            command = [sys.executable, "-m", "tests.fuzzing", "--inside", work, "--reader", name]
            left = max(1.0, deadline - time.monotonic())
            command += ["--seconds", str(left), "--seed", str(seed), "--patience", str(options.patience)]
            command += ["--keep", str(options.keep)]
            # Libraries print what they think of damaged files; the end says why a process ended.
            with (
                (Path(work) / "said").open("wb") as said,
                subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True) as process,
            ):
                hung = _watch(process, Path(work), EXAMPLE_SECONDS * options.patience)
            report = Path(work) / "report.json"
            printed = json.loads(report.read_text()) if report.exists() else outcome | {"faults": []}
            for key in ("examples", "refused", "faults"):
                outcome[key] += printed[key]
            report.unlink(missing_ok=True)
            if process.returncode == 0:
                return outcome
            end = (Path(work) / "said").read_text(errors="replace")
            what = (
                f"hangs, deaf to signals: {end[-2000:]}"
                if hung
                else f"ends its process with code {process.returncode}: {end[-300:]}"
            )
            last = Path(work) / "last"
            outcome["faults"].append(
                {
                    "what": what,
                    "edits": last.read_text() if last.exists() else "before the first example",
                    "folder": str(_keep(Path(work) / "example", options.keep, f"{name}-crash-{seed}")),
                }
            )
            seed += 1
            if time.monotonic() > deadline or not last.exists():
                return outcome
            last.unlink()


def _watch(process: subprocess.Popen[bytes], work: Path, limit: float) -> bool:
    """Wait for a process; where a step goes on for longer than the process itself can stop it, end it.

    The process leads a session: its children are ended with it.
    """
    last, start = work / "last", time.time()
    while process.poll() is None:
        time.sleep(0.2)
        begun, seconds = (last.stat().st_mtime, DEAF * limit) if last.exists() else (start, SEEDS * limit)
        if time.time() - begun > seconds:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return True
    return False


def _keep(folder: Path, keep: Path, name: str) -> Path:
    target = keep / name
    shutil.rmtree(target, ignore_errors=True)
    keep.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        shutil.copytree(folder, target, symlinks=True, ignore=_special)
    return target


def _special(folder: str, names: list[str]) -> list[str]:
    """Pipes cannot be copied."""
    return [name for name in names if not os.path.islink(p := os.path.join(folder, name)) and not _plain(p)]


def _plain(path: str) -> bool:
    return os.path.isfile(path) or os.path.isdir(path)


class _Fuzzed:
    """One reader, in this process, until its time is over."""

    def __init__(self, reader: Reader, options: argparse.Namespace) -> None:
        self._reader, self._options, self._work = reader, options, options.inside
        self._report: dict[str, Any] = {"examples": 0, "refused": 0, "faults": []}
        self._seen: set[str] = set()

    def run(self) -> None:
        warnings.simplefilter("ignore")
        os.environ["DEIXIS_CACHE"] = str(self._work / "cache")
        os.environ["DEIXIS_INDEX"] = str(self._work / "no-index")
        seeds = self._work / "seeds"
        if not seeds.exists():
            self._reader.make_seeds(seeds)
        names = sorted(path.name for path in seeds.iterdir())
        _limit_memory()
        for name in names:
            # What nobody damaged is read.
            self._try(name, [], must_read=True)
        deadline = time.monotonic() + self._options.seconds
        seed = self._options.seed
        while time.monotonic() < deadline:
            self._some(names, seed, deadline)
            seed += 1_000_003
        self._write()

    def _some(self, names: list[str], seed: int, deadline: float) -> None:
        @hypothesis.seed(seed)
        @settings(
            max_examples=AT_A_TIME,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.sampled_from(names), edits(databases=self._reader.databases, special=self._reader.special))
        def examples(name: str, chosen: list[Edit]) -> None:
            if time.monotonic() < deadline:
                self._try(name, chosen)

        examples()

    def _try(self, name: str, chosen: list[Edit], must_read: bool = False) -> None:
        self._report["examples"] += 1
        fault = self._fault(name, chosen, must_read)
        if fault is None or fault.kind in self._seen:
            return
        self._seen.add(fault.kind)
        # The same without one edit after the other, as long as the same happens.
        for edit in list(chosen):
            fewer = [each for each in chosen if each is not edit]
            other = self._fault(name, fewer, must_read)
            if other is not None and other.kind == fault.kind:
                chosen = fewer
        self._fault(name, chosen, must_read)
        number = f"{self._reader.name}-{len(self._report['faults'])}-{self._options.seed}"
        kept = _keep(self._work / "example", self._options.keep, number)
        edits_made = "; ".join(map(str, [name, *chosen]))[:2000]
        self._report["faults"].append(
            {"what": f"{fault.kind} {fault.detail}", "edits": edits_made, "folder": str(kept)}
        )
        self._write()

    def _fault(self, name: str, chosen: list[Edit], must_read: bool) -> Fault | None:
        """What is wrong with how an example ends; None where nothing is."""
        example = self._work / "example"
        (self._work / "last").write_text(f"{name}; {chosen}"[:2000])
        shutil.rmtree(example, ignore_errors=True)
        shutil.copytree(self._work / "seeds" / name, example)
        for edit in chosen:
            apply(example, edit)
        if self._reader.sign is not None and chosen and chosen[0].length % 2:
            self._reader.sign(example)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            with _limited(EXAMPLE_SECONDS * self._options.patience):
                self._reader.read(example)
        except TooLong as end:
            return Fault(f"takes too long in {_place(end)}")
        except DeixisError as fault:
            self._report["refused"] += 1
            if must_read:
                return Fault("a seed is refused:", str(fault))
            return None if len(str(fault)) < 2000 else Fault("a message is too long:", str(fault)[:200])
        except BaseException as fault:
            return Fault(f"{type(fault).__name__} in {_place(fault)}:", repr(str(fault)[:200]))
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        return Fault("takes too much memory:", f"{grown / 1e9:.1f} GB") if grown > EXAMPLE_BYTES // 2 else None

    def _write(self) -> None:
        (self._work / "report.json").write_text(json.dumps(self._report))


def _place(fault: BaseException) -> str:
    """The last two lines of our own code that led to an exception."""
    frames = [frame for frame in traceback.extract_tb(fault.__traceback__) if "/deixis/" in frame.filename]
    return " → ".join(f"{frame.filename.rpartition('/deixis/')[2]}:{frame.lineno}" for frame in frames[-2:])


def _limit_memory() -> None:
    if sys.platform == "linux":
        own = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (own + EXAMPLE_BYTES, resource.RLIM_INFINITY))


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    # So that a hanging process shows where it stands before it is ended.
    faulthandler.dump_traceback_later((1 + DEAF) / 2 * seconds, file=sys.__stderr__ or sys.stderr)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    sys.exit(main())
