"""`deixis describe`: pictures and their regions put into words, found in a bank of phrases or made by a model."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deixis.cli.output_files import drawing_targets, system_faults
from deixis.errors import DeixisError, InputError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

    from deixis.adapters.descriptions import Description, Said, SaidOfRegion
    from deixis.training.looking import Seen

    Looks = Callable[[Path], tuple[Picture, Description]]


class By(StrEnum):
    RETRIEVAL = "retrieval"
    GENERATION = "generation"


def describe(
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE…", help="Picture files.")],
    run: Annotated[
        Path | None, typer.Option(metavar="RUN", help="The folder of a finished run.", show_default=False)
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="NAME", help="Where no run is named: `deixis-base` or `onnx:FOLDER`.")
    ] = "deixis-base",
    by: Annotated[
        By | None,
        typer.Option(help="Find phrases in a bank, or make sentences.", show_default="what the run can do"),
    ] = None,
    regions: Annotated[bool, typer.Option("--regions", help="Describe regions, not the whole picture.")] = False,
    count: Annotated[int, typer.Option(min=1, max=50, help="Texts of a picture, or of a region.")] = 3,
    most: Annotated[int, typer.Option(min=1, max=50, help="Regions of a picture.")] = 6,
    bank: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Phrases to choose from, one a line.",
            show_default="those of the run's training captions",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="PNG", help="Draw what is said of one picture; of several, a folder.", show_default=False),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one line a picture.")] = False,
) -> None:
    """Describe pictures in sentences, or their regions in phrases.

    Phrases that are found are detailed before they are general ("a white and gray cat with a striped tail" before "a
    cat"), and no two say nearly the same. A picture that cannot be read is told at the end, with exit code 2.

    Examples: deixis describe cat.jpg; deixis describe cat.jpg --run runs/hm-lstm --regions --out cat.png
    """
    from deixis.cli.output import busy, print_json_line, track

    if run is None and (regions or bank or by is By.RETRIEVAL):
        raise DeixisError("what comes with the package makes sentences of whole pictures; name a run with --run RUN")
    targets = drawing_targets(images, out, force)
    with busy("Loading the model"):
        look = _speaker(model, count, device) if run is None else _looker(run, by, regions, count, most, bank, device)
    described: list[Description] = []
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
        print_json_line(description) if as_json else _print(description)
    if out is not None and described and not as_json:
        typer.echo(f"Drawn to {out}")
    for line in faults:
        typer.echo(f"deixis: {line}", err=True)
    if faults:
        raise typer.Exit(2)


def _speaker(model: str, count: int, device: str) -> Looks:
    """Sentences about whole pictures, by a bundle."""
    from deixis.adapters.descriptions import Description
    from deixis.base.describer import Describer
    from deixis.vision.picture_files import read_picture_file, shown

    describer = Describer.open(model, device=device)

    def look(path: Path) -> tuple[Picture, Description]:
        picture = read_picture_file(path)
        name = shown(os.fsencode(path))
        return picture, Description(name, *picture.size, tuple(describer.describe(picture, count)))

    return look


def _looker(run: Path, by: By | None, regions: bool, count: int, most: int, bank: Path | None, device: str) -> Looks:
    """What a run says of pictures."""
    from deixis.training.looking import Looker
    from deixis.training.run_models import load_matcher, read_recipe
    from deixis.vision.learned_proposals import checked_device

    recipe = read_recipe(run)
    matcher = load_matcher(run, checked_device(device))
    looker = Looker(recipe, device, run)
    tell = _describer(matcher, run, by, regions, count, most, bank)

    def look(path: Path) -> tuple[Picture, Description]:
        seen = looker.look(path)
        return seen.picture, tell(seen)

    return look


def _describer(
    matcher: Any, run: Path, by: By | None, regions: bool, count: int, most: int, bank: Path | None
) -> Callable[[Seen], Description]:
    """What makes the description of a picture, by the way that is asked for or, if none is, that the run can go."""
    from deixis.adapters.descriptions import Description, generated_captions, generated_regions
    from deixis.adapters.phrase_bank import retrieved_captions, retrieved_regions
    from deixis.model import Describes, DescribesRegions
    from deixis.papers.hm_lstm.bank import encode_bank, load_bank

    makes = isinstance(matcher, DescribesRegions if regions else Describes)
    retrieves = by is By.RETRIEVAL or (by is None and not makes)
    phrases = load_bank(matcher, run, bank) if retrieves else []
    if retrieves:
        encode_bank(matcher, run, phrases)

    def tell(seen: Seen) -> Description:
        image = seen.features
        captions: list[Said] = []
        said: list[SaidOfRegion] = []
        if regions and retrieves:
            said = retrieved_regions(matcher, image, phrases, most, count)
        elif regions:
            said = generated_regions(matcher, image, most, count)
        elif retrieves:
            captions = retrieved_captions(matcher, image, phrases, count)
        else:
            captions = generated_captions(matcher, image, count)
        return Description(str(seen.path), seen.picture.width, seen.picture.height, tuple(captions), tuple(said))

    return tell


def _draw(picture: Picture, name: str, description: Description, target: Path) -> None:
    from itertools import groupby

    from deixis.corpus import Box
    from deixis.files import atomic_write
    from deixis.vision.findings_drawing import Finding, draw_findings

    findings = [Finding(tuple((each.text, f"{each.score:.2f}") for each in description.captions))]
    for box, own in groupby(description.regions, key=lambda each: each.box):
        lines = tuple((each.text, f"{each.score:.2f}") for each in own)
        findings.append(Finding(lines, Box(*box), lines[0][0]))
    page = draw_findings(picture, [each for each in findings if each.lines], name)
    with system_faults(target), atomic_write(target) as stream:
        page.save(stream, "PNG")


def _print(description: Description) -> None:
    from deixis.cli.output import print_table

    said = description.captions or description.regions
    score = "score" if any(each.by == "generation" for each in said) else "cosine"
    if description.captions:
        rows = [[each.text, f"{each.score:.3f}"] for each in description.captions]
        print_table(description.picture, ["text", score], rows)
        return
    rows = [
        [each.text, ", ".join(f"{side:.0f}" for side in each.box), f"{each.score:.3f}"] for each in description.regions
    ]
    print_table(description.picture, ["text", "box", score], rows)
