"""`deixis figures site`: a static site of an aligner's work, to browse from disk (the DVSA paper's web demo)."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from deixis.cli.align import BetaOption, TemperatureOption, load_aligner
from deixis.cli.evaluate_run import CorpusOfRun
from deixis.cli.options import Device, Json
from deixis.cli.output_files import check_free, put_in_place, system_faults
from deixis.cli.snippets_command import FeaturesOption, PicturesOption, SplitOption, collection


def site(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished aligner.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The site's folder.")],
    corpus: CorpusOfRun = None,
    features: FeaturesOption = None,
    pictures_in: PicturesOption = None,
    split: SplitOption = "test",
    sentences: Annotated[int, typer.Option(min=1, max=100, help="Best sentences of all on a picture's page.")] = 10,
    beta: BetaOption = None,
    temperature: TemperatureOption = None,
    title: Annotated[
        str | None, typer.Option(help="Of every page.", show_default="the recipe, the corpus and the split")
    ] = None,
    device: Device = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace a folder; the old one is renamed.")] = False,
    as_json: Json = False,
) -> None:
    """Write a site of a split's pictures: sentences over them, words in the colours of their regions, and their ranks.

    It opens from disk, without a server: start with its index.html. Every picture has a page of its own.

    Example: deixis figures site runs/brnn --corpus joined/ --out site
    """
    check_free(out, force)
    from deixis.cli.output import busy, print_json, progress_bar
    from deixis.figures.alignment_site import write_site
    from deixis.training.run_models import read_recipe

    with busy("Reading"):
        model = load_aligner(run, device)
    opened, images, store = collection(run, corpus, features, pictures_in, split, device, shown=True)
    name = title or f"{read_recipe(run).name} on {opened.name}, {split}"
    with system_faults(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{out.name[:40]}.", suffix=".part", dir=out.parent))
        try:
            with progress_bar("Writing pages") as progress:
                report = write_site(
                    staging / out.name,
                    model,
                    opened,
                    images,
                    store,
                    title=name,
                    beta=model.beta if beta is None else beta,
                    temperature=model.temperature if temperature is None else temperature,
                    sentences=sentences,
                    progress=progress,
                )
            old = put_in_place(staging / out.name, out, force)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    if as_json:
        print_json({"out": str(out), "old": None if old is None else str(old), **report._asdict()})
        return
    typer.echo(f"Wrote {report.pictures:,} pictures to {out}; open {out / 'index.html'} in a browser")
    if old is not None:
        typer.echo(f"What was there is now {old}")
