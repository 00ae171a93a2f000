"""`deixis evaluate RUN`: score a trained run under the protocols of its kind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from deixis.cli.grouped_help import GroupedHelp
from deixis.cli.options import (
    SCORED_SPLIT,
    CorpusOfRun,
    Device,
    Features,
    Folds,
    Force,
    Json,
    PicturesIn,
    RunFolder,
    Split,
)
from deixis.cli.output_files import check_free, system_faults

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
