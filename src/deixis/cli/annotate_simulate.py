"""`deixis annotate simulate`: replay an annotated corpus with simulated workers, and plot what came out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from deixis.cli.options import Force, Json, ResultFile, Seed, Split
from deixis.errors import DeixisError

if TYPE_CHECKING:
    from deixis.annotation.workflow_records import Settings
    from deixis.corpus import Corpus
    from deixis.metrics.results import Result

SettingsOption = Annotated[
    Path | None,
    typer.Option("--settings", metavar="FILE", help="A TOML file with settings.", show_default=False),
]


def simulate(
    corpus: Annotated[str, typer.Argument(metavar="CORPUS", help="A corpus with chains and boxes.")],
    out: Annotated[Path, typer.Option(help="A folder for the results and plots.", show_default=False)],
    images: Annotated[int, typer.Option(min=1, help="Images to annotate again.")] = 500,
    known: Annotated[int, typer.Option(min=1, help="Other images, for verification questions.")] = 300,
    population: Annotated[
        list[str] | None, typer.Option(help="Only these: error-0, error-2, error-5, error-10, mixed.")
    ] = None,
    settings: SettingsOption = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Replay an annotated corpus with simulated workers, one result file for each kind of crowd.

    Example: deixis annotate simulate flickr30k_entities/annotations.zip --out results/annotation
    """
    from random import Random

    from deixis.annotation.simulation.study import POPULATIONS, choose_images
    from deixis.cli.output import print_json
    from deixis.cli.output_files import check_free
    from deixis.corpus import open_corpus

    check_free(out, force)
    names = population or list(POPULATIONS)
    unknown = [name for name in names if name not in POPULATIONS]
    if unknown:
        raise DeixisError(f"unknown population {unknown[0]!r}; there are {', '.join(POPULATIONS)}")
    rules = read_settings(settings)
    chosen, others = choose_images(open_corpus(corpus), images, known, Random(seed))
    results = {name: _simulate_one(chosen, others, name, seed, rules, out, shown=not json) for name in names}
    _draw_plots(out)
    if json:
        print_json(results)


def links(
    corpus: Annotated[str, typer.Argument(metavar="CORPUS", help="A corpus with chains.")],
    split: Split = "val",
    model: Annotated[
        Path | None, typer.Option(help="Another scorer than the package's own.", show_default=False)
    ] = None,
    out: ResultFile = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Measure how well words alone link mentions: the coreference scorer, and the same head noun.

    Example: deixis annotate links flickr30k_entities/annotations.zip --split test
    """
    from time import perf_counter

    from deixis.annotation.simulation.linking import by_head, by_model, score_links, score_proposals
    from deixis.cli.output import busy, print_json, print_table
    from deixis.cli.output_files import check_free, system_faults
    from deixis.corpus import open_corpus
    from deixis.metrics.results import Protocol, corpus_reference, flatten, make_result, save
    from deixis.text.coreference import CoreferenceScorer

    check_free(out, force)
    began = perf_counter()
    scorer = CoreferenceScorer.load(model)
    with busy("Reading the corpus"):
        chosen = open_corpus(corpus).split(split)
    with busy(f"Linking the mentions of {len(chosen):,} images"):
        rules = {"scorer": by_model(scorer), "same_head": by_head}
        measured = {name: score_links(chosen, rule) for name, rule in rules.items()}
    result = make_result(
        Protocol("coreference links", "not applicable", {"model": model.name if model else "coreference"}),
        {name: figures for name, (figures, _) in measured.items()} | {"proposals": score_proposals(chosen, scorer)},
        duration=perf_counter() - began,
        corpus=corpus_reference(chosen, split),
        counts={"images": len(chosen)} | {f"{name}_questions": asked for name, (_, asked) in measured.items()},
    )
    if out is not None:
        with system_faults(out):
            save(result, out)
    if json:
        print_json(result)
        return
    rows = [[name, f"{value:,.2f}"] for name, value in flatten(result.metrics)]
    print_table(f"Links on {chosen.name} {split}", ["figure", ""], rows)


def _simulate_one(
    chosen: Corpus, known: Corpus, name: str, seed: int, settings: Settings, out: Path, *, shown: bool
) -> Result:
    import tempfile
    from time import perf_counter

    from msgspec.structs import asdict

    from deixis.annotation.simulation.study import run_study
    from deixis.annotation.workflow_records import Settings
    from deixis.cli.output import progress_bar
    from deixis.cli.output_files import system_faults
    from deixis.metrics.results import Protocol, corpus_reference, make_result, save

    began = perf_counter()
    defaults = asdict(Settings())
    parameters: dict[str, str | int | float | bool] = {"population": name, "known_images": len(known)}
    parameters |= {rule: str(value) for rule, value in asdict(settings).items() if value != defaults[rule]}
    with tempfile.TemporaryDirectory() as folder, progress_bar(name) as progress:
        study = run_study(Path(folder) / "project.db", chosen, known, name, seed, settings, progress)
    result = make_result(
        Protocol("annotation replay", "not applicable", parameters),
        study.figures,
        corpus=corpus_reference(chosen),
        seed=seed,
        counts=study.counts,
        readings=("Workflow of the Entities paper",),
        duration=perf_counter() - began,
    )
    with system_faults(out):
        save(result, out / f"replay-{name}.json")
    if shown:
        _print_result(name, result.metrics, study.finished)
    return result


def _print_result(name: str, metrics: object, finished: bool) -> None:
    from deixis.cli.output import print_table
    from deixis.metrics.results import flatten

    rows = [[key, f"{value:,.2f}"] for key, value in flatten(cast(dict[str, float], metrics))]
    print_table(f"{name}{'' if finished else ' (did not come to its end)'}", ["figure", ""], rows)


def _draw_plots(folder: Path) -> None:
    """Plots of all replays in the folder: quality over the workers' error rate, and what linking costs."""
    from deixis.annotation.charts import bar_chart, line_chart
    from deixis.annotation.simulation.study import POPULATIONS
    from deixis.files import write_text
    from deixis.metrics.results import load_folder

    results = {
        str(result.protocol.parameters["population"]): cast(dict[str, dict[str, float]], result.metrics)
        for result in load_folder(folder).values()
        if result.protocol.name == "annotation replay"
    }
    rates = sorted((int(name.removeprefix("error-")), name) for name in results if name.startswith("error-"))
    if rates:
        series = {
            "chains, pairwise F1": [results[name]["pairs"]["f1"] for _, name in rates],
            "chains, B³ F1": [results[name]["b_cubed"]["f1"] for _, name in rates],
            "boxes, precision": [results[name]["boxes"]["precision"] for _, name in rates],
            "boxes, recall": [results[name]["boxes"]["recall"] for _, name in rates],
        }
        low = min(value for values in series.values() for value in values)
        chart = line_chart(
            "What comes out, by how often workers err",
            "wrong answers, in percent",
            [float(rate) for rate, _ in rates],
            series,
            float(int(low / 10) * 10) if low < 100 else 90.0,
        )
        write_text(folder / "quality.svg", chart)
    names = [name for name in POPULATIONS if name in results]
    cost = {
        "asked": [results[name]["links"]["asked_per_image"] for name in names],
        "|M||C|": [results[name]["links"]["mentions_times_chains_per_image"] for name in names],
        "|M|²": [results[name]["links"]["mentions_squared_per_image"] for name in names],
    }
    if names:
        write_text(folder / "links.svg", bar_chart("Link questions an image", names, cost))


def read_settings(file: Path | None) -> Settings:
    """The settings in a TOML file, or the defaults."""
    from deixis.annotation.workflow_records import Settings
    from deixis.files import read_toml

    if file is None:
        return Settings()
    return read_toml(file, Settings, "does not hold settings")
