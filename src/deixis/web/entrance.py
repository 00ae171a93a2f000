"""The way into a server that is opened to others: one token, sent by programs, or shown once by a browser.

A program sends `Authorization: Bearer TOKEN`. A browser opens the link that is printed at the start, whose token stands
behind the `#` and so is in no log; it gets a cookie made of the token, which scripts cannot read.
"""

from __future__ import annotations

import hmac

from fastapi import HTTPException, Request, Response

from deixis.errors import DeixisError
from deixis.web.limits import RateLimit

#: A shorter token could be guessed.
SHORTEST = 16
#: Wrong tokens from one address.
WRONG_RATE, WRONG_BURST = 1 / 6, 10
COOKIE_SECONDS = 30 * 24 * 3600


class Entrance:
    """Who may come in: whoever has the token; without one, everybody who can reach the server."""

    def __init__(self, token: str | None) -> None:
        if token is not None and (len(token) < SHORTEST or not token.isascii() or not token.isprintable()):
            raise DeixisError(f"a token has {SHORTEST} letters, digits or signs at least")
        self._token = token
        self._pass = "" if token is None else hmac.digest(token.encode(), b"deixis serve", "sha256").hex()
        self._cookie = f"deixis_{self._pass[:8]}"
        self._wrong = RateLimit(WRONG_RATE, WRONG_BURST)

    @property
    def is_open(self) -> bool:
        return self._token is None

    def admits(self, request: Request) -> bool:
        if self._token is None:
            return True
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and sent:
            return self._is_right(request, sent.strip())
        return hmac.compare_digest(request.cookies.get(self._cookie, "").encode(), self._pass.encode())

    def enter(self, request: Request, response: Response, sent: str) -> None:
        """Let a browser in that has shown the token: the response gets the cookie."""
        if self._token is None:
            return
        if not self._is_right(request, sent):
            raise HTTPException(403, "this is not the token that the server was started with")
        secure = request.url.scheme == "https"
        response.set_cookie(
            self._cookie, self._pass, max_age=COOKIE_SECONDS, httponly=True, samesite="lax", secure=secure
        )

    def _is_right(self, request: Request, sent: str) -> bool:
        """Whoever has the token comes in, also from an address that others send wrong ones from."""
        if hmac.compare_digest(sent.encode(), (self._token or "").encode()):
            return True
        address = request.client.host if request.client is not None else ""
        if not self._wrong.allow(address):
            raise HTTPException(429, "too many wrong tokens; wait a minute", {"Retry-After": "60"})
        return False


async def admitted(request: Request) -> None:
    """A dependency: only whoever may come in gets an answer."""
    entrance: Entrance = request.app.state.entrance
    if not entrance.admits(request):
        raise HTTPException(401, "this server wants a token", {"WWW-Authenticate": "Bearer"})
