"""The web application of an annotation project: its pages, their access rules, signing in and out."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from deixis.annotation import schema
from deixis.annotation.accounts import Account, Accounts
from deixis.annotation.workbench import StaleTask, Workbench
from deixis.annotation.workers import ROLES
from deixis.corpus import TYPES
from deixis.errors import DeixisError
from deixis.vision.drawing.palette import PALETTE
from deixis.web import admin_routes, review_routes, work_routes
from deixis.web.annotation_pictures import PictureShelf
from deixis.web.annotation_records import Empty, Joined, Link, document_annotation, replies
from deixis.web.limits import RateLimit
from deixis.web.openapi import json_body
from deixis.web.security import Hosts
from deixis.web.sessions import Sessions
from deixis.web.shell import body, make_app, page, reply
from deixis.web.state import bench_of

#: Limit on the requests of one worker (per second, burst); fast work stays far below it.
WORKER_RATE, WORKER_BURST = 20.0, 100
#: Limit on wrong invitations from one address (per second, burst).
WRONG_RATE, WRONG_BURST = 1 / 6, 10

pages = APIRouter()


def workbench_app(bench: Workbench, clock: Callable[[], float] = time.time, hosts: Hosts | None = None) -> FastAPI:
    """The web application of an open project. The project must record where its pictures are.

    Args:
        bench: the project.
        clock: the current time in seconds.
        hosts: the names that the server answers to; None for those of this machine alone.
    """
    app = make_app("Deixis annotate", {StaleTask: 409}, hosts=hosts or Hosts("127.0.0.1"))
    with schema.reading(bench.engine) as connection:
        app.state.name = schema.get_value(connection, "name") or "Annotation"
        known = connection.execute(select(schema.known.c.id).limit(1)).first() is not None
    app.add_exception_handler(OperationalError, _tell_database_down)
    app.state.workbench = bench
    app.state.pictures = PictureShelf(bench.engine, known=known)
    cookie = hashlib.sha256(bench.where.encode()).hexdigest()[:8]
    app.state.sessions = Sessions(Accounts(bench.engine, clock), cookie, RateLimit(WORKER_RATE, WORKER_BURST))
    app.state.wrong_invitations = RateLimit(WRONG_RATE, WRONG_BURST)
    for router in (pages, work_routes.router, review_routes.router, admin_routes.router):
        app.include_router(router)
    document_annotation(app, app.state.sessions.cookie, REQUESTS)
    return app


async def _tell_database_down(request: Request, fault: Exception) -> Response:
    """The database is down, locked or full. The pages send their request again until it is back."""
    logging.getLogger(__name__).error("the database does not answer: %s", getattr(fault, "orig", fault))
    response = reply({"error": "the database does not answer; try again"}, 503)
    response.headers["Retry-After"] = "2"
    return response


class Joining(msgspec.Struct, forbid_unknown_fields=True):
    """The secret of an invitation with the new worker's name, or of a link to sign in again without a name."""

    secret: str
    name: Annotated[str, msgspec.Meta(max_length=60)] | None = None


#: What the routes take.
REQUESTS = (
    Joining,
    work_routes.Answered,
    work_routes.Returned,
    work_routes.TakenBack,
    review_routes.Fixed,
    admin_routes.Invited,
    admin_routes.Decided,
)


@pages.get("/", include_in_schema=False)
def home(request: Request) -> Response:
    account = _sessions(request).account(request)
    if account is None:
        return page("door.html", way="", project=request.app.state.name)
    return RedirectResponse("/admin" if account.role == "administrator" else "/work", 303)


@pages.get("/join", include_in_schema=False)
def join_page(request: Request) -> Response:
    return page("door.html", way="join", project=request.app.state.name)


@pages.get("/back", include_in_schema=False)
def back_page(request: Request) -> Response:
    return page("door.html", way="back", project=request.app.state.name)


@pages.post(
    "/api/join",
    responses=replies(Joined, 408, 413, 415),
    openapi_extra=json_body(Joining) | {"security": []},
    response_class=Response,
)
def join(request: Request, sent: Annotated[Joining, Depends(body(Joining))]) -> Response:
    """Sign in. The reply sets the session cookie."""
    sessions = _sessions(request)
    wrong: RateLimit = request.app.state.wrong_invitations
    address = request.client.host if request.client is not None else ""
    try:
        if sent.name is None:
            account = sessions.accounts.sign_in(sent.secret)
        elif not sent.name.isprintable():
            raise DeixisError("a name must consist of printable characters")
        else:
            account = sessions.accounts.accept(sent.secret, sent.name.strip())
    except DeixisError:
        # A right secret always lets in: others at the same address may send wrong ones.
        if not wrong.allow(address):
            raise HTTPException(429, "too many wrong invitations; wait a minute", {"Retry-After": "60"}) from None
        raise
    new = sent.name is not None and account.role != "administrator"
    link = f"/back#{sessions.accounts.sign_in_link(account.worker)}" if new else None
    response = reply({"role": account.role, "link": link})
    sessions.open(response, account.worker, secure=request.url.scheme == "https")
    return response


@pages.post("/api/link", responses=replies(Link, 408, 413, 415), response_class=Response)
def link(request: Request, worker: work_routes.Worker) -> Response:
    """A new sign-in link for whoever is signed in; the one before ends. An administrator's works once."""
    return reply({"path": f"/back#{_sessions(request).accounts.sign_in_link(worker.worker)}"})


@pages.post("/api/leave", responses=replies(Empty, 408, 413, 415), response_class=Response)
def leave(request: Request, worker: work_routes.Worker) -> Response:
    response = reply({})
    _sessions(request).close(request, response)
    return response


@pages.get("/api/openapi.json", include_in_schema=False)
async def openapi(request: Request, worker: work_routes.Worker) -> Response:
    return reply(request.app.openapi())


@pages.get("/work", include_in_schema=False)
def work_page(request: Request) -> Response:
    return _page(request, "work.html", "worker", tasks=bench_of(request).task_rules)


@pages.get("/review", include_in_schema=False)
def review_page(request: Request) -> Response:
    palette = " ".join("#{:02x}{:02x}{:02x}".format(*colour) for colour in PALETTE)
    return _page(request, "review.html", "reviewer", types=TYPES, palette=palette, tasks=bench_of(request).task_rules)


@pages.get("/images", include_in_schema=False)
def images_page(request: Request) -> Response:
    return _page(request, "images.html", "reviewer", per_page=review_routes.PER_PAGE)


@pages.get("/admin", include_in_schema=False)
def admin_page(request: Request) -> Response:
    tasks = {task: rules.title for task, rules in bench_of(request).task_rules.items()}
    return _page(request, "admin.html", "reviewer", tasks=tasks, formats=admin_routes.EXPORTS, roles=ROLES)


def _sessions(request: Request) -> Sessions:
    sessions: Sessions = request.app.state.sessions
    return sessions


def _page(request: Request, template: str, role: str, **values: object) -> Response:
    """A page that requires this role. Redirects to the sign-in page if nobody is signed in."""
    sessions = _sessions(request)
    if sessions.account(request) is None:
        return RedirectResponse("/", 303)
    account: Account = sessions.admit(request, role)
    rank = ROLES.index(account.role)
    return page(
        template,
        project=request.app.state.name,
        account=account,
        reviewer=rank >= ROLES.index("reviewer"),
        administrator=rank >= ROLES.index("administrator"),
        token=sessions.token(request),
        settings=bench_of(request).settings,
        **values,
    )
