"""`deixis train`, `deixis runs`, `deixis recipes`: train a recipe into a run folder, inspect runs, list recipes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deixis.cli.options import CorpusOfRun, Device, Features, Json, PicturesIn
from deixis.cli.output import print_json, print_table, progress_bar, recipe_corpus, resumable

if TYPE_CHECKING:
    from deixis.training.recipe import FitRecipe
    from deixis.training.run_records import EpochRecord, TrainingReport
    from deixis.training.trainer import Progress

runs_app = typer.Typer(no_args_is_help=True, help="Inspect training runs.")

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, finished or not.")]


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A name from `deixis recipes`, or a .toml file.")],
    out: Annotated[Path, typer.Option(metavar="RUN", help="The run folder; an unfinished run is continued.")],
    corpus: CorpusOfRun = None,
    features: Features = None,
    pictures_in: PicturesIn = None,
    device: Device = "auto",
    seed: Annotated[int | None, typer.Option(min=0, help="The random seed.", show_default="the recipe's")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a setting of the recipe; may be repeated."),
    ] = None,
    json: Json = False,
) -> None:
    """Train a recipe into a run folder. Run the same command again to continue a run that was interrupted.

    Features come from the given stores, or are extracted once per corpus into the cache.

    The run folder holds the recipe, the log, curves, a model card and the weights of the best epoch. On the CPU an
    interrupted run ends with the same weights as an uninterrupted one, bit for bit. A finished run is not changed.

    Several processes, on one machine or many, train one model together under torchrun:

        torchrun --nproc-per-node 4 --max-restarts 3 -m deixis train my.toml --out runs/my --corpus joined/

    Example: deixis train two-branch/sentences-bi --out runs/bi --corpus joined/ --features joined.features

    Example: deixis train my.toml --out runs/short --set schedule.epochs=3 --set schedule.optimizer=sgd --device cuda
    """
    from deixis.features.store import FeatureStore
    from deixis.training.distributed import joined
    from deixis.training.kinds import kind_of
    from deixis.training.recipe import load_recipe
    from deixis.training.run_records import make_run_plan
    from deixis.training.running import left_out, refuse_unshared, run_recipe, stores_for
    from deixis.training.runs import is_finished, refuse_another
    from deixis.vision.learned_proposals import checked_device

    file = load_recipe(recipe, [*(set_ or []), *([f"seed={seed}"] if seed is not None else [])])
    chosen, target = file.recipe, checked_device(device)
    with joined(device) as ranks:
        refuse_unshared(chosen, ranks)
        opened = recipe_corpus(chosen, corpus, pictures_in, shown=ranks.first)
        kind_of(chosen.kind).check_corpus(chosen, opened)
        refuse_another(out, make_run_plan(chosen, opened, ()))
        if features:
            stores = [FeatureStore(path) for path in features]
        else:
            with ranks.in_turn(), progress_bar("Extracting features") as extracting:
                stores = stores_for(chosen, opened, device=device, progress=extracting)
        if ranks.first and (missing := left_out(stores)):
            typer.echo(missing, err=True)
        finished = is_finished(out)
        with resumable(), training_progress(chosen, shown=ranks.first) as (progress, say):
            report = run_recipe(file, opened, stores, out, target, ranks=ranks, progress=progress, say=say)
    if not ranks.first:
        return
    if json:
        print_json({"out": str(out), "found": finished, "recipe": chosen.name, "report": report})
    else:
        typer.echo(f"{out} was finished already" if finished else f"Trained {chosen.name} into {out}")
        _print_report(report)


@runs_app.command()
def show(
    run: RunArgument,
    plot: Annotated[bool, typer.Option("--plot", help="Draw curves.png in the run folder again.")] = False,
    json: Json = False,
) -> None:
    """Show the epochs of a run, its best epoch, and the time it took. --json has all metrics of every epoch.

    Example: deixis runs show runs/bi --plot
    """
    from deixis.training.run_records import Note, StepRecord, epochs_of
    from deixis.training.runs import is_finished, read_log, read_model, read_plan, write_curves

    plan = read_plan(run)
    report = read_model(run).report if is_finished(run) else None
    records = read_log(run)
    epochs, notes = epochs_of(records), [record.text for record in records if isinstance(record, Note)]
    curves = write_curves(run) if plot and any(isinstance(record, StepRecord) for record in records) else None
    if json:
        print_json(
            {"recipe": plan.recipe, "finished": report is not None, "report": report, "epochs": epochs, "notes": notes}
        )
        return
    metric = plan.recipe.get("schedule", {}).get("figure")
    _print_epochs(f"{plan.recipe['name']}, seed {plan.recipe['seed']}", epochs, metric)
    if report is None:
        typer.echo("Not finished; run the same `deixis train` again to continue")
    else:
        _print_report(report)
    for note in notes:
        typer.echo(f"Note: {note}")
    if plot:
        typer.echo(f"Drew {curves}" if curves else "No curves: the run has no steps")


def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A recipe to print, or a group to list.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """List the groups of built-in recipes, the recipes of a group, or print a recipe.

    A group's list has each recipe's kind, corpus and the table rows it reproduces. A recipe is printed as TOML,
    including the settings it inherits: a start for your own. With --json, also print all defaults.

    Examples:

        deixis recipes

        deixis recipes hm-lstm

        deixis recipes hm-lstm/hm-lstm > my.toml
    """
    from deixis.training.recipe import load_recipe, package_recipes

    packaged = dict(package_recipes())
    groups = dict.fromkeys(recipe.partition("/")[0] for recipe in packaged)
    if name is not None and name.rstrip("/") not in groups:
        recipe_file = load_recipe(name)
        if json:
            print_json(recipe_file.recipe)
        else:
            typer.echo(recipe_file.text, nl=False)
        return
    if name is not None:
        packaged = {key: recipe for key, recipe in packaged.items() if key.partition("/")[0] == name.rstrip("/")}
    if json:
        print_json(packaged)
    elif name is None:
        from deixis.metrics.paper_tables import PAPERS, paper_title

        for group in groups:
            count = sum(key.startswith(f"{group}/") for key in packaged)
            title = paper_title(group) if group in PAPERS else "deixis-base, the model that ships"
            typer.echo(f"{group:<16}{count:>3} recipes  {title}")
        typer.echo("List a group with `deixis recipes GROUP`.")
    else:
        for key, recipe in packaged.items():
            rows = f" [{', '.join(recipe.rows)}]" if recipe.rows else ""
            typer.echo(f"{key}  ({recipe.kind}, {recipe.corpus})\n    {recipe.about}{rows}")


@contextmanager
def training_progress(
    recipe: FitRecipe, *, shown: bool = True
) -> Iterator[tuple[Callable[[Progress], None], Callable[[str], None]]]:
    """Show epochs, loss, the last validation and the time left on standard error; one line per epoch stays.

    Yields a function to call after each step, and one to print a line.
    """
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from deixis.training.recipe import Recipe
    from deixis.training.run_records import epoch_line

    stderr = Console(stderr=True, highlight=False, soft_wrap=True, quiet=not shown)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    figure = recipe.schedule.figure if isinstance(recipe, Recipe) else None
    epochs = recipe.schedule.epochs if isinstance(recipe, Recipe) else None
    validation = ""
    with Bar(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task(recipe.name, total=epochs, figures="")

        def progress(at: Progress) -> None:
            nonlocal validation
            if at.epoch_record is not None:
                stderr.print(epoch_line(at.epoch_record, at.epochs), markup=False)
                if figure is not None and at.epoch_record.figures is not None:
                    validation = f", {figure} {at.epoch_record.figures[figure]:.4g}"
            bar.update(
                task,
                completed=at.epoch - 1 + at.step / at.steps,
                description=f"epoch {at.epoch}/{at.epochs}",
                figures=f"loss {at.loss:.4g}{validation}",
            )

        yield progress, lambda text: stderr.print(text, markup=False)


def _print_epochs(title: str, epochs: Sequence[EpochRecord], metric: str | None) -> None:
    """Print one line per epoch, with the metric that chooses the best epoch, or all metrics if none does."""
    names = [metric] if metric else list(dict.fromkeys(name for record in epochs for name in record.figures or {}))
    best = max((record.epoch for record in epochs if record.best), default=None)
    rows = []
    for record in epochs:
        figures = record.figures or {}
        cells = [f"{figures[name]:.4g}" if name in figures else "" for name in names]
        star = " *" if record.epoch == best else ""
        rows.append(
            [f"{record.epoch}{star}", f"{record.steps:,}", f"{record.loss:.4g}", *cells, f"{record.seconds:.0f}"]
        )
    print_table(title, ["epoch", "steps", "loss", *names, "seconds"], rows)


def _print_report(report: TrainingReport) -> None:
    figures = ", ".join(f"{name} {value:.4g}" for name, value in report.figures.items())
    early = ", stopped early" if report.stopped_early else ""
    epoch = f"Best epoch {report.epoch} of {report.epochs}{early}" if report.epochs else "Fitted in closed form"
    typer.echo(f"{epoch}: {figures or 'no metrics'}")
    typer.echo(f"{report.parameters:,} parameters, {report.seconds:,.0f} s")
