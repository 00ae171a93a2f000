"""A small server for tests of slow clients, run in a process of its own with few file descriptors."""

from __future__ import annotations

import resource
import sys

from fastapi import Request

from deixis.web import security, serving
from deixis.web.serving import serve
from deixis.web.shell import make_app, reply

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
    serving.HEAD_SECONDS = float(sys.argv[2])
    security.PATIENCE = serving.TAKING_SECONDS = float(sys.argv[3])
    app = make_app("slow", {})

    @app.get("/healthz")
    async def healthz() -> object:
        return reply({"status": "ok"})

    @app.post("/echo")
    async def echo(request: Request) -> object:
        return reply({"bytes": len(await request.body())})

    @app.get("/large")
    async def large() -> object:
        return reply({"zeros": "0" * 50_000_000})

    serve(app, "127.0.0.1", 0, lambda address: print(address, flush=True))
