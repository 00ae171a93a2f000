"""The team guide's nginx and Caddy in front of a served project, with TLS, and a browser before them."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from deixis.annotation.accounts import Accounts
from deixis.annotation.workbench import Workbench
from tests.web.site import make_project

GUIDE = Path(__file__).parents[2] / "docs" / "team.md"
NAME = "work.example.org"
CHROMIUM = os.environ.get("DEIXIS_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")

pytestmark = pytest.mark.slow


def block(language: str) -> str:
    """The block of the guide in this language."""
    found = re.search(rf"```{language}\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={NAME}", "-addext",
         f"subjectAltName=DNS:{NAME}", "-keyout", folder / "privkey.pem", "-out", folder / "fullchain.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


def nginx(folder: Path, certificate: Path, port: int, behind: int) -> list[str]:
    server = block("nginx").replace("listen 443", f"listen 127.0.0.1:{port}").replace(":8765", f":{behind}")
    server = server.replace(f"/etc/letsencrypt/live/{NAME}", str(certificate))
    places = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    head = f"daemon off; pid {folder}/pid; error_log {folder}/log; events {{}}"
    (folder / "nginx.conf").write_text(f"{head} http {{ access_log off; {places} {server} }}")
    return ["nginx", "-e", str(folder / "log"), "-c", str(folder / "nginx.conf")]


def caddy(folder: Path, certificate: Path, port: int, behind: int) -> list[str]:
    site = block("caddy").replace(":8765", f":{behind}").replace(NAME, f"{NAME}:{port}", 1)
    site = site.replace(
        "{\n", f"{{\n    bind 127.0.0.1\n    tls {certificate}/fullchain.pem {certificate}/privkey.pem\n", 1
    )
    (folder / "Caddyfile").write_text(f"{{\n    admin off\n    auto_https disable_redirects\n}}\n{site}")
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


@contextmanager
def running(command: list[str], port: int, folder: Path) -> Iterator[None]:
    """A server as a process, once it listens."""
    environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (folder / f"{command[0].rpartition('/')[2]}.out").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            for _ in range(600):
                assert process.poll() is None, Path(log.name).read_text()
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture(params=["nginx", "caddy"])
def project(
    request: pytest.FixtureRequest, tmp_path: Path, corpora: tuple[Path, Path], certificate: Path
) -> Iterator[tuple[Path, str, int]]:
    """A project served as the guide says. Gives its file, its public address and the port behind the proxy."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    front, behind = free_port(), free_port()
    address = f"https://{NAME}:{front}"
    file = tmp_path / "project.db"
    make_project(str(file), corpora, address=address, solo=True)
    (unit,) = re.findall(r"ExecStart=\S+ (.*)", block("ini"))
    serve = [sys.executable, "-m", "deixis", *unit.replace("project.db", str(file)).split(), "--port", str(behind)]
    proxy = {"nginx": nginx, "caddy": caddy}[request.param](tmp_path, certificate, front, behind)
    with running(serve, behind, tmp_path), running(proxy, front, tmp_path):
        yield file, address, behind


def test_the_pages_work_through_tls_and_a_proxy(project: tuple[Path, str, int], certificate: Path) -> None:
    file, address, behind = project
    with Workbench(file) as bench:
        accounts = Accounts(bench.engine)
        port = address.rpartition(":")[2]
        with httpx.Client(verify=False, base_url=f"https://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
            named = {"headers": {"Host": f"{NAME}:{port}"}, "extensions": {"sni_hostname": NAME}}
            joining = {"secret": accounts.invite(), "name": "ann"}
            joined = client.post("/api/join", json=joining, **named)
            assert joined.status_code == 200, joined.text
            cookie = joined.headers["set-cookie"].lower()
            assert "secure" in cookie, "the proxy reported the scheme of the client"
            assert "httponly" in cookie
            other = client.get("/", headers={"Host": "evil.example"}, extensions={"sni_hostname": NAME})
            assert other.status_code in (404, 421) or other.content == b""
            foreign = client.post("/api/join", json=joining, headers={**named["headers"], "Origin": "https://evil.example"},
                                  extensions=named["extensions"])  # fmt: skip
            assert foreign.status_code == 403
        assert (
            httpx.get(f"http://127.0.0.1:{behind}/", headers={"Host": "evil.example"}, trust_env=False).status_code
            == 421
        )


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (DEIXIS_CHROMIUM can name one)")
def test_a_browser_joins_answers_and_signs_in_again_through_a_proxy(project: tuple[Path, str, int]) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    file, address, _ = project
    flags = ["--no-sandbox", f"--host-resolver-rules=MAP {NAME} 127.0.0.1"]
    with playwright.sync_playwright() as driver, Workbench(file) as bench:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=flags)

        def person() -> Any:
            return browser.new_context(ignore_https_errors=True).new_page()

        page = person()
        page.goto(f"{address}/join#{Accounts(bench.engine).invite()}")
        page.fill("#name", "ann")
        page.press("#name", "Enter")
        page.wait_for_selector("#go")
        link = page.input_value("#link")
        assert link.startswith(f"{address}/back#")
        page.click("#go")
        page.wait_for_url("**/work")
        page.goto(f"{address}/work?task=link")
        page.wait_for_selector("#card-go")
        page.click("#card-go")
        page.wait_for_selector('#work[aria-busy="false"] [data-answer]')
        page.click('[data-answer="different"] >> nth=0')
        page.wait_for_function("() => document.getElementById('standing').textContent === '1 answered'")
        assert sum(task.judgments for task in bench.progress().tasks.values()) == 1
        again = person()
        again.goto(link)
        again.click("button.primary")
        again.wait_for_url("**/work")
        browser.close()


def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    unit = re.sub(r"ExecStart=\S+", f"ExecStart={sys.executable}", block("ini"))
    (tmp_path / "deixis.service").write_text(unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "deixis.service"], capture_output=True, text=True, check=False
    )
    assert "deixis.service" not in done.stderr.replace(str(tmp_path), ""), done.stderr
