"""Running an application: a socket of our own, so that a port in use is reported in one line, and a quiet uvicorn.

uvicorn waits for ever for the rest of a request, and accepts connections until the process has no file descriptor left.
Here a request's head must come within seconds, and the number of connections is bounded: when there are too many, the
one closes that has kept the server waiting for longest.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from deixis.errors import DeixisError

#: Seconds in which the head of a request must come, from its first byte or from the start of the connection.
HEAD_SECONDS = 10.0
#: Connections at once; less where the process may not have twice as many files open.
MOST_CONNECTIONS = 512
#: Connections that are accepted before the first of them is looked at.
BACKLOG = 64
#: Seconds in which a client must take some of an answer.
TAKING_SECONDS = 60.0
#: Seconds in which a message is logged once, however often it comes.
LOG_SECONDS = 60.0

_logger = logging.getLogger(__name__)


def most_connections() -> int:
    """How many connections this process may have; more files than usual are allowed to it where the system lets it."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limit.
        return MOST_CONNECTIONS
    files, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < 4 * MOST_CONNECTIONS:
        files = 4 * MOST_CONNECTIONS if allowed == resource.RLIM_INFINITY else min(4 * MOST_CONNECTIONS, allowed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, allowed))
    return max(8, min(MOST_CONNECTIONS, files // 2))


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 with a limit on the time for a request's head and on the number of connections."""

    #: Set by whoever starts a server.
    most = MOST_CONNECTIONS
    _timer: asyncio.TimerHandle | None = None
    _waits_since = 0.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()
        if len(self.connections) > self.most:
            others = [
                connection
                for connection in self.connections
                if isinstance(connection, BoundedProtocol) and connection.keeps_waiting
            ]
            _logger.warning("more than %d connections: closing those that keep the server waiting", self.most)
            # Without another, it is this one that has waited for longest.
            min(others, key=lambda connection: connection._waits_since, default=self).close_now()

    @property
    def keeps_waiting(self) -> bool:
        """Whether the server waits for this client: for a request, for the rest of it, or to take the answer."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body or self.flow.write_paused

    def close_now(self) -> None:
        self._forget_timer()
        # At once, so that the next one too many does not choose it again.
        self.connections.discard(self)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._waits_since = time.monotonic()
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state is not h11.IDLE:
            self._forget_timer()
        elif self._timer is None and self.conn.trailing_data[0]:
            # The beginning of another request on a connection that was kept.
            self._expect_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_taking(None)

    def _watch_taking(self, left: int | None) -> None:
        """Close a connection whose client takes nothing of what is left of its answer."""
        size = 0 if self.transport.is_closing() and left is None else self.transport.get_write_buffer_size()
        if left is not None and size >= left:
            _logger.warning("an answer was not taken within %d seconds: closing its connection", TAKING_SECONDS)
            self.close_now()
        elif size:
            self.loop.call_later(TAKING_SECONDS, self._watch_taking, size)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_timer()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._waits_since = time.monotonic()
        self._timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _give_up(self) -> None:
        _logger.warning("a request did not come within %d seconds: closing its connection", HEAD_SECONDS)
        self.close_now()

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class OnceAMinute(logging.Filter):
    """Lets a message through once a minute, with the number of those that were left out since."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._last: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        last, left_out = self._last.get(str(record.msg), (-LOG_SECONDS, 0))
        if now - last < LOG_SECONDS:
            self._last[str(record.msg)] = last, left_out + 1
            return False
        self._last[str(record.msg)] = now, 0
        if left_out:
            record.msg = f"{record.msg} (and {left_out:,} times before)"
        return True


def quiet_logs() -> None:
    """Keep clients from filling the log: what they can cause is logged once a minute."""
    once = OnceAMinute()
    for name in (__name__, "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        if not any(isinstance(log_filter, OnceAMinute) for log_filter in logger.filters):
            logger.addFilter(once)


def server(app: ASGIApp, proxies: Sequence[str] = ()) -> uvicorn.Server:
    """A quiet server with bounds on what clients may take (`deixis.web.serving`).

    Args:
        proxies: addresses of proxies that are believed about the client's address (`X-Forwarded-For`, `-Proto`).
    """
    settings = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        backlog=BACKLOG,
        access_log=False,
        log_level="warning",
        server_header=False,
        lifespan="off",
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
    )
    quiet_logs()
    BoundedProtocol.most = most_connections()
    return uvicorn.Server(settings)


def serve(app: ASGIApp, host: str, port: int, ready: Callable[[str], None], proxies: Sequence[str] = ()) -> None:
    """Serve until interrupted; `ready` is called with the address once requests will be answered. Port 0: any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, so that asyncio sends small answers at once instead of waiting for the last one's receipt.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as fault:
            advice = "; try another --port" if fault.errno == errno.EADDRINUSE else ""
            raise DeixisError(f"cannot listen on {host} port {port}: {fault.strerror or fault}{advice}") from None
        listener.listen(BACKLOG)
        shown = f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{listener.getsockname()[1]}")
        server(app, proxies).run(sockets=[listener])
