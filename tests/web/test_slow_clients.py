"""Clients that send half of a request, or take no answer: the others are served, and the log stays short."""

from __future__ import annotations

import logging
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from deixis.web.serving import LOG_SECONDS, OnceAMinute
from tests.search.fakes import COLOURS, paint

resource = pytest.importorskip("resource")
ROOT = Path(__file__).parent.parent.parent
HALF = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
BODY = (
    b'POST /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"half":'
)


class Served:
    def __init__(self, address: str) -> None:
        self.address = address
        place = urlsplit(address)
        assert place.hostname is not None
        assert place.port is not None
        self.place = place.hostname, place.port

    def connect(self, sent: bytes = b"") -> socket.socket:
        opened = socket.create_connection(self.place, timeout=30)
        opened.sendall(sent)
        return opened

    def healthy_within(self, seconds: float) -> None:
        start = time.monotonic()
        answer = httpx.get(f"{self.address}/healthz", timeout=seconds, trust_env=False)
        assert answer.json() == {"status": "ok"}
        assert time.monotonic() - start < seconds


@contextmanager
def served(log: Path, *, files: int = 1024, head: float = 30, patience: float = 60) -> Iterator[Served]:
    command = [sys.executable, "-m", "tests.web.served", str(files), str(head), str(patience)]
    with log.open("wb") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT) as server:
        try:
            assert server.stdout is not None
            yield Served(server.stdout.readline().decode().strip())
        finally:
            server.kill()


@pytest.fixture
def crowd() -> Iterator[ExitStack]:
    """Sockets that are closed at the end; as many as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else 65536, hard))
    with ExitStack() as opened:
        yield opened
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def is_closed(connection: socket.socket, within: float) -> bool:
    connection.settimeout(within)
    try:
        return not connection.recv(1)
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def answered(connection: socket.socket) -> bool:
    received = b""
    while not received.endswith(b'"ok"}') and (part := connection.recv(4000)):
        received += part
    return received.endswith(b'"ok"}')


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing", marks=pytest.mark.slow),
        pytest.param(HALF, id="half a head", marks=pytest.mark.slow),
        pytest.param(BODY, id="half a body"),
    ],
)
def test_a_thousand_half_sent_requests_keep_nobody_out(sent: bytes, tmp_path: Path, crowd: ExitStack) -> None:
    log = tmp_path / "log"
    # Without bounds, a server of 256 files would be out of them after a quarter of these.
    with served(log, files=256) as server:
        for number in range(1100):
            crowd.enter_context(server.connect(sent))
            if number % 100 == 99:
                server.healthy_within(10)
        time.sleep(2)
        server.healthy_within(10)
    lines = log.read_text().splitlines()
    assert len(lines) < 5, lines[:10]
    assert any("more than 128 connections" in line for line in lines)


def test_a_head_must_come_in_time_also_on_a_kept_connection(tmp_path: Path) -> None:
    whole = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with served(tmp_path / "log", head=1.0) as server:
        with server.connect() as silent, server.connect(HALF) as half, server.connect(whole) as kept:
            assert answered(kept)
            kept.sendall(HALF)
            # A byte now and then does not help.
            for _ in range(3):
                time.sleep(0.4)
                try:
                    half.sendall(b"x")
                except OSError:
                    break
            assert is_closed(silent, 5)
            assert is_closed(half, 5)
            assert is_closed(kept, 5)
        with server.connect(whole) as kept:
            assert answered(kept)
            time.sleep(1.5)
            # It is kept longer than a head may take: an idle client is no slow one.
            kept.sendall(whole)
            assert answered(kept)
    assert len((tmp_path / "log").read_text().splitlines()) == 1


def test_a_body_must_come_in_time(tmp_path: Path) -> None:
    with served(tmp_path / "log", patience=1.0) as server, server.connect(BODY) as slow:
        assert b"408" in slow.recv(4000)
        server.healthy_within(10)


def test_an_answer_must_be_taken_in_time(tmp_path: Path) -> None:
    with served(tmp_path / "log", patience=1.0) as server:
        with server.connect(b"GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") as slow:
            time.sleep(3)
            slow.settimeout(5)
            taken = 0
            try:
                while part := slow.recv(1 << 20):
                    taken += len(part)
            except ConnectionResetError:
                pass
        assert taken < 50_000_000
        server.healthy_within(10)


def test_what_is_logged_often_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    logger = logging.getLogger("deixis.test.often")
    logger.addFilter(OnceAMinute(lambda: now))
    for _ in range(500):
        logger.warning("too many of %s", "these")
    now = LOG_SECONDS
    logger.warning("too many of %s", "these")
    logger.warning("another")
    assert [record.getMessage() for record in caplog.records] == [
        "too many of these",
        "too many of these (and 499 times before)",
        "another",
    ]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The two servers as a person starts them, and what they serve."""
    folder = tmp_path_factory.mktemp("served")
    paint(folder / "pictures" / "red.png", COLOURS["red"])
    run = [sys.executable, "-m", "deixis"]
    subprocess.run([*run, "index", folder / "pictures", "--index", folder / "index"], check=True, capture_output=True)
    subprocess.run(
        [*run, "annotate", "init", "scenes", folder / "project.db", "--limit", "2", "--start", "mentions"],
        check=True,
        capture_output=True,
    )
    return {
        "serve": [*run, "serve", "--index", str(folder / "index"), "--port", "0"],
        "annotate serve": [*run, "annotate", "serve", str(folder / "project.db"), "--port", "0"],
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("command", ["serve", "annotate serve"])
@pytest.mark.parametrize("sent", [HALF, BODY], ids=["half a head", "half a body"])
def test_both_servers_answer_beside_a_thousand_half_sent_requests(
    command: str, sent: bytes, commands: dict[str, list[str]], tmp_path: Path, crowd: ExitStack
) -> None:
    log = tmp_path / "log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(commands[command], stdout=subprocess.PIPE, stderr=errors, cwd=tmp_path) as process,
    ):
        try:
            assert process.stdout is not None
            found = re.search(rb"http://127\.0\.0\.1:\d+", process.stdout.readline())
            assert found is not None
            server = Served(found[0].decode())
            for number in range(1100):
                crowd.enter_context(server.connect(sent))
                if number % 220 == 219:
                    assert httpx.get(f"{server.address}/", timeout=30, trust_env=False).status_code < 500
        finally:
            process.kill()
    lines = log.read_text().splitlines()
    assert len(lines) < 5, lines[:10]
    assert sum(len(line) for line in lines) < 2000
