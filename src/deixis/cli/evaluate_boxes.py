"""`deixis evaluate queries` and `boxes`: what a split asks, and the boxes that any model answers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from deixis.cli.options import SCORED_SPLIT, CorpusPath, Force, Json, ResultFile, Split
from deixis.cli.output_files import Record, check_free, system_faults


def queries(
    corpus: CorpusPath,
    out: Annotated[Path, typer.Option(metavar="JSON", help="The file to write.")] = Path("queries.json"),
    split: Split = SCORED_SPLIT,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write the images, captions and phrases of a split in the order that `scores`, `embeddings` and `boxes` expect.

    Phrases are those with a box; each has an id, its caption, its picture with width and height, and no box.

    Example: deixis evaluate queries flickr8k-entities/ --split test --out queries.json
    """
    from deixis.cli.output import busy, print_json
    from deixis.corpus import open_corpus
    from deixis.metrics.query_list import query_list, save_list

    check_free(out, force)
    with busy(f"Reading {corpus}"):
        queries_asked = query_list(open_corpus(corpus), None if split == "all" else split)
    with system_faults(out):
        save_list(queries_asked, out)
    counts = {
        "images": len(queries_asked.images),
        "captions": len(queries_asked.captions),
        "phrases": len(queries_asked.phrases),
    }
    if as_json:
        print_json({"file": str(out), **counts, "split_hash": queries_asked.split_hash})
    else:
        listed = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        typer.echo(f"Wrote {listed} of {split} to {out}")


def boxes(
    predictions: Annotated[
        Path,
        typer.Argument(
            metavar="PREDICTIONS.json",
            help="For each phrase id its boxes [x1, y1, x2, y2] in pixels of the original picture, best first.",
        ),
    ],
    corpus: Annotated[str, typer.Option("--corpus", metavar="CORPUS", help="A corpus with phrases and boxes.")],
    split: Split = SCORED_SPLIT,
    saw_boxes: Annotated[
        bool | None,
        typer.Option(
            "--saw-boxes/--saw-no-boxes",
            help="Whether any part of the model learned from annotated boxes; a result file must say so.",
            show_default=False,
        ),
    ] = None,
    out: ResultFile = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Score the boxes of any detector or grounding model for the phrases of a split: Recall@1, 5, 10 at IoU 0.5.

    `deixis evaluate queries` writes the phrase ids. Boxes of a plural phrase are merged into one, as in the papers. A
    phrase without boxes counts as missed. Beside the recalls: the upper bound of the boxes, rows by phrase type, why
    first boxes are wrong, and the whole picture as a baseline that does not read the phrase.

    Example: deixis evaluate boxes predictions.json --corpus flickr8k-entities/ --saw-boxes --out result.json
    """
    from deixis.cli.output import busy, print_json, print_table
    from deixis.corpus import open_corpus
    from deixis.errors import DeixisError, InputError
    from deixis.metrics.query_list import boxes_outside, localize_boxes, read_boxes
    from deixis.metrics.ranking import TIES
    from deixis.metrics.results import BoxSupervision, corpus_reference
    from deixis.metrics.text_blind import baseline_figures, text_blind_localizations

    start = time.monotonic()
    record = Record(out, force, {"predictions": predictions})
    if out is not None and saw_boxes is None:
        raise DeixisError("a result file says whether the model saw boxes: give --saw-boxes or --saw-no-boxes")
    predicted = read_boxes(predictions)
    with busy(f"Reading {corpus}"):
        opened = open_corpus(corpus)
    chosen = None if split == "all" else split
    images = opened.images if chosen is None else opened.split(chosen).images
    try:
        localized, missing = localize_boxes(images, predicted)
    except DeixisError as fault:
        raise InputError(predictions, str(fault)) from None
    blind = {}
    if all(image.width and image.height for image in images):
        blind = text_blind_localizations(images, lambda image: (image.width or 0, image.height or 0))
    figures = {"localization": {**localized.as_dict(), **baseline_figures(blind)}}
    counts = {
        "images": len(images),
        "phrases": localized.phrases,
        "without_box": localized.without_box,
        "without_prediction": missing,
        "boxes_outside": boxes_outside(images, predicted),
    }
    parameters: dict[str, str | float] = {"boxes": "merged", "iou": 0.5}
    reference = corpus_reference(opened, chosen)
    seen = bool(saw_boxes)
    statement = f"{predictions.name}: its model {'learned from' if seen else 'saw no'} annotated boxes"
    supervision = BoxSupervision(seen, seen, statement, upper_bound=localized.overall.upper_bound)
    record.write("phrase localization", TIES, parameters, figures, counts, start, reference, supervision)
    if as_json:
        print_json({**figures, **counts, "split_hash": reference.split_hash})
        return
    whole = blind.get("whole_image")
    rows = [
        (
            name,
            f"{row.instances:,}",
            *(f"{value:.1f}" for value in row.recall.values()),
            f"{row.upper_bound:.1f}",
            "" if whole is None else f"{(whole.by_type.get(name) or whole.overall).recall[1]:.1f}",
        )
        for name, row in (("all", localized.overall), *localized.by_type.items())
    ]
    columns = ["type", "phrases", "R@1", "R@5", "R@10", "bound", "whole picture R@1"]
    print_table(f"Phrase localization, {split}", columns, rows)
    if localized.failures:
        shares = ", ".join(f"{name.replace('_', ' ')} {share:.0f}%" for name, share in localized.failures.items())
        typer.echo(f"Wrong first boxes: {shares}")
    if counts["boxes_outside"]:
        problem = f"Boxes outside their pictures: {counts['boxes_outside']:,}"
        typer.echo(f"{problem}. They must be in pixels of the original pictures; the list has the sizes.", err=True)
    if missing:
        typer.echo(f"{missing:,} phrases have no boxes and count as missed", err=True)
