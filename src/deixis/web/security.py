"""What every answer of a server carries and every request must pass, whatever page it is for.

Scripts, styles and pictures come from the server itself and from nowhere else. A request must not come from another
site's page; one that sends something sends JSON, or a picture where the server takes any, of a sensible size. The time
of an answer is in `Server-Timing`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Sequence
from time import perf_counter
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: No request is larger: the longest is a reviewer's list of all mentions of a picture.
LARGEST_BODY = 1 << 20
#: Seconds that the body of a request may take to come, and a part of an answer to be taken.
PATIENCE = 60.0
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
CONTENT_TYPE = (
    "the header Content-Type must say what is sent: application/json, or, where a picture is expected, image/jpeg, "
    "image/png or another image type"
)
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


class Hosts:
    """The names under which a server may be asked for, so that no other site's name can be made to lead to it.

    Args:
        host: where it listens. Beyond this machine every address will do, and this machine's own name.
        others: further names, such as that of a proxy before it.
    """

    def __init__(self, host: str, others: Sequence[str] = ()) -> None:
        self._any_address = not is_loopback(host)
        host_names = [socket.gethostname(), socket.getfqdn()] if self._any_address else []
        self._names = {name.lower() for name in ("localhost", "127.0.0.1", "::1", host, *host_names, *others)}

    def __contains__(self, header: str) -> bool:
        """Whether a `Host` header names this server; at which port does not matter (it may be forwarded)."""
        try:
            name = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        return name in self._names or (self._any_address and _is_address(name))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """ASGI middleware: checks requests, and adds the headers to every answer.

    Args:
        hosts: the names it may be asked for under; None for any.
        largest_picture: bytes of a picture that may be sent; 0 where none may.
    """

    def __init__(self, app: ASGIApp, hosts: Hosts | None = None, largest_picture: int = 0) -> None:
        self._app, self._hosts, self._largest_picture = app, hosts, largest_picture

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
                # Pages are private unless they say otherwise.
                headers.setdefault("Cache-Control", "no-store")
                headers["Server-Timing"] = f"app;dur={1000 * (perf_counter() - began):.2f}"
            try:
                async with asyncio.timeout(PATIENCE):
                    await send(message)
            except TimeoutError:
                raise _TooSlow from None

        headers = Headers(scope=scope)
        largest = _largest(headers.get("content-type", ""), self._largest_picture)
        refusal = self._misdirected(headers) or refused(scope["method"], headers, largest)
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
            return
        try:
            await self._app(scope, _limited(receive, largest), send_guarded)
        except ClientDisconnect:
            return  # Nobody waits for an answer.
        except _TooMuch:
            await _too_much()(scope, receive, send_guarded)
        except _TooSlow:
            if not started:
                await JSONResponse({"error": "the request did not come in time"}, 408)(scope, receive, send_guarded)
        except Exception:
            # Whoever asked learns nothing of the inside; the log does.
            logging.getLogger(__name__).exception("%s %s", scope["method"], scope["path"])
            if not started:
                response = JSONResponse({"error": "something went wrong at the server; try again"}, 500)
                await response(scope, receive, send_guarded)

    def _misdirected(self, headers: Headers) -> JSONResponse | None:
        if self._hosts is None or headers.get("host", "") in self._hosts:
            return None
        return JSONResponse({"error": "this server goes by another name (--allow-host adds one)"}, 421)


def refused(method: str, headers: Headers, largest: int) -> JSONResponse | None:
    """Why a request is not let through: from another site, neither JSON nor a picture, or too large."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    foreign = site not in ("same-origin", "none") or (
        origin is not None and urlsplit(origin).netloc != headers.get("host")
    )
    safe = method in SAFE_METHODS
    # Whoever follows a link to us from elsewhere comes by a navigation.
    if foreign and not (safe and headers.get("sec-fetch-mode") == "navigate"):
        return JSONResponse({"error": "this request comes from another site"}, 403)
    if safe:
        return None
    if not largest:
        return JSONResponse({"error": CONTENT_TYPE}, 415)
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > largest:
        return _too_much()
    return None


def _largest(content_type: str, largest_picture: int) -> int:
    """Bytes of a body that may be sent as this; 0 for none. None of these types can be sent by another site's form."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json":
        return LARGEST_BODY
    return largest_picture if kind.startswith("image/") or kind == "application/octet-stream" else 0


class _TooMuch(Exception):
    """A body that was sent in pieces passed the limit."""


def _too_much() -> JSONResponse:
    return JSONResponse({"error": "that is too much at once"}, 413)


class _TooSlow(Exception):
    """A body did not come in time, or an answer was not taken."""


def _limited(receive: Receive, largest: int) -> Receive:
    """Bodies sent in pieces, without a length, end at the limit too; all of a body must come in time."""
    received, whole = 0, False
    deadline = asyncio.get_running_loop().time() + PATIENCE

    async def limited() -> Message:
        nonlocal received, whole
        if whole:
            # From here on, one waits for the client to leave, which may take as long as the answer.
            return await receive()
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise _TooSlow from None
        whole = not message.get("more_body", False)
        received += len(message.get("body", b""))
        if received > max(largest, LARGEST_BODY):
            raise _TooMuch
        return message

    return limited
