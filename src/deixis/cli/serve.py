"""`deixis serve`: search an index in the browser, and over HTTP."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from deixis.cli.options import AllowHost, Index, Proxy
from deixis.errors import DeixisError

if TYPE_CHECKING:
    from deixis.web.sight import Sight

#: The model that comes with the package.
BASE = "deixis-base"


def serve(
    index: Index = None,
    search_model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The model that searches.", show_default="the model of the index"),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The model that grounds and describes: deixis-base, onnx:FOLDER, a run folder, or none.",
        ),
    ] = BASE,
    host: Annotated[str, typer.Option(help="The address to listen on; any but this machine's own needs --token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for any free one.")] = 8766,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            envvar="DEIXIS_TOKEN",
            show_envvar=True,
            help="The secret that clients must send.",
            show_default="none",
        ),
    ] = None,
    allow_host: AllowHost = None,
    proxy: Proxy = None,
) -> None:
    """Search an index in the browser, and over an HTTP API.

    By default only this machine can connect. To serve others a token is needed; the printed link contains it. The index
    may change while the server runs: new pictures are found within seconds.

    Example: deixis serve --port 8766
    """
    from deixis.web.entrance import Entrance
    from deixis.web.security import Hosts, is_loopback

    entrance = Entrance(token)
    if token is None and not is_loopback(host):
        from secrets import token_urlsafe

        raise DeixisError(
            f"{host} can be reached from other machines, so a token is needed, such as: --token {token_urlsafe(24)}"
        )
    from urllib.parse import quote

    from deixis.cli.output import busy
    from deixis.loading import load_search_model
    from deixis.search.generations import default_index
    from deixis.web.search_app import search_app
    from deixis.web.search_desk import Desk
    from deixis.web.serving import serve as serve_app

    where = index or default_index()
    with busy("Opening the index"):
        desk = Desk(where, load_search_model(search_model) if search_model else None)
        sight = _sight(model)
    # Whoever sets a token, a name or a proxy serves others.
    is_local = is_loopback(host) and not (token or allow_host or proxy)
    app = search_app(desk, sight, hosts=Hosts(host, allow_host or ()), entrance=entrance, is_local=is_local)

    def ready(address: str) -> None:
        pictures = len(desk.engine.collection)
        way = "" if token is None else f"/enter#{quote(token, safe='')}"
        typer.echo(f"Serving {pictures:,} pictures of {where} at {address}{way} (Ctrl-C ends it)")
        sys.stdout.flush()

    try:
        serve_app(app, host, port, ready, proxy or ())
    finally:
        app.state.search.close()


def _sight(model: str) -> Sight:
    """What looks at single pictures; what a model cannot do the server does without, and says so."""
    from deixis.web.sight import Sight

    if model == "none":
        return Sight()
    from deixis.loading import load_model

    try:
        opened = load_model(model)
    except DeixisError as fault:
        if model != BASE:
            raise
        typer.echo(f"Phrases will not be grounded, pictures not described: {fault}", err=True)
        return Sight()
    missing = [name for name in ("ground", "describe") if name not in opened.abilities]
    if len(missing) == 2:
        raise opened.cannot("ground or describe")
    for name in missing:
        typer.echo(str(opened.cannot(name)), err=True)
    return Sight(opened)
