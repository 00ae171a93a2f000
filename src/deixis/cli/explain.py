"""`deixis concepts` and `deixis explain`: what a concept network sees in a picture, and what of a sentence it sees."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deixis.cli.options import Force, Json, ModelDevice, ModelName
from deixis.cli.output_files import check_free, system_faults
from deixis.errors import DeixisError

if TYPE_CHECKING:
    from PIL import Image as Pillow

    from deixis.cli.explanation import Explanation, Order
    from deixis.model import Box, Concept, Model
    from deixis.vision.findings_drawing import Finding

Picture = Annotated[Path, typer.Argument(metavar="IMAGE", help="A picture file.")]
Out = Annotated[Path | None, typer.Option(metavar="PNG", help="Draw what was found.", show_default=False)]


def concepts(
    image: Picture,
    model: ModelName = None,
    count: Annotated[int, typer.Option(min=1, help="How many concepts, the most certain ones.")] = 10,
    out: Out = None,
    device: ModelDevice = "auto",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """List the concepts in a picture, with confidences and regions.

    Examples: deixis concepts street.jpg; deixis concepts street.jpg --model runs/concepts --out street.png
    """
    from deixis.cli.output import busy, print_json, print_table
    from deixis.loading import CONCEPTS, load_model
    from deixis.vision.picture_files import read_picture_file

    _check_target(out, force)
    with busy("Looking"):
        picture = read_picture_file(image)
        found = load_model(model or CONCEPTS, device).concepts(image)[:count]
    if out is not None:
        _draw(picture, _by_place(found), image.name, out)
    if as_json:
        print_json({"picture": str(image), "concepts": found})
        return
    rows = [[each.concept, each.part, f"{each.confidence:.3f}", _place(each.box)] for each in found]
    print_table(str(image), ["concept", "part", "confidence", "where"], rows)


def explain(
    image: Picture,
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="What is said of the picture.")],
    model: ModelName = None,
    least: Annotated[float, typer.Option(min=0, max=1, help="Confidence from which on a concept is supported.")] = 0.5,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="SENTENCE",
            help="What the sentence's order is held against.",
            show_default="the same words with two roles exchanged",
        ),
    ] = None,
    out: Out = None,
    device: ModelDevice = "auto",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Show which concepts of a sentence a picture supports or lacks, and whether word order matters to the model.

    A run trained on context alone has no concepts, and one trained on concepts alone reads no order. Without --model,
    the bundled concept network finds concepts and deixis-base scores the sentences.

    Order is measured by the score of the sentence against the same words with two roles exchanged ("a cheetah chases
    a gazelle", "a gazelle chases a cheetah"), which a parser makes; or against what --against says.

    Example: deixis explain savanna.jpg "A cheetah chases a gazelle." --model runs/cnp-ctx-gen
    """
    from deixis.cli.explanation import Explanation, asked_concepts
    from deixis.cli.output import busy, print_json
    from deixis.loading import CONCEPTS, load_model
    from deixis.text.tokens import tokens_of
    from deixis.vision.picture_files import read_picture_file

    _check_target(out, force)
    tokens = tokens_of(sentence)
    if not tokens:
        raise DeixisError("the sentence has no word")
    with busy("Looking"):
        picture = read_picture_file(image)
        opened = load_model(model or CONCEPTS, device)
        seen = opened.look(image)
        reads_order_alone = "score" in opened.abilities and "concepts" not in opened.abilities
        asked, others = ([], []) if reads_order_alone else asked_concepts(opened, seen, tokens, least)
        # The concept network that comes with the package reads no sentences: deixis-base scores them.
        order, reason = (
            _order(opened, seen, tokens, against) if model else _order(load_model(), picture, tokens, against)
        )
    told = Explanation(str(image), sentence, tuple(asked), tuple(others), order, reason)
    if out is not None:
        _draw(picture, _findings(told), sentence, out)
    if as_json:
        print_json(told)
        return
    _print(told)


def _order(model: Model, image: Any, tokens: tuple[str, ...], against: str | None) -> tuple[Order | None, str]:
    """The sentence against its twin; or why there is no twin."""
    from deixis.cli.explanation import order_of
    from deixis.text.exchange import exchanged_captions
    from deixis.text.parsing import ParserMissing, load_parser
    from deixis.text.tokens import tokens_of
    from deixis.text.twins import PARSER

    if "score" not in model.abilities:
        return None, "this run knows concepts alone and reads no sentence"
    other = tokens_of(against) if against is not None else ()
    if against is None:
        try:
            twin = next(exchanged_captions([tokens], load_parser(PARSER)))
        except ParserMissing:
            return None, "exchanging roles needs a parser (pip install 'deixis[text]'); or say --against SENTENCE"
        if twin is None:
            return None, "no two roles of the sentence can be exchanged; say --against SENTENCE"
        other = twin.tokens
    return order_of(model.score([image], [tokens, other])[0], other), ""


def _check_target(out: Path | None, force: bool) -> None:
    if out is not None:
        if out.suffix.lower() != ".png":
            raise DeixisError(f"{out}: drawings are PNG files; choose a name that ends in .png")
        check_free(out, force)


def _place(box: Box | None) -> str:
    return "all of it" if box is None else ", ".join(f"{side:.0f}" for side in box)


def _by_place(found: list[Concept]) -> list[Finding]:
    """What was seen in all of the picture, then region by region, as the first concept of each comes."""
    from deixis.corpus import Box
    from deixis.vision.findings_drawing import Finding

    places: dict[Any, list[tuple[str, str]]] = {None: []}
    for each in found:
        places.setdefault(each.box, []).append((each.concept, f"{each.confidence:.2f}"))
    return [Finding(tuple(lines), box and Box(*box)) for box, lines in places.items() if lines]


def _findings(told: Explanation) -> list[Finding]:
    from deixis.vision.findings_drawing import Finding

    findings = _by_place([asked.found for asked in told.concepts if asked.supported])
    lacking = [(asked.found.concept, f"{asked.found.confidence:.2f}") for asked in told.concepts if not asked.supported]
    if lacking:
        findings.append(Finding((("not seen:", ""), *lacking), missing=True))
    if told.order is not None:
        own, other = told.order.score, told.order.exchanged_score
        findings.append(Finding(((told.sentence, f"{own:.3f}"), (told.order.exchanged, f"{other:.3f}"))))
    return findings


def _draw(picture: Pillow.Image, findings: list[Finding], title: str, out: Path) -> None:
    from deixis.files import atomic_write
    from deixis.vision.findings_drawing import draw_findings

    page = draw_findings(picture, findings, title)
    with system_faults(out), atomic_write(out) as stream:
        page.save(stream, "PNG")


def _print(told: Explanation) -> None:
    from deixis.cli.output import print_table

    rows = [
        [
            asked.word,
            asked.found.concept,
            "supported" if asked.supported else "lacking",
            f"{asked.found.confidence:.3f}",
            _place(asked.found.box),
        ]
        for asked in told.concepts
    ]
    if rows:
        print_table(told.sentence, ["word", "concept", "picture", "confidence", "where"], rows)
    if told.other_words:
        typer.echo(f"No concepts of this run: {', '.join(told.other_words)}")
    if told.order is None:
        typer.echo(f"Order: {told.no_order}")
        return
    order = told.order
    ahead = "higher" if order.score > order.exchanged_score else "lower"
    outcome = f"scores {ahead} than" if order.matters else "scores the same as"
    typer.echo(f"Order: {order.score:.4f} {outcome} {order.exchanged_score:.4f} of {order.exchanged!r}")
