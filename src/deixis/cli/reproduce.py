"""`deixis reproduce`: train and evaluate the rows of the papers' tables, and compare with the papers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deixis.cli.options import SCORED_SPLIT, Device, Json, Split
from deixis.errors import DeixisError

if TYPE_CHECKING:
    from deixis.training.reproducing import Material
    from deixis.training.trainer import Progress


def reproduce(
    tables: Annotated[
        list[str],
        typer.Argument(metavar="TABLE", help="Tables, rows, recipes or papers: two-branch/table2, hm-lstm, …"),
    ],
    corpus: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=PATH",
            help="The path of a corpus that recipes name, such as flickr8k-entities=joined/; may be repeated.",
        ),
    ],
    features: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=STORE",
            help="A feature store of a corpus; may be repeated.",
            show_default="extracted and cached",
        ),
    ] = None,
    pictures_in: Annotated[
        list[str] | None,
        typer.Option(
            "--pictures-in",
            metavar="NAME=PATH",
            help="A folder or .zip with the pictures of a corpus; may be repeated.",
            show_default=False,
        ),
    ] = None,
    runs: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The folder of the runs; finished ones are not trained again.")
    ] = Path("runs"),
    results: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The folder of the result files; existing ones are not made again.")
    ] = Path("results"),
    seeds: Annotated[int, typer.Option(min=1, help="Train each recipe this many times, with seeds 0, 1, …")] = 1,
    split: Split = SCORED_SPLIT,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train and evaluate the recipes of the papers' tables, and print our results beside the papers'.

    Finished runs and existing results are kept, so an interrupted command continues and another seed costs one run per
    recipe. Several processes may share the same folders: each takes a recipe that no other is working on. Small
    networks leave most of a GPU idle, so this saves time. On a CPU give each process OMP_NUM_THREADS=1.

    Example: deixis reproduce two-branch/table2 --corpus flickr8k-entities=joined/ --seeds 3 --device cuda
    """
    from deixis.cli.output import busy, console, print_json, resumable
    from deixis.metrics.paper_tables import paper_tables
    from deixis.metrics.result_tables import compare, markdown
    from deixis.metrics.results import load
    from deixis.training.reproducing import reproduce as reproduce_rows
    from deixis.training.run_records import epoch_line
    from deixis.vision.learned_proposals import checked_device

    def say(text: str) -> None:
        typer.echo(text, err=True)

    target = checked_device(device)
    with busy("Reading corpora"):
        materials = _materials(corpus, features or [], pictures_in or [])

    def progress(at: Progress) -> None:
        if at.epoch_record is not None:
            say(f"  {epoch_line(at.epoch_record, at.epochs)}")

    folders = {"runs": runs, "results": results}
    with resumable():
        rows = reproduce_rows(
            tables, materials, target, **folders, seeds=range(seeds), split=split, progress=progress, say=say
        )
        paths = list(rows)
    if json:
        print_json([str(path) for path in paths])
        return
    comparison = compare({str(path): load(path) for path in paths})
    shown = [table for table in paper_tables().values() if comparison.of_table(table)]
    console().print(markdown(comparison, shown), soft_wrap=True)


def _materials(corpora: list[str], features: list[str], pictures_in: list[str]) -> dict[str, Material]:
    from deixis.corpus import open_corpus
    from deixis.features.store import FeatureStore
    from deixis.training.reproducing import Material

    stores: dict[str, list[FeatureStore]] = {}
    for name, path in map(_named, features):
        stores.setdefault(name, []).append(FeatureStore(path))
    pictures = dict(map(_named, pictures_in))
    return {
        name: Material(open_corpus(path, pictures=pictures.get(name)), stores.get(name, ()))
        for name, path in map(_named, corpora)
    }


def _named(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise DeixisError(f"{text!r} is not NAME=PATH; recipes call corpora by name: `deixis recipes`")
    return name, path
