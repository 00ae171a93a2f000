"""`deixis serve` as a person runs it: in a process of its own, over an index of a real model, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.search.fakes import paint_many


@pytest.fixture(scope="module")
def index(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    paint_many(folder / "pictures", 5)
    into, model = folder / "index", f"onnx:{bundle}"
    command = [sys.executable, "-m", "deixis", "index", folder / "pictures", "--index", into, "--model", model]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    return into


@contextmanager
def served(index: Path, *options: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the line that it prints when it is ready."""
    command = [sys.executable, "-m", "deixis", "serve", "--index", str(index), "--port", "0", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.kill()


def test_it_serves_until_interrupted(index: Path) -> None:
    with served(index, "--model", "none") as (process, line):
        assert line.startswith(f"Serving 5 pictures of {index} at http://127.0.0.1:")
        address = line.partition(" at ")[2].split()[0]
        with httpx.Client(base_url=address, trust_env=False) as client:
            answer = client.get("/api/search", params={"q": "a dog"}).json()
            assert len(answer["hits"]) == 5
            found = client.get(f"/api/similar?picture={answer['hits'][0]['picture']}").json()
            assert len(found["hits"]) == 4
            picture = client.get(f"/api/pictures/{answer['hits'][0]['picture']}/thumbnail").content
            sent = client.post("/api/similar", content=picture, headers={"Content-Type": "image/jpeg"}).json()
            assert sent["hits"][0]["picture"] == answer["hits"][0]["picture"]
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        assert process.returncode in (0, 130)
        assert "Traceback" not in said


def test_a_token_from_the_environment_is_asked_for(index: Path) -> None:
    token = "sixteen letters!"
    with served(index, "--model", "none", "--host", "0.0.0.0", DEIXIS_TOKEN=token) as (_, line):
        address, _, secret = line.partition(" at ")[2].split()[0].replace("0.0.0.0", "127.0.0.1").partition("/enter#")
        assert secret == "sixteen%20letters%21"
        assert httpx.get(f"{address}/api/status", trust_env=False).status_code == 401
        bearer = {"Authorization": f"Bearer {token}"}
        assert httpx.get(f"{address}/api/status", headers=bearer, trust_env=False).json()["pictures"] == 5


@pytest.mark.parametrize(
    ("options", "report"),
    [
        (["--index", "nowhere"], "there is no index at nowhere"),
        (["--model", "onnx:nowhere"], "nowhere: is not a bundle"),
        (["--token", "short"], "16 letters"),
    ],
)
def test_what_cannot_be_served_is_reported_in_one_line(index: Path, options: list[str], report: str) -> None:
    command = [
        sys.executable,
        "-m",
        "deixis",
        "serve",
        "--index",
        str(index),
        "--port",
        "0",
        "--model",
        "none",
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("deixis: ")
    assert report in last
