"""`deixis evaluate RUN`, `order`, `random`: a run under the protocols of its kind, its word order, scores at chance."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deixis.cli.grouped_help import GroupedHelp
from deixis.cli.options import (
    SCORED_SPLIT,
    CorpusOfRun,
    CorpusPath,
    Device,
    Features,
    Folds,
    Force,
    Json,
    PicturesIn,
    ResultFile,
    RunFolder,
    Split,
)
from deixis.cli.output_files import check_free, system_faults

if TYPE_CHECKING:
    from deixis.metrics.results import Result

#: Metrics by type, relation and the like are too many to print; the result file has them. `by_picture` is one number.
PARTS = re.compile(r"\bby_(?!picture)")


class RunOrCommand(GroupedHelp):
    """`deixis evaluate RUN` is short for `deixis evaluate run RUN`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            # A path names a run even if there is none: `run` then says so.
            if len(Path(args[0]).parts) == 1 and not Path(args[0]).is_dir():
                ctx.fail(f"there is no run folder and no command {args[0]!r}; commands: {', '.join(self.commands)}")
            args = ["run", *args]
        return super().resolve_command(ctx, args)


def run(
    run: RunFolder,
    corpus: CorpusOfRun = None,
    features: Features = None,
    pictures_in: PicturesIn = None,
    split: Split = SCORED_SPLIT,
    folds: Folds = 1,
    drawn_regions: Annotated[
        bool,
        typer.Option(
            "--drawn-regions",
            help="Also rank annotated regions and phrases (HM-LSTM, Table 4), with features of the recipe `chains`.",
        ),
    ] = False,
    device: Device = "auto",
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write result files into this folder.", show_default=False)
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Score a trained run under the protocols of its kind: retrieval, phrase localization, captions, and others.

    Example: deixis evaluate runs/embedding --corpus joined/ --split val
    """
    from deixis.cli.output import busy, print_json, print_table, run_corpus, run_stores
    from deixis.metrics.results import flatten, save
    from deixis.training.evaluating import TRAINING_SIZES, evaluate_run
    from deixis.training.run_models import read_recipe
    from deixis.vision.learned_proposals import checked_device

    check_free(out, force)
    recipe, target = read_recipe(run), checked_device(device)
    opened = run_corpus(run, recipe, corpus, pictures_in)
    stores = run_stores(run, recipe, opened, features, device, split)
    with busy(f"Scoring {split}"):
        results = evaluate_run(run, opened, stores, target, split=split, folds=folds, drawn_regions=drawn_regions)
    if out is not None:
        with system_faults(out):
            for result in results:
                save(result, out / f"{result.protocol.name.replace(' ', '-')}.json")
    if as_json:
        print_json(results)
        return
    for result in results:
        scored = {name: value for name, value in result.metrics.items() if name not in TRAINING_SIZES}
        rows = [[name, f"{value:,.2f}"] for name, value in flatten(scored) if not PARTS.search(name)]
        print_table(f"{result.protocol.name}, {split} of {opened.name or 'the corpus'}", ["metric", "value"], rows)


def order(
    run: RunFolder,
    corpus: CorpusOfRun = None,
    twins: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Captions and their twins with roles exchanged, from `deixis text exchange`.",
            show_default="made and cached",
        ),
    ] = None,
    features: Features = None,
    split: Split = SCORED_SPLIT,
    device: Device = "auto",
    out: ResultFile = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Measure how often a caption scores higher than the same words with roles exchanged; ties count as errors.

    Example: deixis evaluate order runs/gen --corpus scenes --split test
    """
    from deixis.cli.output import busy, run_corpus, run_stores
    from deixis.loading import load_model
    from deixis.metrics.word_order import order_accuracy
    from deixis.text.twins import corpus_twins, read_twins
    from deixis.training.kinds import kind_of
    from deixis.training.recipe_reference import reference
    from deixis.training.run_models import read_recipe

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
    report(result, f"order of words, {split}", out, as_json)


def random(
    corpus: CorpusPath,
    split: Split = SCORED_SPLIT,
    folds: Folds = 1,
    regions: Annotated[
        bool, typer.Option("--regions", help="Rank annotated regions and phrases, not images and captions.")
    ] = False,
    row: Annotated[
        list[str] | None,
        typer.Option(
            help="The row of a paper's table that this is, such as hm-lstm/table1/random.", show_default=False
        ),
    ] = None,
    out: ResultFile = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Compute the expected scores of a random ranking, in closed form.

    Example: deixis evaluate random joined/ --row hm-lstm/table1/random --out results/hm-lstm/random.json
    """
    from deixis.corpus import open_corpus
    from deixis.metrics.random_baseline import random_region_phrases, random_retrieval

    check_free(out, force)
    opened, rows = open_corpus(corpus), row or []
    if regions:
        result = random_region_phrases(opened, split, rows=rows)
    else:
        result = random_retrieval(opened, split, folds=folds, rows=rows)
    report(result, f"random, {split}", out, as_json)


def report(result: Result, title: str, out: Path | None, as_json: bool) -> None:
    """Write the result file, if one was asked for, and print the figures."""
    from deixis.cli.output import print_json, print_table
    from deixis.metrics.results import flatten, save

    if out is not None:
        with system_faults(out):
            save(result, out)
    if as_json:
        print_json(result)
        return
    figures = [[name, f"{value:,.2f}"] for name, value in flatten(result.metrics)]
    print_table(title, ["metric", "value"], figures)
