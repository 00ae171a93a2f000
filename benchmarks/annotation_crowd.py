"""Many annotation workers at once over HTTP, while the server is killed again and again.

    python benchmarks/annotation_crowd.py [--database sqlite|postgresql] [--workers 50] [--kills 10] [--out FILE]

The project has drawn scenes. Each worker joins with an invitation, fetches tasks and pictures as the page does, waits a
while and answers at random; requests without a reply are sent again. First the crowd works undisturbed, and waiting
times are measured at the server (`Server-Timing`) and at the worker. Then the server is killed with SIGKILL and
restarted, several times. At the end every acknowledged answer must be in the log exactly once. PostgreSQL is the
package pgserver.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from reporting import write_report
from sqlalchemy import create_engine, select, text

from deixis.annotation import schema
from deixis.annotation.accounts import Accounts
from deixis.annotation.project import create_project
from deixis.annotation.workbench import Workbench
from deixis.corpus import Corpus, open_corpus, write_corpus
from deixis.errors import DeixisError

#: Seconds that pass before a request without a reply is sent again.
AGAIN = 0.3
#: Seconds without a request after which a worker opens a new connection. The server closes idle ones after 5 seconds.
IDLE = 4.0


class Server:
    """`deixis annotate serve` as a process that can be killed and started again on the same port."""

    def __init__(self, where: str, log: Path) -> None:
        self._where, self._log = where, log
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "deixis", "annotate", "serve", self._where, "--port", str(self.port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        while True:
            if self._process.poll() is not None:
                raise DeixisError(f"the server ended: {self._log.read_text()[-500:]}")
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1.0):
                    return
            except OSError:
                time.sleep(0.05)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@dataclass
class Notes:
    """What a worker saw: acknowledged answers by token, and waits in milliseconds as (phase, kind, server, worker)."""

    acknowledged: dict[str, Any] = field(default_factory=dict)
    waits: list[tuple[str, str, float, float]] = field(default_factory=list)
    stale: int = 0
    sent_again: int = 0


class CrowdWorker(threading.Thread):
    """One worker with one connection, as a browser has it."""

    def __init__(self, crowd: Crowd, name: str, invitation: str, chance: Random) -> None:
        super().__init__(name=name, daemon=True)
        self.notes = Notes()
        self._crowd, self._invitation, self._chance = crowd, invitation, chance
        self._connection: http.client.HTTPConnection | None = None
        self._used = 0.0
        #: The kind of request that waits for its reply.
        self.waits_for = ""
        self._headers = {"Accept": "application/json", "Content-Type": "application/json"}

    def run(self) -> None:
        reply, headers = self._ask("join", "POST", "/api/join", {"secret": self._invitation, "name": self.name})
        assert json.loads(reply), "the invitation was refused"
        self._headers["Cookie"] = headers["Set-Cookie"].partition(";")[0]
        page, _ = self._ask("page", "GET", "/work", accept="text/html")
        found = re.search(rb'name="csrf" content="(\w+)"', page)
        assert found is not None
        self._headers["X-CSRF-Token"] = found[1].decode()
        tasks: list[dict[str, Any]] = []
        loaded: set[str] = set()
        while not self._crowd.over.is_set():
            if not tasks:
                tasks = json.loads(self._ask("tasks", "GET", "/api/work/tasks")[0])["tasks"]
            for task in tasks:
                if task["token"] not in loaded:
                    self._ask("picture", "GET", f"/api/work/pictures/{task['token']}")
            loaded = {task["token"] for task in tasks}
            self._crowd.over.wait(self._chance.uniform(0.5, 1.5) * self._crowd.think)
            tasks = self._answer(tasks[0]) if tasks else []

    def _answer(self, task: dict[str, Any]) -> list[dict[str, Any]]:
        draws = task["task"] == "drawing" and self._chance.random() < 0.8
        answer = self._box(task) if draws else self._chance.choice(task["answers"])[0]
        sent = {"token": task["token"], "answer": answer}
        reply = json.loads(self._ask("answer", "POST", "/api/work/answer", sent)[0])
        if "error" in reply:
            self.notes.stale += 1
            return []
        self.notes.acknowledged[task["token"]] = answer
        tasks: list[dict[str, Any]] = reply["tasks"]
        return tasks

    def _box(self, task: dict[str, Any]) -> list[float]:
        left, top = self._chance.randint(0, task["width"] - 40), self._chance.randint(0, task["height"] - 40)
        return [left, top, left + self._chance.randint(10, 40), top + self._chance.randint(10, 40)]

    def _ask(
        self, kind: str, method: str, path: str, sent: Any = None, accept: str = "application/json"
    ) -> tuple[bytes, http.client.HTTPMessage]:
        """Ask until there is a whole reply; of a first attempt the waits are noted."""
        body = None if sent is None else json.dumps(sent)
        first = True
        while True:
            phase = self._crowd.phase
            began = time.perf_counter()
            if began - self._used > IDLE:
                self._hang_up()
            try:
                if self._connection is None:
                    self._connection = http.client.HTTPConnection("127.0.0.1", self._crowd.port, timeout=60)
                self._connection.request(method, path, body, {**self._headers, "Accept": accept})
                self.waits_for = kind
                reply = self._connection.getresponse()
                content = reply.read()
                self.waits_for = ""
                self._used = time.perf_counter()
            except (OSError, http.client.HTTPException):
                self._hang_up()
                self.waits_for = ""
                self.notes.sent_again += method == "POST"
                first = False
                time.sleep(AGAIN)
                continue
            if reply.status not in (200, 400, 409):
                raise DeixisError(f"{method} {path}: {reply.status} {content[:200]!r}")
            if first:
                at_server = float(reply.headers["Server-Timing"].rpartition("=")[2])
                self.notes.waits.append((phase, kind, at_server, 1000 * (time.perf_counter() - began)))
            return content, reply.headers

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


@dataclass
class Crowd:
    """What all workers share."""

    port: int
    think: float
    phase: str = "warm-up"
    #: For each kill, the kinds of requests that it cut off.
    killed: list[list[str]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


@contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    """Where a new project goes."""
    if kind == "sqlite":
        yield str(folder / "project.db")
        return
    from pgserver.postgres_server import get_server

    server = get_server(folder / "postgresql")
    try:
        url = server.get_uri().replace("postgresql://", "postgresql+psycopg://")
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text("CREATE DATABASE crowd"))
        engine.dispose()
        yield url.replace("/postgres?", "/crowd?")
    finally:
        server.cleanup()


def make_crowd_project(where: str, folder: Path, images: int) -> None:
    scenes = open_corpus("scenes")
    write_corpus(Corpus(scenes.images[:images], name="crowd", pictures=scenes.pictures), folder, pictures=True)
    create_project(where, open_corpus(folder), start="mentions", places={"corpus": str(folder)})


def run_crowd(where: str, folder: Path, options: argparse.Namespace) -> tuple[list[Notes], float, list[list[str]]]:
    chance = Random(options.seed)
    with Workbench(where) as bench:
        invitations = [Accounts(bench.engine).invite() for _ in range(options.workers)]
    server = Server(where, folder / "server.log")
    crowd = Crowd(server.port, options.think)
    workers = [
        CrowdWorker(crowd, f"worker {index}", secret, Random(chance.getrandbits(64)))
        for index, secret in enumerate(invitations)
    ]
    began = time.perf_counter()
    try:
        for worker in workers:
            worker.start()
        time.sleep(options.warm_up)
        crowd.phase = "undisturbed"
        time.sleep(options.seconds)
        crowd.phase = "kills"
        for _ in range(options.kills):
            time.sleep(chance.uniform(0.3, 1.0) * options.up)
            crowd.killed.append([worker.waits_for for worker in workers if worker.waits_for])
            server.kill()
            server.start()
        time.sleep(options.up)
        crowd.over.set()
        for worker in workers:
            worker.join(60)
    finally:
        crowd.over.set()
        server.kill()
    if any(worker.is_alive() for worker in workers):
        raise DeixisError("some workers got no reply any more")
    return [worker.notes for worker in workers], time.perf_counter() - began, crowd.killed


def audit(where: str, notes: list[Notes]) -> dict[str, int]:
    """Compare the log with the answers that were acknowledged to workers."""
    acknowledged = {token: answer for note in notes for token, answer in note.acknowledged.items()}
    with Workbench(where) as bench:
        log = schema.judgments
        with schema.reading(bench.engine) as connection:
            rows = list(connection.execute(select(log)))
        differences = bench.check()
    kept = {row.token: json.loads(row.answer) for row in rows}
    asked = [(row.worker_id, row.image_id, row.key) for row in rows]
    settled = [(row.image_id, row.key) for row in rows if row.task in ("link", "chain", "quality")]
    return {
        "acknowledged": len(acknowledged),
        "recorded": len(rows),
        "lost": sum(token not in kept for token in acknowledged),
        "changed": sum(token in kept and kept[token] != answer for token, answer in acknowledged.items()),
        "twice": len(rows) - len(kept) + len(asked) - len(set(asked)) + len(settled) - len(set(settled)),
        "recorded_but_never_told": len(kept.keys() - acknowledged.keys()),
        "tables_that_disagree_with_the_log": len(differences),
        "sent_again": sum(note.sent_again for note in notes),
        "went_to_somebody_else": sum(note.stale for note in notes),
    }


def percentiles(notes: list[Notes], phase: str) -> dict[str, dict[str, float]]:
    """Waits by kind of request: how many, and percentiles in milliseconds at the server and at the worker."""
    found: dict[str, list[tuple[float, float]]] = {}
    for note in notes:
        for when, kind, at_server, at_worker in note.waits:
            if when == phase:
                found.setdefault(kind, []).append((at_server, at_worker))
    figures = {}
    for kind, waits in sorted(found.items()):
        values = np.array(waits)
        figures[kind] = {"requests": float(len(values))} | {
            f"{place}_p{rank}": round(float(np.percentile(values[:, column], rank)), 2)
            for column, place in enumerate(("server", "worker"))
            for rank in (50, 99)
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--think", type=float, default=2.0, help="seconds a worker looks at a task, on average")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds before the waits are measured")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the crowd works undisturbed")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--up", type=float, default=6.0, help="seconds at most between a start and the next kill")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, database(options.database, Path(name)) as where:
        make_crowd_project(where, Path(name) / "corpus", options.images)
        load = os.getloadavg()[0]
        notes, seconds, killed = run_crowd(where, Path(name), options)
        counts = audit(where, notes)
    record = {
        "benchmark": "annotation crowd",
        "command": shlex.join(["python", "benchmarks/annotation_crowd.py", *sys.argv[1:]]),
        "database": options.database,
        "workers": options.workers,
        "images": options.images,
        "seconds_per_answer": options.think,
        "server_processes": 1,
        "kills": options.kills,
        "kills_that_cut_off_requests": sum(bool(kinds) for kinds in killed),
        "kills_that_cut_off_answers": sum("answer" in kinds for kinds in killed),
        "seconds": round(seconds, 1),
        "counts": counts,
        "milliseconds": {phase: percentiles(notes, phase) for phase in ("undisturbed", "kills")},
        "load_average": {"before": round(load, 1), "after": round(os.getloadavg()[0], 1)},
        "niceness": os.nice(0),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    write_report(record, options.out)
    if counts["lost"] or counts["changed"] or counts["twice"] or counts["tables_that_disagree_with_the_log"]:
        sys.exit("answers were lost, changed or counted twice")


if __name__ == "__main__":
    main()
