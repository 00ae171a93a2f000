"""Running an application: a socket of our own, so that a port in use is reported in one line, and a quiet uvicorn."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence

import uvicorn
from starlette.types import ASGIApp

from deixis.errors import DeixisError
from deixis.web.connections import BACKLOG, BoundedProtocol, most_connections, quiet_logs


def server(app: ASGIApp, proxies: Sequence[str] = ()) -> uvicorn.Server:
    """A quiet server with bounds on what clients may take (`deixis.web.connections`).

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
