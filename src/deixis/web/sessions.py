"""Sessions: a cookie that scripts cannot read, and a CSRF token that our pages send with every change.

The token is derived from the session's secret, so it need not be stored. Other sites cannot read our pages and cannot
compute it.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from starlette.concurrency import run_in_threadpool

from deixis.annotation.accounts import SESSION_SECONDS, Account, Accounts
from deixis.annotation.workers import ROLES
from deixis.web.limits import RateLimit
from deixis.web.security import SAFE_METHODS
from deixis.web.shell import NO_NUL

TOKEN_HEADER = "X-CSRF-Token"


class Sessions:
    """The sessions of one server. `name` distinguishes the cookies of several servers on one machine."""

    def __init__(self, accounts: Accounts, name: str, limit: RateLimit) -> None:
        self.accounts, self.cookie, self._limit = accounts, f"deixis_{name}", limit

    def open(self, response: Response, worker: int, *, secure: bool) -> None:
        response.set_cookie(
            self.cookie,
            self.accounts.open_session(worker),
            max_age=int(SESSION_SECONDS),
            httponly=True,
            samesite="lax",
            secure=secure,
        )

    def close(self, request: Request, response: Response) -> None:
        self.accounts.close_session(self.secret(request))
        response.delete_cookie(self.cookie, httponly=True, samesite="lax", secure=request.url.scheme == "https")

    def secret(self, request: Request) -> str:
        return request.cookies.get(self.cookie, "")

    def account(self, request: Request) -> Account | None:
        """The account of a request, or None if it has no valid session."""
        secret = self.secret(request)
        return self.accounts.account_of(secret) if secret else None

    def token(self, request: Request) -> str:
        return hmac.digest(self.secret(request).encode(), b"cross-site request", "sha256").hex()

    def admit(self, request: Request, role: str) -> Account:
        """The account of a request that requires this role or a higher one. Raises `HTTPException` if it is refused."""
        account = self.account(request)
        if account is None:
            raise HTTPException(401, "you are not signed in, or your session has ended")
        if not self._limit.allow(account.worker):
            raise HTTPException(429, "too many requests; slow down", {"Retry-After": "1"})
        if ROLES.index(account.role) < ROLES.index(role):
            raise HTTPException(403, f"only {role}s may do this")
        sent = request.headers.get(TOKEN_HEADER, "")
        if request.method not in SAFE_METHODS and not hmac.compare_digest(sent.encode(), self.token(request).encode()):
            raise HTTPException(403, "this request does not come from our page; reload the page")
        if "\0" in request.scope["path"] or b"%00" in request.scope["query_string"]:
            raise HTTPException(422, NO_NUL)
        return account


def needs(role: str) -> Callable[[Request], Coroutine[Any, Any, Account]]:
    """A FastAPI dependency that requires this role or a higher one."""

    async def account(request: Request) -> Account:
        sessions: Sessions = request.app.state.sessions
        return await run_in_threadpool(sessions.admit, request, role)

    return account
