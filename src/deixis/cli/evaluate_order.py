"""`deixis evaluate order` and `deixis evaluate random`: whether order is read, and what chance alone gives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deixis.cli.evaluate_run import CorpusOfRun, RunFolder, StoresOfIt
from deixis.cli.options import SCORED_SPLIT, Device, Force, Json, Split
from deixis.cli.output_files import check_free, system_faults
from deixis.cli.result_record import Out

if TYPE_CHECKING:
    from deixis.metrics.results import Result


def order(
    run: RunFolder,
    corpus: CorpusOfRun = None,
    twins: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Captions and their exchanged twins, from `deixis text exchange`. Without, they are made and kept.",
            show_default=False,
        ),
    ] = None,
    features: StoresOfIt = None,
    split: Split = SCORED_SPLIT,
    device: Device = "auto",
    out: Out = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Tell how often a true caption scores higher than the same words with roles exchanged; ties are wrong.

    Example: deixis evaluate order runs/gen --corpus scenes --split test
    """
    from deixis.cli.output import busy, run_corpus, run_stores
    from deixis.loading import load_model
    from deixis.metrics.word_order import order_accuracy
    from deixis.text.twins import corpus_twins, read_twins
    from deixis.training.kinds import kind_of
    from deixis.training.recipe_reference import reference
    from deixis.training.run_models import read_recipe

    if out is not None:
        check_free(out, force)
    recipe, model = read_recipe(run), load_model(run, device)
    opened = run_corpus(run, recipe, corpus)
    with busy("Exchanging roles"):
        pairs = corpus_twins(opened.split(split)) if twins is None else read_twins(twins)
    stores = run_stores(run, recipe, opened, features, device, split)
    with busy(f"Scoring {len(pairs):,} pairs"):
        result = order_accuracy(
            model,
            kind_of(recipe.kind).pictures(recipe, opened, split, stores),
            pairs,
            recipe=reference(recipe),
            seed=recipe.seed,
            readings=recipe.readings,
        )
    _tell(result, f"order of words, {split}", out, as_json)


def random(
    corpus: Annotated[str, typer.Argument(metavar="PATH", help="A corpus.")],
    split: Split = SCORED_SPLIT,
    folds: Annotated[int, typer.Option(min=1, help="Rank within this many equal parts of the images.")] = 1,
    regions: Annotated[bool, typer.Option("--regions", help="Drawn regions and phrases, not images and captions.")] = (
        False
    ),
    row: Annotated[
        list[str] | None,
        typer.Option(help="A row of the papers' tables that this is: hm-lstm/table1/random.", show_default=False),
    ] = None,
    out: Out = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Tell what a method gets that ranks at random, in closed form.

    Example: deixis evaluate random joined/ --row hm-lstm/table1/random --out results/hm-lstm/random.json
    """
    from deixis.corpus import open_corpus
    from deixis.metrics.random_baseline import random_region_phrases, random_retrieval

    if out is not None:
        check_free(out, force)
    opened, rows = open_corpus(corpus), row or []
    if regions:
        result = random_region_phrases(opened, split, rows=rows)
    else:
        result = random_retrieval(opened, split, folds=folds, rows=rows)
    _tell(result, f"random, {split}", out, as_json)


def _tell(result: Result, title: str, out: Path | None, as_json: bool) -> None:
    from deixis.cli.output import print_json, print_table
    from deixis.metrics.results import flatten, save

    if out is not None:
        with system_faults(out):
            save(result, out)
    if as_json:
        print_json(result)
        return
    figures = [[name, f"{value:,.2f}"] for name, value in flatten(result.metrics)]
    print_table(title, ["figure", "value"], figures)
