"""A project of rendered scenes, served for real in a thread, and clients that behave as our pages do."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
from fastapi import FastAPI
from starlette.types import ASGIApp

from deixis.annotation.accounts import Accounts
from deixis.annotation.project import create_project
from deixis.annotation.simulation.truth import Truth, truths
from deixis.annotation.workbench import Assistant, Workbench
from deixis.annotation.workflow_records import Settings
from deixis.corpus import Corpus, open_corpus, write_corpus
from deixis.web import serving as serving_module
from deixis.web.annotation_app import workbench_app
from tests.annotation.conftest import Clock


def write_corpora(folder: Path) -> tuple[Path, Path]:
    """Scenes to be annotated, and scenes whose annotations are known, with their picture files."""
    scenes = open_corpus("scenes")
    places = folder / "pictures", folder / "known"
    for place, images in zip(places, (scenes.images[:4], scenes.images[4:44]), strict=True):
        write_corpus(Corpus(images, name=place.name, pictures=scenes.pictures), place, pictures=True)
    return places


def make_project(where: str, corpora: tuple[Path, Path], *, known: bool = False, images: int = 4, **rules: Any) -> None:
    mine, theirs = corpora
    corpus = open_corpus(mine)
    create_project(
        where,
        corpus.with_images(corpus.images[:images]),
        start="mentions",
        known=open_corpus(theirs) if known else None,
        known_each=40,
        settings=Settings(**rules),
        chance=Random(0),
        places={"corpus": str(mine), "known_corpus": str(theirs) if known else ""},
        durable=False,
    )


def truths_of(corpora: tuple[Path, Path]) -> dict[str, Truth]:
    return truths(*map(open_corpus, corpora))


@contextmanager
def serving(app: ASGIApp, proxies: Sequence[str] = ()) -> Iterator[str]:
    """The address of a server that runs while the block does."""
    server = serving_module.server(app, proxies)
    server.config.port = 0
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            thread.join(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


class Site:
    """A served project and the people on it."""

    def __init__(self, bench: Workbench, app: FastAPI, address: str, clock: Clock) -> None:
        self.bench, self.app, self.address, self.clock = bench, app, address, clock
        self.accounts = Accounts(bench.engine, clock)
        self.visitors = ExitStack()

    def visitor(self) -> Visitor:
        return self.visitors.enter_context(Visitor(self.address))

    def join(self, name: str, role: str = "worker") -> Visitor:
        visitor = self.visitor()
        visitor.post("/api/join", {"secret": self.accounts.invite(role), "name": name}).raise_for_status()
        visitor.load("/work")
        return visitor


class Visitor(httpx.Client):
    """A browser that has loaded a page: it keeps cookies, and sends the page's token with what it posts."""

    def __init__(self, address: str) -> None:
        super().__init__(base_url=address, timeout=30.0, trust_env=False)
        self.token = ""

    def load(self, path: str) -> httpx.Response:
        page = self.get(path, headers={"Accept": "text/html"})
        found = re.search(r'name="csrf" content="(\w*)"', page.text)
        self.token = found[1] if found else ""
        return page

    def post(self, path: str, sent: Any, **headers: str) -> httpx.Response:  # type: ignore[override]
        return super().post(path, json=sent, headers={"X-CSRF-Token": self.token, **headers})

    def tasks(self, only: str | None = None) -> list[dict[str, Any]]:
        found = self.get("/api/work/tasks", params={} if only is None else {"only": only})
        found.raise_for_status()
        tasks: list[dict[str, Any]] = found.json()["tasks"]
        return tasks


@contextmanager
def open_site(where: str, assistant: Assistant | None = None) -> Iterator[Site]:
    clock = Clock()
    with Workbench(where, clock=clock, chance=Random(1), assistant=assistant, durable=False) as bench:
        app = workbench_app(bench, clock)
        with serving(app) as address:
            site = Site(bench, app, address, clock)
            with site.visitors:
                yield site
