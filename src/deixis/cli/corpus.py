"""`deixis corpus`: count, draw, convert, join and cut datasets of any format."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deixis.cli.options import Force, Json
from deixis.cli.output import busy, print_json, print_table
from deixis.cli.output_files import check_free, system_faults, write_out
from deixis.errors import DeixisError

if TYPE_CHECKING:
    from deixis.corpus import Corpus
    from deixis.corpus.statistics import Statistics

app = typer.Typer(no_args_is_help=True, help="Count, draw, convert, join and cut corpora of any format.")

CorpusPath = Annotated[
    str, typer.Argument(metavar="PATH", help="A folder, .zip or file; “scenes” is the embedded one.")
]
OutPath = Annotated[
    Path, typer.Argument(metavar="OUT", help="Where to write; a folder, or a file where it can be one.")
]
FormatOption = Annotated[
    str | None, typer.Option("--format", help="The format of PATH; found from its files if not given.")
]
PicturesOption = Annotated[
    str | None, typer.Option("--pictures-in", metavar="PATH", help="A folder or .zip of pictures kept elsewhere.")
]
ToOption = Annotated[str, typer.Option("--to", help="The format to write; see `deixis corpus formats`.")]
CopyOption = Annotated[bool, typer.Option("--pictures", help="Write the picture files too, under images/.")]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Replace what is at OUT; a folder there is set aside as OUT.old, not deleted.")
]
SplitOption = Annotated[list[str] | None, typer.Option("--split", help="Only this split; may be given several times.")]


@app.command()
def stats(
    path: CorpusPath,
    split: SplitOption = None,
    format: FormatOption = None,
    out: Annotated[Path | None, typer.Option(help="Write a result record to this file.", show_default=False)] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Count images, captions, phrases, chains and boxes, by type as in Table 1 of Flickr30k Entities.

    Example: deixis corpus stats flickr30k_entities/annotations.zip --json
    """
    if out is not None:
        check_free(out, force)
    from deixis.corpus import open_corpus
    from deixis.corpus.statistics import corpus_statistics, read_statistics

    start = time.monotonic()
    with busy(f"Counting {path}"):
        if split:
            counts = corpus_statistics(open_corpus(path, format=format).split(*split))
        else:
            counts = read_statistics(path, format=format)
    if out is not None:
        _save_statistics(counts, open_corpus(path, format=format), split or [], out, time.monotonic() - start)
    if json:
        print_json(counts)
    else:
        _print_statistics(counts)


@app.command()
def show(
    path: CorpusPath,
    image: Annotated[str, typer.Argument(metavar="ID", help="The image's id.")],
    out: Annotated[Path | None, typer.Option(help="The PNG to write; by default ID.png here.")] = None,
    caption: Annotated[int | None, typer.Option(min=0, help="Only this caption; the first is 0.")] = None,
    format: FormatOption = None,
    pictures_in: PicturesOption = None,
    force: Force = False,
) -> None:
    """Draw a picture with its phrases and boxes in matching colours.

    Example: deixis corpus show scenes scene-000000 --out scene.png
    """
    out = out or Path(image.replace("/", "_") + ".png")
    if out.suffix.lower() != ".png":
        raise DeixisError(f"{out}: drawings are PNG files; choose a name that ends in .png")
    check_free(out, force)
    from deixis.corpus import open_corpus
    from deixis.files import atomic_write
    from deixis.vision.drawing import draw_annotations

    with busy(f"Reading {path}"):
        corpus = open_corpus(path, format=format, pictures=pictures_in)
    drawing = draw_annotations(corpus, image, caption=caption)
    if corpus.pictures is None or not corpus.pictures.has(corpus[image]):
        typer.echo(
            "its picture is not at hand, so the boxes stand on a blank; --pictures-in tells where it is", err=True
        )
    with system_faults(out), atomic_write(out) as stream:
        drawing.save(stream, "PNG")
    typer.echo(f"Drew image {image} to {out} ({drawing.width} × {drawing.height})")


@app.command()
def convert(
    path: CorpusPath,
    out: OutPath,
    to: ToOption = "deixis",
    from_: Annotated[str | None, typer.Option("--from", help="The format of PATH; found if not given.")] = None,
    split: SplitOption = None,
    pictures: CopyOption = False,
    pictures_in: PicturesOption = None,
    force: ForceOption = False,
    json: Json = False,
) -> None:
    """Write a corpus in another format, and tell what that format cannot hold.

    Example: deixis corpus convert annotations.zip grounding/ --to grounding --split val --split test
    """
    check_free(out, force)
    from deixis.corpus import open_corpus

    with busy(f"Reading {path}"):
        corpus = open_corpus(path, format=from_, pictures=pictures_in)
    if split:
        corpus = corpus.split(*split)
    write_out(corpus, out, to=to, pictures=pictures, force=force, json=json)


@app.command()
def join(
    left: Annotated[str, typer.Argument(metavar="LEFT", help="Gives pictures, captions and splits (Flickr8k).")],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="Gives phrases, chains and boxes (Entities).")],
    out: OutPath,
    to: ToOption = "deixis",
    pictures: CopyOption = False,
    force: ForceOption = False,
    json: Json = False,
) -> None:
    """Give the images of one corpus the phrases, chains and boxes that another has for the same photos.

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
    paths: Annotated[list[str], typer.Argument(metavar="CORPUS...", help="Two corpora or more.")],
    out: Annotated[Path, typer.Option(help="Where the whole is written.")],
    prefix: Annotated[
        list[str] | None, typer.Option(help="Put before the image ids of a corpus; as many as there are corpora.")
    ] = None,
    to: ToOption = "deixis",
    pictures: CopyOption = False,
    force: ForceOption = False,
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
    path: CorpusPath,
    out: OutPath,
    split: SplitOption = None,
    ids: Annotated[Path | None, typer.Option(help="A text file with one image id a line: only these.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="At most this many images, the first ones.")] = None,
    seed: Annotated[int | None, typer.Option(help="Draw the --limit images at random, with this seed.")] = None,
    to: ToOption = "deixis",
    pictures: CopyOption = False,
    pictures_in: PicturesOption = None,
    force: ForceOption = False,
    json: Json = False,
) -> None:
    """Write part of a corpus: some splits, some ids, some images.

    Example: deixis corpus cut joined/ small/ --split train --limit 500 --seed 1
    """
    check_free(out, force)
    from deixis.corpus import open_corpus
    from deixis.corpus.combine import cut as cut_corpus
    from deixis.corpus.format_helpers import list_entries
    from deixis.corpus.tree import SingleFileTree

    with busy(f"Reading {path}"):
        corpus = open_corpus(path, pictures=pictures_in)
    chosen = None if ids is None else [line for _, line in list_entries(SingleFileTree(ids), ids.name)]
    generator = None
    if seed is not None:
        from numpy.random import default_rng

        generator = default_rng(seed)
    corpus = cut_corpus(corpus, split or (), chosen, limit, generator)
    write_out(corpus, out, to=to, pictures=pictures, force=force, json=json)


@app.command()
def formats(json: Json = False) -> None:
    """List the formats that can be read and written."""
    from deixis.corpus.formats import FORMATS, get_format

    known = {name: get_format(name).DESCRIPTION for name in FORMATS}
    if json:
        print_json(known)
    else:
        width = max(map(len, known))
        for name, description in known.items():
            typer.echo(f"{name:<{width}}  {description}")


def _save_statistics(counts: Statistics, corpus: Corpus, splits: list[str], out: Path, duration: float) -> None:
    """A result record of the counts; of the whole release, it stands beside Table 1 of the Entities paper."""
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
    """The figures of section 2.4 and Table 1; the paper's beside ours where the corpus is the whole release."""
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
    title = "Figures" if len(rows) == len(figures) else "Figures that are not 0"
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
    typer.echo("“total” counts a box that chains share once; “links”, like the types' rows, for each of them.")


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
