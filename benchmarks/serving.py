"""Many clients at once on `deixis serve`, which runs as a separate process; clients do what the page does.

    python benchmarks/serving.py INDEX --queries FILE [--model NAME] [--clients 50] [--seconds 60] [--out FILE]

A client takes a sentence of the file (one per line), asks for its beginnings as if typing it, and fetches the
thumbnails of the hits. First without pauses, so that the server is always busy; then, for a quarter of the time, with a
mean pause of one second. Every request must be answered with 200 and the right content, and the server must count as
many requests as the clients.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from reporting import write_report

from deixis.errors import DeixisError

#: Thumbnails that are fetched of an answer.
THUMBNAILS = 4
#: Pictures of an answer, as the page asks for them.
COUNT = 24


class Notes:
    """Waits in seconds by (phase, kind), and what went wrong."""

    def __init__(self) -> None:
        self.waits: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.faults: list[str] = []


class Client:
    """One connection that is kept open, with as little work as possible: client and server share the CPUs."""

    def __init__(self, address: str, notes: Notes) -> None:
        self._host, self._notes = urlsplit(address).netloc, notes

    async def open(self) -> None:
        name, _, port = self._host.partition(":")
        self._reader, self._writer = await asyncio.open_connection(name, int(port))

    async def get(self, path: str, phase: str, kind: str) -> bytes:
        began = time.perf_counter()
        self._writer.write(f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        length = next(int(line[15:]) for line in lines if line.lower().startswith("content-length:"))
        body = await self._reader.readexactly(length)
        self._notes.waits[phase, kind].append(time.perf_counter() - began)
        if lines[0].split()[1] != "200":
            self._notes.faults.append(f"{lines[0]}: {body[:200]!r}")
            return b"{}"
        return body

    def close(self) -> None:
        self._writer.close()


async def visit(
    client: Client, notes: Notes, sentences: list[str], chance: Random, phase: str, until: float, pause: float
) -> None:
    """Type sentences, each in three steps, and look at what is found, until the time is over."""
    while time.perf_counter() < until:
        words = chance.choice(sentences).split()
        hits: list[dict[str, Any]] = []
        for part in sorted({max(1, len(words) // 3), max(1, 2 * len(words) // 3), len(words)}):
            query = " ".join(words[:part])
            if pause:
                await asyncio.sleep(chance.uniform(0, 2 * pause))
            answer = json.loads(await client.get(f"/api/search?q={quote(query)}&count={COUNT}", phase, "search"))
            if answer.get("query") != query:
                notes.faults.append(f"another answer than the one to {query!r}")
            hits = answer.get("hits", [])
        for hit in hits[:THUMBNAILS]:
            await client.get(f"/api/pictures/{hit['picture']}/thumbnail", phase, "thumbnail")


async def crowd(address: str, sentences: list[str], clients: int, phases: dict[str, tuple[float, float]]) -> Notes:
    notes = Notes()
    visitors = [Client(address, notes) for _ in range(clients)]
    for visitor in visitors:
        await visitor.open()
    for phase, (seconds, pause) in phases.items():
        until = time.perf_counter() + seconds
        await asyncio.gather(
            *(
                visit(visitor, notes, sentences, Random(f"{phase} {index}"), phase, until, pause)
                for index, visitor in enumerate(visitors)
            )
        )
    for visitor in visitors:
        visitor.close()
    return notes


def started(index: Path, model: str | None) -> tuple[subprocess.Popen[str], str]:
    """The server, and its address once it answers."""
    command = [sys.executable, "-m", "deixis", "serve", "--index", str(index), "--port", "0", "--model", "none"]
    process = subprocess.Popen(command + (["--model", model] if model else []), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if " at http" not in line:
        raise DeixisError("the server did not start")
    return process, line.partition(" at ")[2].split()[0]


def fetch(address: str, path: str) -> bytes:
    async def ask() -> bytes:
        client = Client(address, Notes())
        await client.open()
        body = await client.get(path, "", "")
        client.close()
        return body

    return asyncio.run(ask())


def counted(address: str) -> int:
    """Searches and thumbnails that the server has answered, by its own count."""
    families = text_string_to_metric_families(fetch(address, "/metrics").decode())
    routes = ("/api/search", "/api/pictures/{picture}/{size}")
    return sum(
        int(sample.value)
        for family in families
        for sample in family.samples
        if sample.name == "deixis_requests_total" and sample.labels["route"] in routes
    )


def figures(notes: Notes, phases: dict[str, tuple[float, float]]) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for phase, (seconds, _) in phases.items():
        report[phase] = {"seconds": seconds}
        for kind in ("search", "thumbnail"):
            waits = np.array(notes.waits[phase, kind]) * 1000
            report[phase][kind] = {
                "requests": len(waits),
                "per_second": round(len(waits) / seconds, 1),
                "milliseconds": {f"p{share}": round(float(np.percentile(waits, share)), 1) for share in (50, 90, 99)},
            }
    return report


def peak_megabytes(process: int) -> float:
    """The most memory that the process has had."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return round(int(status.partition("VmHWM:")[2].split()[0]) / 1024, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("--queries", type=Path, required=True, metavar="FILE", help="sentences, one a line")
    parser.add_argument("--model", metavar="NAME")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sentences = [line for line in options.queries.read_text(encoding="utf-8").splitlines() if line.split()]
    phases = {"without_pause": (options.seconds, 0.0), "a_question_a_second": (options.seconds / 4, 1.0)}
    process, address = started(options.index, options.model)
    try:
        status = json.loads(fetch(address, "/api/status"))
        load = os.getloadavg()[0]
        notes = asyncio.run(crowd(address, sentences, options.clients, phases))
        answered = sum(map(len, notes.waits.values()))
        lost = answered - counted(address)
        memory = peak_megabytes(process.pid)
    finally:
        process.terminate()
        process.wait()
    record = {
        "benchmark": "serving",
        "pictures": status["pictures"],
        "dim": status["dim"],
        "model": status["model"],
        "clients": options.clients,
        "different_sentences": len(sentences),
        "errors": len(notes.faults),
        "lost": lost,
        "phases": figures(notes, phases),
        "server_peak_megabytes": memory,
        "load_average_before": round(load, 2),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    write_report(record, options.out)
    if notes.faults or lost:
        sys.exit(f"{len(notes.faults)} errors, {lost} requests lost: {notes.faults[:3]}")


if __name__ == "__main__":
    main()
