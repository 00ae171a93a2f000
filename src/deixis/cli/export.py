"""`deixis export`: trained runs in forms that others run."""

from __future__ import annotations

import shutil
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from deixis.cli.output import busy, print_json
from deixis.cli.writing import check_free, put_in_place, system_faults
from deixis.errors import DeixisError

app = typer.Typer(no_args_is_help=True, help="Trained runs in forms that others run.")


class WeightsChoice(StrEnum):
    MIXED = "mixed"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


@app.callback()
def _group() -> None:
    """Keep `onnx` a command of its own while it is the only one."""


@app.command()
def onnx(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run of the kind `pictures`.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the bundle is written.")],
    weights: Annotated[
        WeightsChoice, typer.Option(help="How weights are kept; `mixed`: float16 for pictures, int8 for texts.")
    ] = WeightsChoice.MIXED,
    calibrate: Annotated[
        str | None,
        typer.Option(
            metavar="CORPUS",
            help="A captioned corpus on whose validation pictures it is learned from which score on a picture counts "
            "as what was asked for.",
            show_default="that of a model like it",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write an encoder bundle for search: picture tower and text branch for onnxruntime, vocabulary, manifest.

    Example: deixis export onnx runs/pictures --out encoder && deixis index ~/Pictures --encoder onnx:encoder
    """
    check_free(out, force)
    try:
        from deixis.search.export import export_bundle
    except ModuleNotFoundError as fault:
        if fault.name != "onnx":
            raise
        raise DeixisError("writing ONNX needs the package onnx; pip install 'deixis[export,search]'") from None
    with system_faults(out), busy("Exporting"):
        out.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{out.name[:40]}.", suffix=".part", dir=out.parent))
        try:
            manifest = export_bundle(run, staging / out.name, weights=weights.value)
            if calibrate is not None:
                from deixis.corpus import open_corpus
                from deixis.search.calibration import calibrate as learn

                manifest = learn(staging / out.name, open_corpus(calibrate))
            old = put_in_place(staging / out.name, out, force)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    size = sum(file.bytes for file in manifest.files.values())
    if as_json:
        print_json({"out": str(out), "bytes": size, "manifest": manifest})
        return
    typer.echo(f"Wrote {manifest.name} to {out} ({size / 1e6:.1f} MB, {manifest.weights})")
    if old is not None:
        typer.echo(f"What was there is now {old}")
    typer.echo(f"Use it with: deixis index DIR --encoder onnx:{out}")
