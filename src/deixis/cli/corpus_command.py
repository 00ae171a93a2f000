"""`deixis corpus`: count, compare, draw, convert, join and cut corpora of any format."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deixis.cli.options import CorpusPath, Force, ForceFolder, Json, PicturesIn, ResultFile, Splits
from deixis.cli.output import busy, print_json, print_table
from deixis.cli.output_files import check_drawing, check_free, system_faults, write_drawing, write_out

if TYPE_CHECKING:
    from deixis.corpus import Corpus
    from deixis.corpus.statistics import Statistics

app = typer.Typer(no_args_is_help=True, help="Count, compare, draw, convert, join and cut corpora of any format.")

OutPath = Annotated[
    Path, typer.Argument(metavar="OUT", help="The folder to write, or the file if the format is a single file.")
]
FormatOption = Annotated[
    str | None, typer.Option("--format", help="The format of CORPUS.", show_default="detected from its files")
]
ToOption = Annotated[str, typer.Option("--to", help="The format to write; see `deixis corpus formats`.")]
CopyOption = Annotated[bool, typer.Option("--pictures", help="Also write the picture files, under images/.")]


@app.command()
def stats(
    corpus: CorpusPath,
    split: Splits = None,
    format: FormatOption = None,
    out: ResultFile = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Count images, captions, phrases, chains and boxes, by type as in Table 1 of Flickr30k Entities.

    Example: deixis corpus stats flickr30k_entities/annotations.zip --json
    """
    check_free(out, force)
    from deixis.corpus import open_corpus
    from deixis.corpus.statistics import corpus_statistics, read_statistics

    start = time.monotonic()
    with busy(f"Counting {corpus}"):
        if split:
            counts = corpus_statistics(open_corpus(corpus, format=format).split(*split))
        else:
            counts = read_statistics(corpus, format=format)
    if out is not None:
        _save_statistics(counts, open_corpus(corpus, format=format), split or [], out, time.monotonic() - start)
    if json:
        print_json(counts)
    else:
        _print_statistics(counts)


@app.command()
def errors(
    corpus: CorpusPath,
    reference: Annotated[
        str, typer.Argument(metavar="REFERENCE", help="The same captions with the annotations to compare with.")
    ],
    json: Json = False,
) -> None:
    """Compare phrases and chains with a reference: chunking errors, coreference errors, images with any error.

    This is the error analysis of Flickr30k Entities. REFERENCE may be corrected annotations or those of other
    annotators.

    Example: deixis corpus errors annotated/ joined/
    """
    from dataclasses import asdict

    from deixis.corpus import open_corpus
    from deixis.metrics.annotation_errors import annotation_errors

    with busy(f"Comparing {corpus} and {reference}"):
        report = annotation_errors(open_corpus(corpus), open_corpus(reference))
    shares = report.shares()
    if json:
        print_json({**asdict(report), "percent": shares})
        return
    whole = {"chunking_errors": "mentions", "coreference_errors": "chains", "images_with_errors": "images"}
    paper = {"chunking_errors": "<1", "coreference_errors": "<1", "images_with_errors": "8"}
    print_table(
        f"Errors in % ({report.images:,} images, {report.mentions:,} mentions, {report.chains:,} chains)",
        ["", "of", "here", "Flickr30k Entities"],
        [[_label(name), whole[name], f"{share:.2f}", paper[name]] for name, share in shares.items()],
    )


@app.command()
def show(
    corpus: CorpusPath,
    image: Annotated[str, typer.Argument(metavar="ID", help="The image's id.")],
    out: Annotated[Path | None, typer.Option(metavar="PNG", help="The file to write.", show_default="ID.png")] = None,
    caption: Annotated[
        int | None, typer.Option(min=0, help="Draw one caption; the first is 0.", show_default="all")
    ] = None,
    format: FormatOption = None,
    pictures_in: PicturesIn = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Draw a picture with its phrases and boxes in matching colours.

    Example: deixis corpus show scenes scene-000000 --out scene.png
    """
    out = out or Path(image.replace("/", "_") + ".png")
    check_drawing(out, force)
    from deixis.corpus import open_corpus
    from deixis.vision.drawing.pages import draw_annotations

    with busy(f"Reading {corpus}"):
        opened = open_corpus(corpus, format=format, pictures=pictures_in)
    drawing = draw_annotations(opened, image, caption=caption)
    if opened.pictures is None or not opened.pictures.has(opened[image]):
        typer.echo("The picture file is missing: the boxes are drawn on white. Give it with --pictures-in", err=True)
    write_drawing(drawing, out)
    if json:
        print_json({"out": str(out), "image": opened[image]})
    else:
        typer.echo(f"Drew image {image} to {out} ({drawing.width} × {drawing.height})")


@app.command()
def convert(
    corpus: CorpusPath,
    out: OutPath,
    to: ToOption = "deixis",
    from_: Annotated[
        str | None, typer.Option("--from", help="The format of CORPUS.", show_default="detected from its files")
    ] = None,
    split: Splits = None,
    pictures: CopyOption = False,
    pictures_in: PicturesIn = None,
    force: ForceFolder = False,
    json: Json = False,
) -> None:
    """Write a corpus in another format, and report what that format cannot store.

    Example: deixis corpus convert annotations.zip grounding/ --to grounding --split val --split test
    """
    check_free(out, force)
    from deixis.corpus import open_corpus

    with busy(f"Reading {corpus}"):
        opened = open_corpus(corpus, format=from_, pictures=pictures_in)
    if split:
        opened = opened.split(*split)
    write_out(opened, out, to=to, pictures=pictures, force=force, json=json)


@app.command()
def join(
    left: Annotated[
        str, typer.Argument(metavar="LEFT", help="The corpus with pictures, captions and splits (Flickr8k).")
    ],
    right: Annotated[
        str, typer.Argument(metavar="RIGHT", help="The corpus with phrases, chains and boxes (Entities).")
    ],
    out: OutPath,
    to: ToOption = "deixis",
    pictures: CopyOption = False,
    force: ForceFolder = False,
    json: Json = False,
) -> None:
    """Add the phrases, chains and boxes of one corpus to the same photos in another.

    Example: deixis corpus join flickr8k/ flickr30k_entities/annotations.zip joined/ --pictures
    """
    check_free(out, force)
    from deixis.corpus import open_corpus
    from deixis.corpus.combine import join as join_corpora

    with busy(f"Joining {left} and {right}"):
        report = join_corpora(open_corpus(left), open_corpus(right))
    write_out(report.corpus, out, to=to, pictures=pictures, force=force, json=json, counts=report.counts)


@app.command()
def concat(
    paths: Annotated[list[str], typer.Argument(metavar="CORPUS", help="Two corpora or more.")],
    out: Annotated[
        Path, typer.Option(metavar="OUT", help="The folder to write, or the file if the format is a single file.")
    ],
    prefix: Annotated[
        list[str] | None,
        typer.Option(help="A prefix for the image ids of a corpus; repeat it for each corpus.", show_default=False),
    ] = None,
    to: ToOption = "deixis",
    pictures: CopyOption = False,
    force: ForceFolder = False,
    json: Json = False,
) -> None:
    """Write all images of several corpora as one, to train on them together.

    Example: deixis corpus concat flickr8k/ coco-train/ --out both/ --pictures
    """
    check_free(out, force)
    from deixis.corpus import open_corpus
    from deixis.corpus.combine import concat as concat_corpora

    with busy(f"Reading {len(paths)} corpora"):
        corpus = concat_corpora(*map(open_corpus, paths), prefixes=prefix or ())
    write_out(corpus, out, to=to, pictures=pictures, force=force, json=json)


@app.command()
def cut(
    corpus: CorpusPath,
    out: OutPath,
    split: Splits = None,
    ids: Annotated[
        Path | None, typer.Option(help="Only the images of a text file with one id per line.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Only the first N images.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Choose the --limit images at random, with this seed.", show_default=False)
    ] = None,
    to: ToOption = "deixis",
    pictures: CopyOption = False,
    pictures_in: PicturesIn = None,
    force: ForceFolder = False,
    json: Json = False,
) -> None:
    """Write part of a corpus, chosen by split, by id or by number of images.

    Example: deixis corpus cut joined/ small/ --split train --limit 500 --seed 1
    """
    check_free(out, force)
    from deixis.corpus import open_corpus
    from deixis.corpus.combine import cut as cut_corpus
    from deixis.corpus.format_helpers import list_entries
    from deixis.corpus.tree import SingleFileTree

    with busy(f"Reading {corpus}"):
        opened = open_corpus(corpus, pictures=pictures_in)
    chosen = None if ids is None else [line for _, line in list_entries(SingleFileTree(ids), ids.name)]
    generator = None
    if seed is not None:
        from numpy.random import default_rng

        generator = default_rng(seed)
    chosen_images = cut_corpus(opened, split or (), chosen, limit, generator)
    write_out(chosen_images, out, to=to, pictures=pictures, force=force, json=json)


@app.command()
def formats(json: Json = False) -> None:
    """List the formats that can be read and written.

    Example: deixis corpus formats
    """
    from deixis.corpus.formats import FORMATS, get_format

    known = {name: get_format(name).DESCRIPTION for name in FORMATS}
    if json:
        print_json(known)
    else:
        width = max(map(len, known))
        for name, description in known.items():
            typer.echo(f"{name:<{width}}  {description}")


def _save_statistics(counts: Statistics, corpus: Corpus, splits: list[str], out: Path, duration: float) -> None:
    """Write a result file; for the whole Flickr30k Entities release it fills Table 1 of the paper."""
    import msgspec

    from deixis.corpus.statistics import is_flickr30k_entities
    from deixis.metrics.results import Protocol, corpus_reference, make_result, save

    figures = msgspec.to_builtins(counts)
    del figures["splits"]
    reference = corpus_reference(corpus.split(*splits) if splits else corpus)
    result = make_result(
        Protocol("corpus statistics", "not applicable", {"splits": ", ".join(splits) or "all"}),
        figures,
        corpus=reference,
        rows=("entities-cca/table1",) if is_flickr30k_entities(counts) else (),
        readings=("Table 1 of the Entities paper",),
        duration=duration,
    )
    with system_faults(out):
        save(result, out)


def _print_statistics(counts: Statistics) -> None:
    """Print the numbers of section 2.4 and Table 1, beside the paper's if this is the whole release."""
    from deixis.corpus.records import NO_SPLIT
    from deixis.corpus.statistics import PAPER_FIGURES, is_flickr30k_entities

    release = is_flickr30k_entities(counts)
    figures = {
        name: value for name in counts.__struct_fields__ if isinstance(value := getattr(counts, name), int | float)
    }
    rows = [
        [_label(name), _figure(name, value), *([_figure(name, PAPER_FIGURES.get(name))] if release else [])]
        for name, value in figures.items()
        if value or release
    ]
    title = "Counts" if len(rows) == len(figures) else "Counts above 0"
    print_table(title, ["", "here", *(["paper"] if release else [])], rows)
    if counts.splits:
        print_table("Splits", ["split", "images"], [[name or NO_SPLIT, f"{n:,}"] for name, n in counts.splits.items()])
    if counts.by_type:
        _print_types(counts, release)


def _print_types(counts: Statistics, release: bool) -> None:
    lines = {
        name: _cells(row.chains, row.mentions_per_chain, row.boxes_per_chain, row.images_mentioning)
        for name, row in counts.by_type.items()
    }
    lines["total"] = _cells(counts.chains, counts.mentions_per_chain, counts.boxes_per_chain)
    lines["total, links"] = _cells(counts.chains, counts.mentions_per_chain, counts.linked_boxes_per_chain)
    if release:
        paper = _paper_lines()
        lines = {
            name: [" / ".join(pair) for pair in zip(cells, paper.get(name, _NO_CELLS), strict=True)]
            for name, cells in lines.items()
        }
    title = "Chains by type, with mentions and boxes per chain" + (": here / paper" if release else "")
    rows = [[name, *cells] for name, cells in lines.items()]
    print_table(title, ["type", "chains", "mentions", "boxes", "% of images"], rows)
    typer.echo("A box that several chains share counts once in `total`, and for each chain in the other rows.")


def _paper_lines() -> dict[str, list[str]]:
    from deixis.corpus.statistics import PAPER_IMAGES_MENTIONING
    from deixis.metrics.paper_tables import paper_tables

    lines = {}
    for row in paper_tables()["entities-cca/table1"].rows:
        chains, mentions, boxes = row.cells
        lines[row.id] = _cells(int(chains), float(mentions), float(boxes), PAPER_IMAGES_MENTIONING.get(row.id))
    return lines


def _cells(chains: int, mentions: float, boxes: float, images: float | None = None) -> list[str]:
    return [_cell(chains), _cell(mentions), _cell(boxes), "–" if images is None else f"{images:.1f}"]


_NO_CELLS = ["–"] * 4


def _label(name: str) -> str:
    return name.replace("_", " ").replace(" per ", " / ").replace("nonvisual", "non-visual")


def _figure(name: str, value: float | None) -> str:
    share = name.startswith(("chains_with_", "chains_without_"))
    return f"{value:.1f} %" if share and value is not None else _cell(value)


def _cell(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
