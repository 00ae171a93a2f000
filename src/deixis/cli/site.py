"""`deixis figures site`: a static site of aligned pictures and sentences, like the web demo of DVSA."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deixis.cli.align import BetaOption, TemperatureOption, load_aligner
from deixis.cli.options import (
    SCORED_SPLIT,
    CorpusOfRun,
    Device,
    Features,
    ForceFolder,
    Json,
    PicturesIn,
    RunFolder,
    Split,
)
from deixis.cli.output_files import check_free, print_replaced, staged, system_faults
from deixis.cli.snippets_command import collection
from deixis.errors import DeixisError

#: The best sentences of the split that the page of a picture shows.
SENTENCES = 10


def site(
    run: RunFolder,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder of the site.")],
    corpus: CorpusOfRun = None,
    features: Features = None,
    pictures_in: PicturesIn = None,
    split: Split = SCORED_SPLIT,
    captioner: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A model that describes pictures: adds a page with a person's caption, the nearest training caption "
            "and a generated one.",
            show_default="no such page",
        ),
    ] = None,
    beta: BetaOption = None,
    temperature: TemperatureOption = None,
    device: Device = "auto",
    force: ForceFolder = False,
    as_json: Json = False,
) -> None:
    """Write a site that shows the pictures of a split with their sentences, words in the colours of their regions.

    Open its index.html from disk; no server is needed. Every picture has a page with its best sentences and ranks.

    Example: deixis figures site runs/brnn --corpus joined/ --out site

    Example: deixis figures site runs/brnn --corpus joined/ --out site --captioner runs/captions
    """
    check_free(out, force)
    from deixis.cli.output import busy, print_json, progress_bar
    from deixis.figures.alignment_site import write_site
    from deixis.loading import load_model
    from deixis.training.run_models import read_recipe

    with busy("Reading"):
        model = load_aligner(run, device)
        speaker = load_model(captioner, device=device) if captioner else None
    if speaker is not None and "describe" not in speaker.abilities:
        raise DeixisError(f"{captioner} does not describe pictures")
    opened, images, store = collection(run, corpus, features, pictures_in, split, device, shown=True)
    with system_faults(out), staged(out, force) as staging, progress_bar("Writing pages") as progress:
        report = write_site(
            staging.path,
            model,
            opened,
            images,
            store,
            title=f"{read_recipe(run).name} on {opened.name}, {split}",
            beta=model.beta if beta is None else beta,
            temperature=model.temperature if temperature is None else temperature,
            sentences=SENTENCES,
            captioner=speaker,
            progress=progress,
        )
    if as_json:
        print_json({"out": str(out), "old": None if staging.old is None else str(staging.old), **report._asdict()})
        return
    typer.echo(f"Wrote {report.pictures:,} pictures to {out}; open {out / 'index.html'} in a browser")
    print_replaced(staging.old)
