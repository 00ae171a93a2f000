"""The model card of a bundle, from its manifest, the runs behind it and result files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from deixis.adapters.bundles import Manifest
from deixis.metrics.results import Result, flatten
from deixis.training.run_card import LICENCE, box_statement
from deixis.training.runs import read_model, read_plan, read_starts

#: The figures of a result that a card shows; of localization by type those of all phrases.
SHOWN = ("r@1", "r@5", "r@10", "upper_bound", "bleu_4", "rouge_l", "cider_d", "precision", "recall")
TASKS = {
    "pictures": "puts pictures and sentences into one space: search",
    "grounding": "points at the phrases of a sentence",
    "captioner": "describes a picture with sentences",
}


def bundle_card(manifest: Manifest, runs: Mapping[str, Path], results: Sequence[Result]) -> str:
    """Markdown for the README.md of a bundle.

    Args:
        runs: what was exported, by what it does (`TASKS`); one run may do several things.
        results: what it was found to do.
    """
    size = sum(record.bytes for record in manifest.files.values())
    does = "\n".join(f"- {TASKS[task]}" for task in runs)
    sections = [
        f"# {manifest.name}",
        f"A Deixis bundle of {size / 1e6:.1f} MB (weights as {manifest.weights}) that needs nothing but this folder. "
        f"It\n\n{does}",
        "## How well it does\n\n" + _found(results),
        *(f"## The run behind it: {', '.join(tasks)}\n\n{_run(run)}" for run, tasks in _by_run(runs).items()),
        "## What it cannot do\n\n"
        "It knows the words and things of its training captions, which are English sentences about everyday photos, "
        "mostly of people and dogs outdoors. It reads no text in pictures, names no persons, counts badly, and "
        "mistakes who does what to whom. Scores of boxes tell where a thing would be, not whether it is there. What "
        "its captions say of people repeats how annotators described strangers, with their errors.",
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
    found: dict[Path, list[str]] = {}
    for task, run in runs.items():
        found.setdefault(run, []).append(task)
    return found


def _run(run: Path) -> str:
    model, plan, starts = read_model(run), read_plan(run), read_starts(run)
    corpus = "its own data" if plan.corpus is None else plan.corpus.name
    images = "" if plan.corpus is None else f", {plan.corpus.splits['train'].images:,} training images"
    return (
        f"Recipe `{model.recipe}`, seed {plan.recipe['seed']}, on {corpus}{images}; epoch {model.report.epoch} of "
        f"{model.report.epochs}, {model.report.seconds:,.0f} s on {starts[-1].device}. {box_statement(plan)}\n\n"
        f"    {starts[-1].command}\n\nSHA-256 of its weights: `{model.weights_sha256}`"
    )
