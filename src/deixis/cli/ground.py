"""`deixis ground`: find the phrases of a sentence in pictures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deixis.cli.options import Force, Json, ModelDevice, ModelName
from deixis.cli.output_files import drawing_targets, write_drawing
from deixis.errors import InputError, printable

if TYPE_CHECKING:
    from deixis.model import Grounding


def ground(
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE", help="Picture files.")],
    sentence: Annotated[
        str, typer.Argument(metavar="SENTENCE", help="A phrase, or a sentence whose phrases are found.")
    ],
    model: ModelName = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="PNG", help="Draw the boxes; for several pictures, a folder.", show_default=False),
    ] = None,
    device: ModelDevice = "auto",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Find the phrases of a sentence in pictures: whether each is there, and a box in pixels.

    "There" is how likely the picture shows the phrase, "place" how likely the box is correct if it does. Phrases that
    are probably not there get no box in the table and the drawing; --json has all boxes. A plural ("two dogs") gets one
    box per thing found: `boxes` in --json, where `box` covers the whole phrase. Exit code 1 if no phrase is in any
    picture.

    "Fits better" names the sentence with another colour, number or attribute, or with two roles exchanged, if that fits
    the picture clearly better.

    Example: deixis ground street.jpg "a man in a red shirt" --out found.png
    """
    targets = drawing_targets(images, out, force)
    from deixis.adapters.bundles import DEFAULT
    from deixis.adapters.changed_sentences import fits_better
    from deixis.cli.output import busy, print_json_line, print_table
    from deixis.loading import load_model
    from deixis.text.phrase_finding import find_phrases
    from deixis.vision.picture_files import read_picture_file, shown

    # A command line may contain bytes that are not valid text.
    sentence = sentence.encode(errors="replace").decode()
    with busy("Loading the model"):
        opened = load_model(model or DEFAULT, device)
    if "ground" not in opened.abilities:
        raise opened.cannot("ground")
    find_phrases(sentence)
    faults, any_there = list[str](), False
    for image, target in zip(images, targets, strict=True):
        try:
            picture = read_picture_file(image)
        except InputError as fault:
            faults.append(" ".join(str(fault).split()))
            continue
        looked = opened.look(picture)
        groundings = opened.ground(looked, sentence)
        better = fits_better(opened, looked, sentence)
        any_there |= any(grounding.is_there for grounding in groundings)
        if target is not None:
            from deixis.figures.grounding_drawing import draw_grounded

            write_drawing(draw_grounded(picture, sentence, groundings, better), target)
        if as_json:
            size = {"width": picture.width, "height": picture.height}
            fields = {"sentence": sentence, "phrases": groundings, "fits_better": better}
            print_json_line({"picture": shown(os.fsencode(image)), **size, **fields})
            continue
        print_table(shown(os.fsencode(image)), ["phrase", "there", "box", "place"], map(_row, groundings))
        if better:
            typer.echo(f"Fits better: {', '.join(better)}")
        if unsure := [grounding.phrase for grounding in groundings if not grounding.presence_percent]:
            asked = ", ".join(f'"{phrase}"' for phrase in unsure)
            typer.echo(
                f"deixis: ?: no estimate for {printable(asked)}; the model has not read all of these words, "
                "or is not calibrated",
                err=True,
            )
    if out is not None and len(faults) < len(images) and not as_json:
        typer.echo(f"Drawn to {out}")
    for line in faults:
        typer.echo(f"deixis: {printable(line)}", err=True)
    if faults or not any_there:
        raise typer.Exit(2 if faults else 1)


def _row(grounding: Grounding) -> list[str]:
    there = grounding.presence_percent or "?"
    if not grounding.is_there:
        return [grounding.phrase, there, "not found", ""]
    boxes = "; ".join(", ".join(f"{side:.0f}" for side in box) for box in grounding.boxes)
    return [grounding.phrase, there, boxes, f"{grounding.score:.0%}"]
