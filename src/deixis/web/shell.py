"""What pages share: the frame around them, static files, JSON in and out, and errors worded for people."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.staticfiles import StaticFiles

from deixis.errors import DeixisError
from deixis.web.security import Guard

Body = TypeVar("Body")
#: A number as every database keeps it.
Number = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]

STATIC = Path(__file__).parent / "static"
_templates = Environment(loader=PackageLoader("deixis.web"), autoescape=True, undefined=StrictUndefined)


class OwnFiles(StaticFiles):
    """Our scripts and styles: kept by browsers, but asked after, so that a new version is seen at once."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        response = super().file_response(*arguments, **options)
        response.headers["Cache-Control"] = "no-cache"
        return response


def make_app(title: str, statuses: Mapping[type[DeixisError], int], **guarding: Any) -> FastAPI:
    """An application with the guard, static files under `/static`, and our errors; its pages are yet to be added.

    Args:
        statuses: errors that are reported with another status than 400.
        guarding: more arguments of the guard.
    """
    app = FastAPI(title=title, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, **guarding)
    app.mount("/static", OwnFiles(directory=STATIC), name="static")
    app.add_exception_handler(StarletteHTTPException, _tell_refusal)
    app.add_exception_handler(RequestValidationError, _tell_parameters)
    app.add_exception_handler(DeixisError, _tell_fault(400))
    for kind, status in statuses.items():
        app.add_exception_handler(kind, _tell_fault(status))
    return app


def page(template: str, **values: Any) -> HTMLResponse:
    """A page from a template; all values are escaped."""
    return HTMLResponse(_templates.get_template(template).render(**values))


def reply(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


#: PostgreSQL keeps no such text.
NO_NUL = "text cannot hold the character U+0000"


def body(kind: type[Body]) -> Callable[[Request], Coroutine[Any, Any, Body]]:
    """A dependency: the request's JSON as a record of this kind."""
    decoder = msgspec.json.Decoder(kind)

    async def read(request: Request) -> Body:
        sent = await request.body()
        if b"\\u0000" in sent:
            raise HTTPException(422, NO_NUL)
        try:
            return decoder.decode(sent)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as fault:
            raise HTTPException(422, str(fault)) from None

    return read


async def _tell_refusal(request: Request, fault: Exception) -> Response:
    assert isinstance(fault, StarletteHTTPException)
    return _tell(request, str(fault.detail), fault.status_code, dict(fault.headers or {}))


async def _tell_parameters(request: Request, fault: Exception) -> Response:
    assert isinstance(fault, RequestValidationError)
    problems = "; ".join(f"{problem['loc'][-1]}: {problem['msg']}" for problem in fault.errors())
    return _tell(request, problems, 422)


def _tell_fault(status: int) -> Callable[[Request, Exception], Coroutine[Any, Any, Response]]:
    async def reply(request: Request, fault: Exception) -> Response:
        return _tell(request, str(fault), status)

    return reply


def _tell(request: Request, problem: str, status: int, headers: dict[str, str] | None = None) -> Response:
    """JSON for scripts, a small page for people."""
    if "text/html" in request.headers.get("accept", ""):
        response: Response = page("problem.html", problem=problem, status=status)
        response.status_code = status
    else:
        response = reply({"error": problem}, status)
    response.headers.update(headers or {})
    return response
