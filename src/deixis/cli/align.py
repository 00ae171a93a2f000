"""`deixis align`: which region of a picture each word of a sentence describes (DVSA)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from deixis.cli.options import Device, Drawing, Force, Json, RunModel
from deixis.cli.output_files import check_drawing, write_drawing
from deixis.errors import DeixisError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

    from deixis.model import Alignment
    from deixis.papers.dvsa.model import AlignmentModel

BetaOption = Annotated[
    float | None,
    typer.Option(
        min=0, help="How strongly neighbouring words are kept on the same region.", show_default="the recipe's"
    ),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="0: the best path (Viterbi). Above 0: the region of largest expected overlap under the chain posterior.",
        show_default="the recipe's",
    ),
]


def align(
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="A picture file.")],
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="A sentence about it.")],
    run: RunModel,
    beta: BetaOption = None,
    temperature: TemperatureOption = None,
    count: Annotated[
        bool, typer.Option("--count", help="Give phrases with a number (three people) as many different regions.")
    ] = False,
    out: Drawing = None,
    device: Device = "auto",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Align a sentence with a picture: a box and a score for each snippet (DVSA).

    A snippet is a sequence of words aligned with one region, or with the whole picture.

    Example: deixis align dog.jpg "A brown dog jumps over two logs" --model runs/brnn --count --out aligned.png
    """
    check_drawing(out, force)
    from deixis.cli.output import busy, print_json, print_table
    from deixis.text.chunker import Chunker
    from deixis.text.tokens import tokens_of
    from deixis.vision.picture_files import read_picture_file

    with busy("Looking"):
        model = load_aligner(run, device)
        picture = read_picture_file(image)
        features = model.look(image)
    tokens = tokens_of(sentence)
    words = [token for token in tokens if any(map(str.isalnum, token))]
    unknown = model.unknown_words(tokens)
    if words and len(unknown) == len(words):
        raise DeixisError(f"{run} does not know any word of {sentence!r}")
    if unknown:
        typer.echo(f"Words that this run does not know: {', '.join(unknown)}", err=True)
    spans = Chunker.load().phrases_of([tokens])[0] if count else []
    aligned = model.align(features, tokens, beta=beta, temperature=temperature, counted=spans)
    if out is not None:
        _draw(picture, aligned, out)
    if as_json:
        from msgspec.structs import asdict

        size = {"width": picture.width, "height": picture.height}
        print_json({"picture": str(image), **size, **asdict(aligned)})
        return
    rows = [
        [snippet.text, "whole picture" if snippet.whole else _boxes(snippet.boxes), f"{snippet.score:.2f}"]
        for snippet in aligned.snippets
    ]
    print_table(f"{image}: {aligned.score:.2f}", ["snippet", "box", "score"], rows)
    if out is not None:
        typer.echo(f"Drawn to {out}")


def load_aligner(run: Path, device: str) -> AlignmentModel:
    """Load the model of a run that can align (DVSA)."""
    from deixis.loading import load_model

    model = load_model(run, device)
    if "align" not in model.abilities:
        raise model.cannot("align")
    return cast("AlignmentModel", model)


def _boxes(boxes: tuple[tuple[float, float, float, float], ...]) -> str:
    return "; ".join(", ".join(f"{side:.0f}" for side in box) for box in boxes)


def _draw(picture: Picture, aligned: Alignment, out: Path) -> None:
    from deixis.corpus import Box
    from deixis.vision.drawing.pages import Part, draw_alignment

    parts = [
        Part(snippet.start, snippet.end, [Box(*box) for box in snippet.boxes], f"{snippet.score:.2f}", snippet.whole)
        for snippet in aligned.snippets
    ]
    note = f"score {aligned.score:.2f}   ·   beta {aligned.beta:g}   ·   temperature {aligned.temperature:g}"
    write_drawing(draw_alignment(picture, aligned.tokens, parts, note), out)
