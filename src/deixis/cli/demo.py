"""`deixis demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="The folder for the page, the drawing and the results.")] = Path(
        "deixis-demo"
    ),
) -> None:
    """Walk through all that Deixis does so far, on pictures that it draws itself. No download, a minute or two.

    Example: deixis demo --out /tmp/demo
    """
    from deixis.cli.output import print_table, progress_bar
    from deixis.demo import run_demo

    with progress_bar("Drawing scenes and extracting features") as progress:
        outcome = run_demo(out, print_table, progress)
    typer.echo(f"Done in {outcome.seconds:.0f} s. Look at:")
    typer.echo(f"  {outcome.page}  (open it in a browser)")
    typer.echo(f"  {outcome.drawing}")
    for path in outcome.results:
        typer.echo(f"  {path}")
