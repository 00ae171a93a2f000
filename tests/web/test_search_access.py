"""Who may ask a search server what: names, origins, tokens, files outside the index, hostile pictures."""

from __future__ import annotations

import io
import os
import socket
import struct
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pillow_heif
import pytest
from fastapi.routing import APIRoute
from PIL import Image as Pillow
from typer.testing import CliRunner

from deixis.cli import app as command_line
from deixis.errors import DeixisError
from deixis.vision import decoding_process
from deixis.web import picture_routes, search_routes
from deixis.web.entrance import WRONG_BURST, Entrance
from deixis.web.search_state import LARGEST_PICTURE
from deixis.web.security import HEADERS, Hosts, is_loopback
from tests.search.fakes import COLOURS, ColourModel, paint
from tests.vision.heif_files import encoded, remade
from tests.web.search_site import SIZE, SearchSite

TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchSite]:
    with SearchSite(tmp_path_factory.mktemp("served")).serve() as served:
        yield served


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchSite]:
    with SearchSite(tmp_path_factory.mktemp("guarded")).serve(
        entrance=Entrance(TOKEN), hosts=Hosts("0.0.0.0", ["photos.home"])
    ) as own:
        yield own


@pytest.mark.parametrize("path", ["/", "/api/search?q=red", "/healthz", "/metrics", "/static/shell.css", "/no/where"])
def test_only_own_names_are_answered_to(site: SearchSite, path: str) -> None:
    for host in (
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "192.168.0.7",
        "",
        "[",
        "localhost@evil.example:1",
    ):
        assert site.client.get(path, headers={"Host": host}).status_code in (400, 421), host
    for host in ("localhost", "LOCALHOST:9", "127.0.0.1:1234", "[::1]:8766"):
        assert site.client.get(path, headers={"Host": host}).status_code in (200, 404), host


def test_beyond_this_machine_addresses_and_given_names_are_answered_to(guarded: SearchSite) -> None:
    for host, status in (("192.168.0.7:8766", 200), ("photos.home", 200), ("[fe80::1]", 200), ("evil.example", 421)):
        assert guarded.client.get("/healthz", headers={"Host": host}).status_code == status


def test_other_sites_pages_get_nothing(site: SearchSite) -> None:
    data = (site.pictures / "red.png").read_bytes()
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        asked = site.client.get("/api/search?q=red", headers={**headers, "Sec-Fetch-Mode": "cors"})
        assert asked.status_code == 403
        sent = site.client.post("/api/similar", content=data, headers={**headers, "Content-Type": "image/png"})
        assert sent.status_code == 403
    own = {"Origin": site.address, "Sec-Fetch-Site": "same-origin", "Content-Type": "image/png"}
    assert site.client.post("/api/similar", content=data, headers=own).status_code == 200
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert site.client.get("/", headers=link).status_code == 200


def test_every_answer_carries_the_policy(site: SearchSite) -> None:
    key = site.key("red")
    for path in (
        "/",
        f"/pictures/{key}",
        "/map",
        "/duplicates",
        "/api",
        "/api/search?q=red",
        f"/api/pictures/{key}/original",
        f"/api/pictures/{key}/thumbnail",
        "/none",
    ):
        answer = site.client.get(path)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
        if "html" in answer.headers["content-type"]:
            assert "<script>" not in answer.text
            assert "style=" not in answer.text


def test_without_the_token_nothing_is_reported(guarded: SearchSite) -> None:
    both = (*search_routes.router.routes, *picture_routes.router.routes)
    routes = [route for route in both if isinstance(route, APIRoute)]
    assert len(routes) >= 18
    key = "0" * 32
    for route in routes:
        path = route.path.replace("{picture}", key).replace("{size}", "thumbnail").replace("{name}", key)
        for method in route.methods:
            headers = {"Content-Type": "image/png"} if method == "POST" else {}
            assert guarded.client.request(method, path, headers=headers).status_code == 401, path
    for path in ("/metrics", "/api/openapi.json"):
        assert guarded.client.get(path).status_code == 401
    for path in ("/", "/map", "/duplicates", "/api", f"/pictures/{key}"):
        reply_ = guarded.client.get(path)
        assert reply_.status_code == 303
        assert reply_.headers["location"] == "/enter"
    assert guarded.client.get("/enter").status_code == 200
    assert guarded.client.get("/healthz").status_code == 200


def test_the_token_lets_programs_and_browsers_in(guarded: SearchSite) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert guarded.client.get("/api/search?q=red", headers=bearer).status_code == 200
    entered = guarded.client.post("/api/enter", json={"token": TOKEN})
    cookie = entered.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert TOKEN not in cookie
    assert guarded.client.get("/", headers={"Accept": "text/html"}).status_code == 200
    guarded.client.cookies.clear()
    assert guarded.client.get("/api/search?q=red").status_code == 401


def test_wrong_tokens_cannot_be_tried_for_long_and_lock_nobody_out(tmp_path: Path) -> None:
    with SearchSite(tmp_path).serve(entrance=Entrance(TOKEN)) as site:
        tried = [
            site.client.get("/api/status", headers={"Authorization": f"Bearer wrong-{number}"}).status_code
            for number in range(WRONG_BURST)
        ]
        assert set(tried) == {401}
        wrong = {"Authorization": "Bearer wrong-again"}
        assert site.client.get("/api/status", headers=wrong).status_code == 429
        assert site.client.post("/api/enter", json={"token": "wrong-as-well"}).status_code == 429
        # Whoever has the token comes in, whatever others at the same address send.
        assert site.client.get("/api/status", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert site.client.post("/api/enter", json={"token": TOKEN}).status_code == 200


def test_short_tokens_and_open_doors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DeixisError, match="16"):
        Entrance("short")
    for host in ("0.0.0.0", "192.168.0.7", "::", "photos.home"):
        reply_ = CliRunner().invoke(command_line, ["serve", "--host", host, "--index", str(tmp_path / "index")])
        assert "token is needed" in str(reply_.exception)
    assert [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9", "0.0.0.0", "evil")] == [
        True, True, True, True, False, False,
    ]  # fmt: skip


TRAVERSALS = ["../../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%00", "/etc/passwd", "1", "0" * 31, "G" * 32, "0" * 64]


@pytest.mark.parametrize("name", TRAVERSALS)
def test_a_picture_goes_by_its_key_and_by_nothing_else(site: SearchSite, name: str) -> None:
    paths = (
        "/pictures/{}",
        "/api/pictures/{}",
        "/api/pictures/{}/thumbnail",
        "/api/pictures/{}/original",
        "/static/{}",
    )
    for path in (*paths, "/api/downloads/{}"):
        assert site.client.get(path.format(name)).status_code in (404, 422), path
    assert site.client.post(f"/api/pictures/{name}/reveal", json={}).status_code in (403, 404, 405, 415, 422)
    assert site.client.post("/api/downloads", json={"pictures": [name]}).status_code == 422
    assert site.get("/api/similar", picture=name).status_code in (404, 422)
    assert site.get("/api/ground", picture=name, text="red").status_code in (404, 422)


def test_an_unknown_key_is_no_picture(site: SearchSite) -> None:
    for path in (f"/api/pictures/{'0' * 32}", f"/api/pictures/{'0' * 32}/screen", f"/pictures/{'0' * 32}"):
        assert site.client.get(path).status_code == 404


def test_only_what_was_indexed_is_shown(tmp_path: Path) -> None:
    """A file, or a folder on the way to it, that was replaced leads to nothing outside, and to nothing new inside."""
    site = SearchSite(tmp_path)
    secret = paint(tmp_path / "outside" / "deep" / "secret.png", (1, 2, 3), SIZE)
    for name in ("changed", "linked"):
        paint(site.pictures / f"{name}.png", {"changed": (9, 9, 9), "linked": (8, 8, 8)}[name], SIZE)
    paint(site.pictures / "deep" / "secret.png", (7, 7, 7), SIZE)
    paint(site.pictures / "moved" / "away.png", (6, 6, 6), SIZE)
    site.update()
    with site.serve():
        hits = {
            Path(hit["path"]).name: hit["picture"]
            for hit in site.get("/api/search", q="black", count=200).json()["hits"]
        }
        keys = {name: hits[f"{name}.png"] for name in ("changed", "linked", "secret", "away", "red")}
        paint(site.pictures / "changed.png", (99, 99, 99), SIZE)
        (site.pictures / "linked.png").unlink()
        (site.pictures / "linked.png").symlink_to(secret)
        (site.pictures / "deep" / "secret.png").unlink()
        (site.pictures / "deep").rmdir()
        (site.pictures / "deep").symlink_to(tmp_path / "outside" / "deep")
        # Even the very bytes that were indexed are not read outside of the indexed folders.
        os.rename(site.pictures / "moved", tmp_path / "outside" / "moved")
        (site.pictures / "moved").symlink_to(tmp_path / "outside" / "moved")
        for name in ("changed", "linked", "secret", "away"):
            picture = f"/api/pictures/{keys[name]}"
            for path in (f"{picture}/thumbnail", picture, f"{picture}/original", f"{picture}/original?download=1"):
                reply_ = site.client.get(path)
                assert reply_.status_code == 404, name
                assert str(tmp_path) not in reply_.text
        assert site.client.get(f"/api/pictures/{keys['red']}/thumbnail").status_code == 200
        address = site.client.post("/api/downloads", json={"pictures": list(keys.values())}).json()["address"]
        with zipfile.ZipFile(io.BytesIO(site.client.get(address).content)) as archive:
            assert archive.namelist() == ["red.png", "not included.txt"]
            missing = archive.read("not included.txt").decode()
        assert [name for name in keys if f"{name}.png" not in missing] == ["red"]


def test_files_are_revealed_only_at_the_machine_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, bool]] = []
    monkeypatch.setattr("typer.launch", lambda path, locate: shown.append((path, locate)) or int("blue" in path))
    site = SearchSite(tmp_path)
    with site.serve(is_local=True):
        address = f"/api/pictures/{site.key('red')}/reveal"
        assert site.get("/api/status").json()["reveals"] is True
        assert site.client.post(address, json={}).json() == {"path": str(site.pictures / "red.png")}
        assert shown == [(str(site.pictures / "red.png"), True)]
        for header in ("X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"):
            assert site.client.post(address, json={}, headers={header: "127.0.0.1"}).status_code == 403
        # Another site's page can make a browser send a form or follow a link, and neither is enough.
        assert site.client.post(address, content="x", headers={"Content-Type": "text/plain"}).status_code == 415
        assert site.client.post(address, json={}, headers={"Origin": "http://evil.example"}).status_code == 403
        assert site.client.get(address).status_code in (404, 405, 422)
        assert site.client.post(f"/api/pictures/{'0' * 32}/reveal", json={}).status_code == 404
        assert len(shown) == 1
        reply_ = site.client.post(f"/api/pictures/{site.key('blue')}/reveal", json={})
        assert (reply_.status_code, reply_.json()["error"]) == (409, "no file manager opens here")
    with site.serve():
        assert site.get("/api/status").json()["reveals"] is False
        assert site.client.post(address, json={}).status_code == 403
    assert len(shown) == 2


def test_only_a_server_for_this_machine_reveals_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SearchSite(tmp_path)
    made: list[bool] = []
    monkeypatch.setattr("deixis.search.engine.load_search_model", lambda name: ColourModel())
    monkeypatch.setattr("deixis.web.serving.serve", lambda app, *rest: made.append(app.state.search.is_local))
    index = ["serve", "--index", str(tmp_path / "index"), "--model", "none"]
    for options in ([], ["--token", TOKEN], ["--allow-host", "photos.home"], ["--proxy", "127.0.0.1"]):
        assert CliRunner().invoke(command_line, [*index, *options]).exception is None
    assert CliRunner().invoke(command_line, [*index, "--host", "0.0.0.0", "--token", TOKEN]).exception is None
    assert made == [True, False, False, False, False]


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header says that it is huge."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")


def jpeg() -> bytes:
    buffer = io.BytesIO()
    Pillow.new("RGB", (64, 64), "red").save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"GIF89a", b"not a picture", bomb(100_000, 100_000), bomb(65_535, 30_000), bomb(10_000, 7000),
     jpeg()[:200], b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe-3.0 EPSF-3.0\n", bomb(1, 1)[:30]],
    ids=["empty", "zero", "header", "text", "bomb", "wide", "many pixels", "cut off", "svg", "eps", "half"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/api/similar", "/api/ground?text=red", "/api/describe"])
def test_hostile_pictures_are_refused_in_words(site: SearchSite, path: str, data: bytes) -> None:
    before = sorted(site.index.parent.rglob("*"))
    reply_ = site.client.post(path, content=data, headers={"Content-Type": "image/png"})
    assert reply_.status_code == 400
    assert reply_.json()["error"]
    assert str(site.index.parent) not in reply_.text
    assert sorted(site.index.parent.rglob("*")) == before


@pytest.mark.skipif(os.name != "posix", reason="counts seconds of computing")
def test_a_small_picture_that_takes_long_is_refused_and_others_are_served(
    site: SearchSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    pillow_heif.register_heif_opener()
    large = remade("HEIF", encoded("HEIF", 2048), (64, 64), grid=(16, 16), tile=(2048, 2048))
    monkeypatch.setattr(decoding_process, "CPU_SECONDS", 1)
    reply_ = site.client.post("/api/similar", content=large, headers={"Content-Type": "image/heic"}, timeout=60)
    assert reply_.status_code == 400
    assert "takes too long or too much memory to decode" in reply_.json()["error"]
    small = site.client.post("/api/similar", content=encoded("HEIF", 64), headers={"Content-Type": "image/heic"})
    assert small.status_code == 200


def test_what_is_too_large_or_not_a_picture_is_refused(site: SearchSite) -> None:
    picture = jpeg()
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "", "text/html"):
        refused = site.post("/api/similar", picture, kind=kind)
        assert refused.status_code == 415
        assert "Content-Type must say" in refused.json()["error"]
        assert "image/jpeg" in refused.json()["error"]
    assert site.post("/api/similar", bytes(LARGEST_PICTURE + 1)).status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(LARGEST_PICTURE // (1 << 20) + 1):
            yield bytes(1 << 20)

    sent = site.client.post("/api/similar", content=pieces(), headers={"Content-Type": "image/png"})
    assert sent.status_code == 413
    # A picture is taken where pictures are, and nowhere else is so much read.
    assert (
        site.client.post("/api/enter", content=bytes(2 << 20), headers={"Content-Type": "application/json"}).status_code
        == 413
    )


def test_strangers_text_is_never_markup(tmp_path: Path) -> None:
    site = SearchSite(tmp_path)
    paint(site.pictures / "<img src=x onerror=alert(1)>.png", COLOURS["black"], SIZE)
    site.update()
    with site.serve():
        found = site.get("/api/search", q="black", count=1).json()["hits"][0]
        page = site.client.get(f"/pictures/{found['picture']}").text
        assert "<img src=x" not in page
        assert "&lt;img src=x" in page


def test_stalled_uploads_hold_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deixis.web.search_state.STALLED_SECONDS", 2.0)
    with SearchSite(tmp_path).serve() as site, ExitStack() as stalled:
        host, port = site.client.base_url.host, site.client.base_url.port
        assert port is not None
        head = (
            f"POST /api/similar HTTP/1.1\r\nHost: {host}\r\nContent-Type: image/png\r\n"
            f"Content-Length: {1 << 20}\r\n\r\n"
        ).encode()
        sockets = [stalled.enter_context(socket.create_connection((host, port))) for _ in range(40)]
        for each in sockets:
            each.sendall(head + b"\x89PNG" + bytes(1000))
        start = time.monotonic()
        picture = (site.pictures / "red.png").read_bytes()
        answer = site.client.post("/api/similar", content=picture, headers={"Content-Type": "image/png"})
        assert answer.status_code == 200
        assert time.monotonic() - start < 2.0
        # They get an answer and are disconnected.
        for each in sockets:
            each.settimeout(20)
            assert b" 408 " in each.recv(1000)


def test_pictures_being_received_take_a_bounded_number_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deixis.web.search_state.RECEIVED_BYTES", 1000)
    with SearchSite(tmp_path).serve() as site:
        sent = {"content": bytes(2000), "headers": {"Content-Type": "image/png"}}
        assert site.client.post("/api/similar", **sent).status_code == 503
        # What was counted is forgotten with the request.
        assert site.client.post("/api/similar", **sent).status_code == 503
        assert site.app.state.search._received == 0


def test_the_address_that_a_client_claims_counts_only_from_a_proxy_that_is_named(tmp_path: Path) -> None:
    def tries(site: SearchSite) -> set[int]:
        """The outcomes of more wrong tokens than an address may send, each as if from another address."""
        return {
            site.client.get(
                "/api/status",
                headers={"Authorization": f"Bearer wrong-{number}", "X-Forwarded-For": f"10.0.0.{number}"},
            ).status_code
            for number in range(WRONG_BURST + 1)
        }

    with SearchSite(tmp_path / "direct").serve(entrance=Entrance(TOKEN)) as site:
        assert tries(site) == {401, 429}
    with SearchSite(tmp_path / "behind").serve(entrance=Entrance(TOKEN), proxies=["127.0.0.1"]) as site:
        assert tries(site) == {401}
