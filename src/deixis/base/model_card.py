"""The model card of a bundle, from its manifest, the runs behind it and result files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from deixis.adapters.bundles import Manifest
from deixis.metrics.results import Result, flatten
from deixis.training.run_card import LICENCE, box_statement
from deixis.training.runs import read_model, read_plan, read_starts

#: The metrics of a result that a card shows; of localization by type, those of all phrases.
SHOWN = ("r@1", "r@5", "r@10", "upper_bound", "bleu_4", "rouge_l", "cider_d", "precision", "recall")
TASKS = {
    "pictures": "embeds pictures and sentences, for search",
    "grounding": "grounds the phrases of a sentence in a picture",
    "captioner": "describes a picture in sentences",
}


def bundle_card(manifest: Manifest, runs: Mapping[str, Path], results: Sequence[Result]) -> str:
    """Markdown for the README.md of a bundle.

    Args:
        runs: the exported runs by task (`TASKS`); one run may have several tasks.
        results: shown as a table.
    """
    size = sum(record.bytes for record in manifest.files.values())
    does = "\n".join(f"- {TASKS[task]}" for task in runs)
    sections = [
        f"# {manifest.name}",
        f"A Deixis bundle of {size / 1e6:.1f} MB (weights as {manifest.weights}) that needs nothing but this folder. "
        f"It\n\n{does}",
        "## Results\n\n" + _found(results),
        *(f"## Training run: {', '.join(tasks)}\n\n{_run(run)}" for run, tasks in _by_run(runs).items()),
        "## Limitations\n\n"
        "It knows the words and things of its training captions, which are English sentences about everyday photos, "
        "mostly of people and dogs outdoors. It does not read text in pictures or name persons, it counts badly, and "
        "confuses who does what to whom. The score of a box says where a thing would be, not whether it is there. "
        "Captions describe people as the annotators described strangers, with their errors.",
        "## Licence\n\n" + LICENCE,
    ]
    return "\n\n".join(sections) + "\n"


def _found(results: Sequence[Result]) -> str:
    rows = []
    for result in results:
        where = "" if result.corpus is None else f"{result.corpus.name}, {result.corpus.split or 'all'}"
        what = "" if result.recipe is None else result.recipe.name
        for name, value in flatten(result.metrics):
            *path, last = name.split(".")
            if last in SHOWN and (path[:1] != ["localization"] or path[-1:] == ["overall"]):
                rows.append(f"| {what} | {result.protocol.name} | {where} | {name} | {value:.1f} |")
    if not rows:
        return "No result file was given."
    return "\n".join(["| of | protocol | corpus and split | figure | value |", "|---|---|---|---|---:|", *rows])


def _by_run(runs: Mapping[str, Path]) -> dict[Path, list[str]]:
    tasks_of: dict[Path, list[str]] = {}
    for task, run in runs.items():
        tasks_of.setdefault(run, []).append(task)
    return tasks_of


def _run(run: Path) -> str:
    model, plan, starts = read_model(run), read_plan(run), read_starts(run)
    corpus = "its own data" if plan.corpus is None else plan.corpus.name
    images = "" if plan.corpus is None else f", {plan.corpus.splits['train'].images:,} training images"
    return (
        f"Recipe `{model.recipe}`, seed {plan.recipe['seed']}, on {corpus}{images}; epoch {model.report.epoch} of "
        f"{model.report.epochs}, {model.report.seconds:,.0f} s on {starts[-1].device}. {box_statement(plan)}\n\n"
        f"    {starts[-1].command}\n\nSHA-256 of its weights: `{model.weights_sha256}`"
    )
