"""`deixis concepts` and `deixis explain`: the concepts in a picture, and which parts of a sentence it supports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deixis.cli.options import Drawing, Force, Json, ModelDevice, ModelName
from deixis.cli.output_files import check_drawing, write_drawing
from deixis.errors import DeixisError

if TYPE_CHECKING:
    from PIL import Image as Pillow

    from deixis.adapters.changed_sentences import Changed
    from deixis.cli.explanation import Explanation, Order
    from deixis.model import Box, Concept, Model
    from deixis.vision.drawing.pages import Finding

Picture = Annotated[Path, typer.Argument(metavar="IMAGE", help="A picture file.")]


def concepts(
    image: Picture,
    model: ModelName = None,
    count: Annotated[int, typer.Option(min=1, help="How many concepts, the most confident first.")] = 10,
    out: Drawing = None,
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

    check_drawing(out, force)
    with busy("Looking"):
        picture = read_picture_file(image)
        seen = load_model(model or CONCEPTS, device).concepts(image)[:count]
    if out is not None:
        _draw(picture, _by_region(seen), image.name, out)
    if as_json:
        print_json({"picture": str(image), "concepts": seen})
        return
    rows = [[concept.concept, concept.part, f"{concept.confidence:.3f}", _region(concept.box)] for concept in seen]
    print_table(str(image), ["concept", "part", "confidence", "where"], rows)


def explain(
    image: Picture,
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="A sentence about the picture.")],
    model: ModelName = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="SENTENCE",
            help="The sentence to compare word order with.",
            show_default="the same words with two roles exchanged",
        ),
    ] = None,
    out: Drawing = None,
    device: ModelDevice = "auto",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Show which concepts, colours and numbers of a sentence a picture supports, and whether word order
    matters.

    Without --model, the bundled concept network finds concepts and deixis-base scores the sentences. These are other
    networks than those of `deixis ground`, which may answer otherwise. A run trained on
    context alone has no concepts; one trained on concepts alone does not read word order.

    Word order: the score of the sentence is compared with that of the same words with two roles exchanged ("a cheetah
    chases a gazelle", "a gazelle chases a cheetah"). A parser makes that sentence, or you give one with --against.

    Colours, numbers and attributes: the score of the sentence is compared with that of the same sentence with another
    one ("a red bus", "a yellow bus"; of other colours the one that fits best), or with two of them exchanged.

    Example: deixis explain savanna.jpg "A cheetah chases a gazelle." --model runs/cnp-ctx-gen
    """
    from deixis.adapters.changed_sentences import changed_sentences
    from deixis.cli.explanation import Explanation, asked_concepts
    from deixis.cli.output import busy, print_json
    from deixis.loading import CONCEPTS, load_model
    from deixis.text.tokens import tokens_of
    from deixis.vision.picture_files import read_picture_file

    check_drawing(out, force)
    tokens = tokens_of(sentence)
    if not tokens:
        raise DeixisError("the sentence has no word")
    with busy("Looking"):
        picture = read_picture_file(image)
        opened = load_model(model or CONCEPTS, device)
        seen = opened.look(image)
        reads_order_alone = "score" in opened.abilities and "concepts" not in opened.abilities
        asked, others = ([], []) if reads_order_alone else asked_concepts(opened, seen, tokens)
        # The bundled concept network cannot score sentences: deixis-base does.
        scorer, shown = (opened, seen) if model else (load_model(), picture)
        order, reason = _order(scorer, shown, tokens, against)
        changes = changed_sentences(scorer, shown, tokens)
    explanation = Explanation(str(image), sentence, tuple(asked), tuple(others), order, reason, tuple(changes))
    if out is not None:
        _draw(picture, _findings(explanation), sentence, out)
    if as_json:
        print_json(explanation)
        return
    _print(explanation)


def _order(model: Model, image: Any, tokens: tuple[str, ...], against: str | None) -> tuple[Order | None, str]:
    """The scores of the sentence and of its twin, or the reason why there is no twin."""
    from deixis.cli.explanation import order_of
    from deixis.text.exchange import exchanged_captions
    from deixis.text.parsing import ParserMissing, load_parser
    from deixis.text.tokens import tokens_of
    from deixis.text.twins import PARSER

    if "score" not in model.abilities:
        return None, "this run knows only concepts and cannot score sentences"
    other = tokens_of(against) if against is not None else ()
    if against is None:
        try:
            twin = next(exchanged_captions([tokens], load_parser(PARSER)))
        except ParserMissing:
            return None, "exchanging roles needs a parser (pip install 'deixis[text]'); or give --against SENTENCE"
        if twin is None:
            return None, (
                "not compared, because no two roles can be exchanged: that takes two nouns, both singular or both "
                "plural, and a verb between them; or give --against SENTENCE"
            )
        other = twin.tokens
    return order_of(model.score_texts(image, [tokens, other]), other), ""


def _region(box: Box | None) -> str:
    return "whole picture" if box is None else ", ".join(f"{side:.0f}" for side in box)


def _by_region(concepts: list[Concept]) -> list[Finding]:
    """Concepts of the whole picture, then those of each region, in the order of their first concept."""
    from deixis.corpus import Box
    from deixis.vision.drawing.pages import Finding

    regions: dict[Any, list[tuple[str, str]]] = {None: []}
    for concept in concepts:
        regions.setdefault(concept.box, []).append((concept.concept, f"{concept.confidence:.2f}"))
    return [Finding(tuple(lines), box and Box(*box)) for box, lines in regions.items() if lines]


def _findings(explanation: Explanation) -> list[Finding]:
    from deixis.vision.drawing.pages import Finding

    findings = _by_region([asked.found for asked in explanation.concepts if asked.supported])
    lacking = [
        (asked.found.concept, f"{asked.found.confidence:.2f}") for asked in explanation.concepts if not asked.supported
    ]
    if lacking:
        findings.append(Finding((("not seen:", ""), *lacking), missing=True))
    if (order := explanation.order) is not None:
        sentences = (explanation.sentence, f"{order.score:.3f}"), (order.exchanged, f"{order.exchanged_score:.3f}")
        findings.append(Finding(sentences))
    return findings


def _better(change: Changed) -> str:
    return change.became if change.clearly_better else change.word if change.supported else "hard to say"


def _draw(picture: Pillow.Image, findings: list[Finding], title: str, out: Path) -> None:
    from deixis.vision.drawing.pages import draw_findings

    write_drawing(draw_findings(picture, findings, title), out)


def _print(explanation: Explanation) -> None:
    from deixis.cli.output import print_table

    rows = [
        [
            asked.word,
            asked.found.concept,
            "supported" if asked.supported else "lacking",
            f"{asked.found.confidence:.3f}",
            _region(asked.found.box),
        ]
        for asked in explanation.concepts
    ]
    if rows:
        print_table(explanation.sentence, ["word", "concept", "picture", "confidence", "where"], rows)
    if explanation.other_words:
        typer.echo(f"Words that are not concepts of this model: {', '.join(explanation.other_words)}")
    if explanation.changes:
        rows = [[change.kind, change.word, change.became, _better(change)] for change in explanation.changes]
        print_table("With one thing changed", ["kind", "in the sentence", "instead", "fits the picture better"], rows)
    if (order := explanation.order) is None:
        typer.echo(f"Order: {explanation.no_order}")
        return
    ahead = "higher" if order.score > order.exchanged_score else "lower"
    outcome = f"scores {ahead} than" if order.matters else "scores the same as"
    typer.echo(f"Order: {order.score:.4f} {outcome} {order.exchanged_score:.4f} of {order.exchanged!r}")
