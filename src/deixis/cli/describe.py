"""`deixis describe`: describe pictures or regions, with generated sentences or phrases retrieved from a bank."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from deixis.cli.options import Force, Json, ModelDevice, ModelName
from deixis.cli.output_files import drawing_targets, write_drawing
from deixis.errors import DeixisError, InputError, printable

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

    from deixis.model import Description, Model


class PictureDescription(NamedTuple):
    """All that is said of one picture; the texts of one region are together, the best described region first."""

    picture: str
    width: int
    height: int
    captions: tuple[Description, ...]
    regions: tuple[Description, ...]


class By(StrEnum):
    RETRIEVAL = "retrieval"
    GENERATION = "generation"


def describe(
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE", help="Picture files.")],
    model: ModelName = None,
    by: Annotated[
        By | None,
        typer.Option(help="Retrieve phrases from a bank, or generate sentences.", show_default="what the model can do"),
    ] = None,
    regions: Annotated[bool, typer.Option("--regions", help="Describe regions, not the whole picture.")] = False,
    count: Annotated[int, typer.Option(min=1, max=50, help="Texts per picture, or per region.")] = 3,
    most: Annotated[int, typer.Option(min=1, max=50, help="Regions per picture.")] = 6,
    bank: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The phrases to choose from, one per line.",
            show_default="the phrases of the training captions",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="PNG", help="Draw the descriptions; for several pictures, a folder.", show_default=False),
    ] = None,
    device: ModelDevice = "auto",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Describe pictures in sentences, or their regions in phrases.

    The best comes first. Of retrieved phrases, detailed ones come before short ones ("a white and gray cat with a
    striped tail" before "a cat"), and near-duplicates are left out. --json adds scores: the cosine of a retrieved
    phrase, or the log probability of a generated sentence. With deixis-base it is the mean log probability of a word,
    plus three times how well the sentence matches the picture, and can be above 0. Compare scores within one picture
    only. Pictures that cannot be read are listed at the end, with exit code 2.

    Examples: deixis describe cat.jpg; deixis describe cat.jpg --model runs/hm-lstm --regions --out cat.png
    """
    from deixis.adapters.bundles import DEFAULT
    from deixis.cli.output import busy, print_json_line, track
    from deixis.loading import load_model

    if model is None and (regions or bank or by is By.RETRIEVAL):
        raise DeixisError("deixis-base describes whole pictures only; name a trained run with --model RUN")
    targets = drawing_targets(images, out, force)
    with busy("Loading the model"):
        look = _describer(load_model(model or DEFAULT, device), by, regions, count, most, bank)
    described: list[PictureDescription] = []
    faults: list[str] = []
    for image, target in track(zip(images, targets, strict=True), "Describing", len(images)):
        try:
            picture, description = look(image)
        except InputError as fault:
            faults.append(" ".join(str(fault).split()))
            continue
        described.append(description)
        if target is not None:
            _draw(picture, image.name, description, target)
    for description in described:
        print_json_line(description._asdict()) if as_json else _print(description)
    if out is not None and described and not as_json:
        typer.echo(f"Drawn to {out}")
    for line in faults:
        typer.echo(f"deixis: {printable(line)}", err=True)
    if faults:
        raise typer.Exit(2)


def _describer(
    model: Model, by: By | None, regions: bool, count: int, most: int, bank: Path | None
) -> Callable[[Path], tuple[Picture, PictureDescription]]:
    """Describes a picture file, in the way that is asked for or, if none is, that the model can."""
    from msgspec import structs

    from deixis.adapters.phrase_bank import read_bank, retrieved_captions, retrieved_regions
    from deixis.vision.picture_files import read_picture_file, shown

    generates = ("describe_regions" if regions else "describe") in model.abilities
    retrieves = by is By.RETRIEVAL or (by is None and not generates)
    phrases = [] if not retrieves else model.training_phrases() if bank is None else read_bank(bank)
    if retrieves:
        model.prepare_texts(phrases, keep=True)

    def describe(path: Path) -> tuple[Picture, PictureDescription]:
        picture = read_picture_file(path)
        captions: list[Description] = []
        descriptions: list[list[Description]] = []
        if regions and retrieves:
            descriptions = retrieved_regions(model, path, phrases, count, most)
        elif regions:
            descriptions = model.describe_regions(path, count, most)
        elif retrieves:
            captions = retrieved_captions(model, path, phrases, count)
        else:
            captions = [
                structs.replace(description, text=description.sentence) for description in model.describe(path, count)
            ]
        flat = [text for texts in descriptions for text in texts]
        name = shown(os.fsencode(path))
        return picture, PictureDescription(name, picture.width, picture.height, tuple(captions), tuple(flat))

    return describe


def _draw(picture: Picture, name: str, description: PictureDescription, target: Path) -> None:
    from itertools import groupby

    from deixis.corpus import Box
    from deixis.vision.drawing.pages import Finding, draw_findings

    findings = [Finding(tuple((caption.text, "") for caption in description.captions))]
    for box, group in groupby(description.regions, key=lambda region: region.box):
        lines = tuple((region.text, f"{region.score:.2f}" if region.by == "retrieval" else "") for region in group)
        findings.append(Finding(lines, box and Box(*box), lines[0][0]))
    write_drawing(draw_findings(picture, [finding for finding in findings if finding.lines], name), target)


def _print(description: PictureDescription) -> None:
    from deixis.cli.output import print_table

    if description.captions:
        print_table(description.picture, ["text"], [[caption.text] for caption in description.captions])
        return
    rows = [[region.text, ", ".join(f"{side:.0f}" for side in region.box or ())] for region in description.regions]
    print_table(description.picture, ["text", "box"], rows)
