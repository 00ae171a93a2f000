"""Running an application: a socket of our own, so that a port in use is told in one line, and a quiet uvicorn."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from deixis.errors import DeixisError


def serve(app: ASGIApp, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until interrupted; `ready` is called with the address once requests will be answered. Port 0: any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, so that asyncio sends small answers at once instead of waiting for the last one's receipt.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as fault:
            raise DeixisError(f"cannot listen on {host} port {port}: {fault.strerror or fault}") from None
        listener.listen(1024)
        shown = f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{listener.getsockname()[1]}")
        settings = uvicorn.Config(app, access_log=False, log_level="warning", server_header=False, lifespan="off")
        uvicorn.Server(settings).run(sockets=[listener])
