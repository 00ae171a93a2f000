"""Commands that are killed with SIGKILL at random moments: nothing that was done is lost, and the end is the same.

    python benchmarks/kills.py [--kills 50] [--only index] [--json results/benchmarks/kills.json]

`deixis index`, `extract` and `train` run on drawn scenes. Each is killed at a random moment after its work has begun,
and started again, until all kills are made; whenever it comes to its end in between, the result is compared with that
of a run that nobody disturbed, and it begins anew. Before and after each kill it is noted what is on disk for good:
indexed files, written partitions, checkpoints. At the end the command is left alone and must finish with the same
result: the same embeddings and answers of an index, the same bytes of a feature store and of trained weights.

`deixis annotate serve` is killed under a crowd of workers by `annotation_crowd.py`; there, answers that were
acknowledged must be in the log, once.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from pathlib import Path
from random import Random
from typing import Any, cast

# Before libraries read it: a forked command would wait forever for OpenMP threads, which it does not inherit.
os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: F401 (what takes longest to import is imported once, here; onnxruntime would start a thread)
from reporting import write_report

from deixis.cli import main as main_of_deixis

#: Seconds within which a command must begin its work, and come to its end.
PATIENCE, LONGEST = 300.0, 3600.0


RECIPE = """
name = "small"
kind = "sentences"
corpus = "scenes"
features = "image"
text = {{ kind = "tfidf" }}
model = {{ kind = "embedding", image = [64, 32], text = [64, 32] }}
loss = {{ kind = "ranking", weights = [1.0, 1.5, 0.0, 0.05], hardest = 10 }}
sampler = {{ batch = 64, neighbourhood = "sampling" }}
schedule = {{ epochs = {epochs}, patience = {epochs}, learning_rate = 1e-3, figure = "rsum" }}
"""


class Child:
    """A command in a process of its own, forked from this one so that nothing has to be imported again."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self._code: int | None = None
        self._log = log
        stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.pid = os.fork()
        if self.pid:
            os.close(stream)
        else:
            os.dup2(stream, 1)
            os.dup2(stream, 2)
            faulthandler.register(signal.SIGUSR1, all_threads=True)
            sys.argv = ["deixis", *arguments]
            code = 0
            try:
                main_of_deixis()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(bool(end.code))
            except BaseException:
                traceback.print_exc()
                code = 70
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self) -> int:
        deadline = time.monotonic() + LONGEST
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                # It writes to its log where each of its threads is.
                os.kill(self.pid, signal.SIGUSR1)
                time.sleep(5.0)
                self.kill()
                raise SystemExit(f"a command hangs: {self._log.read_text()[-4000:]}")
            time.sleep(0.01)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class Killed(ABC):
    """A command that is killed. `folder` is what it makes, `work` a place for what it needs."""

    #: Seconds after the begin of its work within which it is killed.
    within = 3.0

    def __init__(self, work: Path) -> None:
        self.work, self.folder, self.whole, self.log = work, work / "killed", work / "whole", work / "log"
        work.mkdir()
        self.prepare()
        self.run(self.whole)
        self.wanted = self.result(self.whole)

    def prepare(self) -> None:  # noqa: B027 (not all need something)
        """Make what the command needs."""

    @abstractmethod
    def arguments(self, folder: Path) -> list[str]: ...

    @abstractmethod
    def done(self, folder: Path) -> frozenset[Hashable]:
        """What is on disk for good."""

    @abstractmethod
    def result(self, folder: Path) -> Any:
        """What must be equal at the end."""

    @abstractmethod
    def has_begun(self) -> bool: ...

    def start(self, folder: Path) -> Child:
        return Child(self.arguments(folder), self.log)

    def run(self, folder: Path) -> None:
        """Let it come to its end."""
        if self.start(folder).wait():
            raise SystemExit(f"{' '.join(self.arguments(folder))}: {self.log.read_text()[-2000:]}")

    def storm(self, kills: int, chance: Random) -> dict[str, int]:
        counts = {"kills": 0, "kills_in_progress": 0, "done_and_lost": 0, "finished_between": 0, "different": 0}
        while counts["kills"] < kills:
            process = self.start(self.folder)
            self._wait_for_work(process)
            time.sleep(chance.uniform(0.0, self.within))
            before = self.done(self.folder)
            in_progress = process.poll() is None
            process.kill()
            process.wait()
            counts["kills"] += 1
            print(f"kill {counts['kills']}: {len(before)} done", file=sys.stderr, flush=True)
            counts["kills_in_progress"] += in_progress
            counts["done_and_lost"] += len(before - self.done(self.folder))
            if not in_progress:
                if process.wait():
                    raise SystemExit(f"it ended by itself: {self.log.read_text()[-2000:]}")
                counts["finished_between"] += 1
                self._compare(counts)
        self.run(self.folder)
        self._compare(counts)
        return counts

    def _compare(self, counts: dict[str, int]) -> None:
        counts["different"] += self.result(self.folder) != self.wanted
        shutil.rmtree(self.folder)

    def _wait_for_work(self, process: Child) -> None:
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and not self.has_begun():
            if time.monotonic() > deadline:
                raise SystemExit(f"the work did not begin: {self.log.read_text()[-2000:]}")
            time.sleep(0.01)


class Index(Killed):
    """`deixis index` with the bundled model."""

    def prepare(self) -> None:
        from deixis.corpus import Corpus, open_corpus, write_corpus

        scenes = open_corpus("scenes")
        write_corpus(Corpus(scenes.images[:120], pictures=scenes.pictures), self.work / "pictures", pictures=True)

    def arguments(self, folder: Path) -> list[str]:
        return ["index", str(self.work / "pictures"), "--index", str(folder)]

    def has_begun(self) -> bool:
        return b"Indexing: 0 of" in self.log.read_bytes()

    def done(self, folder: Path) -> frozenset[Hashable]:
        from deixis.search.catalogue import Catalogue
        from deixis.search.generations import current_generation

        generation = current_generation(folder) if (folder / "current").exists() else None
        if generation is None:
            return frozenset()
        catalogue = Catalogue.read(generation)
        try:
            return frozenset(row.path for row in catalogue.files() if row.content is not None)
        finally:
            catalogue.close()

    def result(self, folder: Path) -> Any:
        """The embedding of each file, and the answers to a question with their scores."""
        from deixis.search.collection import Collection

        collection = Collection(folder)
        try:
            rows = collection.embeddings_of(collection.ids).round(3).tolist()
            paths = [sorted(collection.paths(picture)) for picture in collection.ids.tolist()]
        finally:
            collection.close()
        child = Child(["search", "a red circle", "--index", str(folder), "--json"], self.log)
        if child.wait():
            raise SystemExit(self.log.read_text())
        hits = sorted((hit["path"], round(hit["score"], 2)) for hit in json.loads(self.log.read_text())["hits"])
        return sorted(zip(map(tuple, paths), rows, strict=True)), hits


class Extract(Killed):
    """`deixis extract` of whole pictures."""

    images = 160

    def arguments(self, folder: Path) -> list[str]:
        return ["extract", "scenes", "--features", "image", "--limit", str(self.images), "--out", str(folder)]

    def has_begun(self) -> bool:
        return b"Extracting: " in self.log.read_bytes()

    def done(self, folder: Path) -> frozenset[Hashable]:
        """Partitions whose description is written, with the bytes of their files."""
        found: set[Hashable] = set()
        for sidecar in (folder / "partitions").glob("[0-9]*.json"):
            number = sidecar.stem
            files = sorted((folder / "partitions").glob(f"{number}*"))
            found.add((number, *(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)))
        return frozenset(found)

    def result(self, folder: Path) -> Any:
        return _bytes_of(folder)


class Train(Killed):
    """`deixis train` of a small two-branch network on features of some scenes."""

    epochs = 200
    within = 5.0

    def prepare(self) -> None:
        from deixis.corpus import Corpus, open_corpus, write_corpus

        scenes = open_corpus("scenes")
        images = [[image for image in scenes if image.split == split][:60] for split in ("train", "val")]
        corpus, store = self.work / "corpus", self.work / "store"
        write_corpus(Corpus(images[0] + images[1], name="scenes", pictures=scenes.pictures), corpus, pictures=True)
        if Child(["extract", str(corpus), "--features", "image", "--out", str(store)], self.log).wait():
            raise SystemExit(self.log.read_text())
        (self.work / "recipe.toml").write_text(RECIPE.format(epochs=self.epochs))

    def arguments(self, folder: Path) -> list[str]:
        inputs = ["--corpus", str(self.work / "corpus"), "--features", str(self.work / "store")]
        return ["train", str(self.work / "recipe.toml"), *inputs, "--out", str(folder), "--device", "cpu"]

    def start(self, folder: Path) -> Child:
        self._starts = self._number_of_starts(folder)
        return super().start(folder)

    def _number_of_starts(self, folder: Path) -> int:
        from deixis.errors import DeixisError
        from deixis.training.runs import read_starts

        try:
            return len(read_starts(folder))
        except DeixisError:
            return 0

    def has_begun(self) -> bool:
        return self._number_of_starts(self.folder) > self._starts

    def done(self, folder: Path) -> frozenset[Hashable]:
        """The number of the epoch and of the step that a restart would continue after, and all before it."""
        from deixis.training.checkpoints import read_checkpoint

        checkpoint = read_checkpoint(folder / "checkpoints") if (folder / "checkpoints").exists() else None
        if checkpoint is None:
            return frozenset(range(self.epochs + 1)) if (folder / "model.json").exists() else frozenset()
        return frozenset(range(checkpoint.position.epoch))

    def result(self, folder: Path) -> Any:
        """The bytes of the weights, and the losses and figures of all epochs."""
        from deixis.training.run_records import EpochRecord
        from deixis.training.runs import WEIGHTS, read_log

        epochs = [record for record in read_log(folder) if isinstance(record, EpochRecord)]
        log = [(record.epoch, record.steps, record.loss, record.figures) for record in epochs]
        return hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest(), log


def _bytes_of(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def served(work: Path, kills: int, seed: int) -> dict[str, int]:
    """`deixis annotate serve` under a crowd."""
    out = work / "crowd.json"
    work.mkdir()
    options = {"kills": kills, "workers": 8, "think": 0.1, "warm-up": 2, "seconds": 1, "up": 2.5, "images": 120}
    words = [word for name, value in (options | {"seed": seed}).items() for word in (f"--{name}", str(value))]
    script = Path(__file__).with_name("annotation_crowd.py")
    done = subprocess.run([sys.executable, str(script), *words, "--out", str(out)], capture_output=True, text=True)
    if not out.exists():
        raise SystemExit(done.stderr[-2000:])
    record = json.loads(out.read_text())
    counts: dict[str, int] = record["counts"]
    return {
        "kills": record["kills"],
        "kills_in_progress": record["kills_that_cut_off_requests"],
        "kills_that_cut_off_answers": record["kills_that_cut_off_answers"],
        "done_and_lost": counts["lost"] + counts["changed"],
        "different": counts["twice"] + counts["tables_that_disagree_with_the_log"],
        "acknowledged": counts["acknowledged"],
        "sent_again": counts["sent_again"],
    }


def commit_small_parts() -> None:
    """There is much to lose in a short time when work is committed in small parts."""
    from deixis.cli import output
    from deixis.features import extraction
    from deixis.search import indexing

    indexing.COMMIT_SECONDS, indexing.BATCH = 0.3, 4
    output.EVERY_SECONDS = 0.0
    cast(dict[str, Any], extraction.extract.__kwdefaults__)["partition_size"] = 8


COMMANDS: dict[str, Callable[[Path], Killed]] = {"index": Index, "extract": Extract, "train": Train}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--only", choices=[*COMMANDS, "annotate serve"], action="append")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="a report to write; commands that are not run keep their counts")
    options = parser.parse_args()
    names = options.only or [*COMMANDS, "annotate serve"]
    load, start = os.getloadavg()[0], time.monotonic()
    counts: dict[str, dict[str, int]] = {}
    commit_small_parts()
    with tempfile.TemporaryDirectory() as work:
        os.environ["DEIXIS_CACHE"] = f"{work}/cache"
        for name in names:
            place = Path(work) / name.replace(" ", "-")
            if name in COMMANDS:
                counts[name] = COMMANDS[name](place).storm(options.kills, Random(options.seed))
            else:
                counts[name] = served(place, options.kills, options.seed)
            print(name, counts[name], file=sys.stderr, flush=True)
    before = json.loads(options.json.read_text())["commands"] if options.json and options.json.exists() else {}
    record = {
        "benchmark": "kills",
        "command": "python benchmarks/kills.py",
        "commands": {**before, **counts},
        "seconds": round(time.monotonic() - start, 1),
        "load_average_before": load,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    write_report(record, options.json)
    if any(each["done_and_lost"] or each["different"] for each in counts.values()):
        sys.exit("something was lost, or ended in another way")


if __name__ == "__main__":
    main()
