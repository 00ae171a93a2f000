"""`deixis demo`: a walk through Deixis on drawn scenes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deixis.cli.options import Force, Json
from deixis.cli.output_files import check_free, system_faults


def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder for the page, drawings and results.")] = Path(
        "deixis-demo"
    ),
    force: Force = False,
    json: Json = False,
) -> None:
    """Walk through everything Deixis does, on pictures that it draws itself (needs the research extra).

    No download; about two minutes of CPU time.

    Example: deixis demo --out /tmp/demo
    """
    from deixis.cli.demo_walk import run_demo
    from deixis.cli.output import print_json, print_table, progress_bar

    check_free(out, force)
    say = (lambda title, columns, rows: None) if json else print_table
    with system_faults(out):
        out.mkdir(parents=True, exist_ok=True)
    with system_faults(out), progress_bar("Drawing scenes and extracting features") as progress:
        outcome = run_demo(out, say, progress)
    if json:
        results = [str(path) for path in outcome.results]
        drawings = [str(path) for path in outcome.drawings]
        written = {"page": str(outcome.page), "drawings": drawings, "results": results}
        print_json({**written, "commands": outcome.commands, "seconds": outcome.seconds})
        return
    typer.echo(f"Done in {outcome.seconds:.0f} s. Look at:")
    typer.echo(f"  {outcome.page}  (open it in a browser)")
    for path in (*outcome.drawings, *outcome.results):
        typer.echo(f"  {path}")
    typer.echo("More of its runs:")
    for command in outcome.commands:
        typer.echo(f"  {command}")
