"""The application of a served index: its pages, its API, who may come in, and how it is doing."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Path, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deixis.vision.drawing.palette import PALETTE, Colour, text_on
from deixis.vision.picture_files import shown
from deixis.web import picture_routes, search_routes
from deixis.web.entrance import Entrance, admitted
from deixis.web.indexed_pictures import NoPicture, picture_of
from deixis.web.search_desk import Busy, Desk
from deixis.web.search_records import KEY, Health, document_search, replies
from deixis.web.search_state import LARGEST_PICTURE, SearchState, state_of
from deixis.web.security import Hosts
from deixis.web.shell import body, make_app, page, reply
from deixis.web.sight import Sight, Unable


async def _led_to_the_door(request: Request) -> None:
    """A dependency of pages: whoever may not come in is led to the door."""
    entrance: Entrance = request.app.state.entrance
    if not entrance.admits(request):
        raise HTTPException(303, "this server wants a token", {"Location": "/enter"})


pages = APIRouter(include_in_schema=False, dependencies=[Depends(_led_to_the_door)])
open_routes = APIRouter()


def search_app(
    desk: Desk,
    sight: Sight | None = None,
    *,
    hosts: Hosts | None = None,
    entrance: Entrance | None = None,
    is_local: bool = False,
) -> FastAPI:
    """The application of an index.

    Args:
        desk: answers queries.
        sight: points at phrases and describes.
        hosts: the names that it may be asked for under; None for those of this machine alone.
        entrance: who may come in; None for everybody who can reach the server.
        is_local: whether only this machine reaches it, without a proxy: then it shows files in the file manager.
    """
    statuses = {NoPicture: 404, Unable: 409, Busy: 429}
    guarding = {"hosts": hosts or Hosts("127.0.0.1"), "largest_picture": LARGEST_PICTURE}
    app = make_app("Deixis search", statuses, **guarding)
    metrics = Metrics()
    metrics.watch("deixis_pictures", "Pictures of the index.", lambda: len(desk.engine.collection))
    metrics.watch("deixis_waiting", "Queries that wait.", lambda: desk.waiting)
    app.add_middleware(Measured, metrics=metrics)
    app.state.search, app.state.metrics = SearchState(desk, sight or Sight(), is_local=is_local), metrics
    app.state.entrance = entrance or Entrance(None)
    for router in (open_routes, pages, search_routes.router, picture_routes.router):
        app.include_router(router)
    document_search(app)
    return app


@open_routes.get("/healthz", responses={200: replies(Health)[200]}, response_class=Response)
async def healthz() -> Response:
    """Whether the server answers."""
    return reply(Health("ok"))


@open_routes.get("/metrics", dependencies=[Depends(admitted)], include_in_schema=False)
async def metrics(request: Request) -> Response:
    server_metrics: Metrics = request.app.state.metrics
    return Response(server_metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@open_routes.get("/api/openapi.json", dependencies=[Depends(admitted)], include_in_schema=False)
async def openapi(request: Request) -> Response:
    return reply(request.app.openapi())


class Entering(msgspec.Struct, forbid_unknown_fields=True):
    token: str


@open_routes.post("/api/enter", include_in_schema=False)
async def enter(request: Request, sent: Annotated[Entering, Depends(body(Entering))]) -> Response:
    """Let a browser in that has the token: a cookie comes with the reply."""
    response = reply({})
    entrance: Entrance = request.app.state.entrance
    entrance.enter(request, response, sent.token)
    return response


@open_routes.get("/enter", include_in_schema=False)
async def door(request: Request) -> Response:
    return page("search/door.html")


@pages.get("/")
async def home(request: Request) -> Response:
    return _page(request, "search/search.html")


@pages.get("/pictures/{picture}")
async def picture(request: Request, picture: Annotated[str, Path(pattern=KEY)]) -> Response:
    collection = state_of(request).desk.engine.collection
    paths = [shown(path) for path in collection.paths(picture_of(collection, picture))]
    palette = " ".join(f"{_hexadecimal(colour)}/{_hexadecimal(text_on(colour))}" for colour in PALETTE)
    return _page(request, "search/picture.html", picture=picture, paths=paths, palette=palette)


@pages.get("/duplicates")
async def duplicates(request: Request) -> Response:
    return _page(request, "search/duplicates.html")


@pages.get("/map")
async def collection_map(request: Request) -> Response:
    return _page(request, "search/map.html")


@pages.get("/api")
async def api(request: Request) -> Response:
    return _page(request, "search/api.html", api=request.app.openapi(), open=request.app.state.entrance.is_open)


def _hexadecimal(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def _page(request: Request, template: str, **values: Any) -> Response:
    return page(template, project="Deixis", status=search_routes.status_of(state_of(request)), **values)


#: Seconds.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Requests by route and status, how long they took, and figures that are read when asked for."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ["method", "route"]
        self.requests = Counter("deixis_requests", "Requests answered.", [*labels, "status"], registry=self.registry)
        self.seconds = Histogram(
            "deixis_request_seconds", "Time to the end of an answer.", labels, buckets=BUCKETS, registry=self.registry
        )

    def watch(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        Gauge(name, meaning, registry=self.registry).set_function(read)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Measured:
    """ASGI middleware that counts. Only routes that exist are named, so that strangers cannot make up labels."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = perf_counter(), 500

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
            self._metrics.requests.labels(method, route, str(status)).inc()
            self._metrics.seconds.labels(method, route).observe(perf_counter() - began)
