"""What every answer of a server carries and every request must pass, whatever page it is for.

Scripts, styles and pictures come from the server itself and from nowhere else. A request that changes something must
come from our own pages, as JSON, and be of a sensible size. How long an answer took stands in `Server-Timing`.
"""

from __future__ import annotations

import logging
from time import perf_counter
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: No request is larger: the longest is a reviewer's list of all mentions of a picture.
LARGEST_BODY = 1 << 20
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


class Guard:
    """ASGI middleware: checks requests, and adds the headers to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = perf_counter()

        started = False

        async def send_guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                # What a page shows is one person's, unless it says otherwise.
                headers.setdefault("Cache-Control", "no-store")
                headers["Server-Timing"] = f"app;dur={1000 * (perf_counter() - began):.2f}"
            await send(message)

        refusal = refused(scope["method"], Headers(scope=scope))
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
            return
        try:
            await self._app(scope, _limited(receive), send_guarded)
        except _TooMuch:
            await _too_much()(scope, receive, send_guarded)
        except Exception:
            # Whoever asked learns nothing of the inside; the log does.
            logging.getLogger(__name__).exception("%s %s", scope["method"], scope["path"])
            if not started:
                told = JSONResponse({"error": "something went wrong at the server; try again"}, 500)
                await told(scope, receive, send_guarded)


def refused(method: str, headers: Headers) -> JSONResponse | None:
    """Why a request is not let through: from another site, not JSON, or too large."""
    if method in SAFE_METHODS:
        return None
    origin = headers.get("origin")
    foreign = headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
    if foreign or (origin is not None and urlsplit(origin).netloc != headers.get("host")):
        return JSONResponse({"error": "this request comes from another site"}, 403)
    if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return JSONResponse({"error": "send JSON"}, 415)
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > LARGEST_BODY:
        return _too_much()
    return None


class _TooMuch(Exception):
    """A body that was sent in pieces passed the limit."""


def _too_much() -> JSONResponse:
    return JSONResponse({"error": "that is too much at once"}, 413)


def _limited(receive: Receive) -> Receive:
    """Bodies sent in pieces, without a length, end at the limit too."""
    received = 0

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > LARGEST_BODY:
            raise _TooMuch
        return message

    return limited
