"""`deixis results`."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, help="To be filled.")


@app.callback()
def _group() -> None:
    pass
