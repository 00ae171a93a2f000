"""`deixis.train`: train a recipe from Python."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from deixis.corpus import Corpus, open_corpus
from deixis.training.kinds import kind_of
from deixis.training.recipe import load_recipe
from deixis.training.recipe_files import toml_value
from deixis.training.run_records import TrainingReport, epoch_line, make_run_plan
from deixis.training.running import left_out, run_recipe, stores_for
from deixis.training.runs import refuse_another
from deixis.training.trainer import Progress
from deixis.vision.learned_proposals import checked_device


def train(
    recipe: str | Path,
    corpus: Corpus | str | Path,
    out: str | Path,
    *,
    settings: Mapping[str, Any] | None = None,
    seed: int | None = None,
    device: str = "auto",
    progress: bool = False,
) -> TrainingReport:
    """Train a recipe into a run folder, as `deixis train` does.

    The features that the recipe needs are extracted once for a corpus and kept in the cache. A run that was
    interrupted is continued when you call this again; a finished one is left as it is.

    Args:
        recipe: a name that `deixis recipes` lists, or a `.toml` file.
        corpus: a corpus, or where one is, as `open_corpus` takes it.
        out: the run folder; `deixis.load_model` opens it afterwards.
        settings: settings of the recipe to change, by name: `{"schedule.epochs": 3}`.
        seed: in place of the recipe's.
        device: `cpu`, `cuda`, or `auto`, which is `cuda` where there is a GPU.
        progress: print a line for every epoch to standard error.

    Returns:
        The epoch that was kept and its figures on the validation split.

    Raises:
        DeixisError: in one line, what is wrong with the recipe, the corpus or the folder.

    >>> report = train("two-branch/demo-sentences", "scenes:40", out="runs/demo", settings={"schedule.epochs": 2})
    >>> report.epochs
    2
    """
    changes = [f"{name}={toml_value(value)}" for name, value in (settings or {}).items()]
    file = load_recipe(recipe, [*changes, *([] if seed is None else [f"seed={seed}"])])
    name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    target = checked_device(name)
    opened = corpus if isinstance(corpus, Corpus) else open_corpus(corpus)
    kind_of(file.recipe.kind).check_corpus(file.recipe, opened)
    refuse_another(out, make_run_plan(file.recipe, opened, ()))
    stores = stores_for(file.recipe, opened, device=name)

    def say(text: str) -> None:
        if progress and text:
            print(text, file=sys.stderr)

    def show_epoch(at: Progress) -> None:
        if at.epoch_record is not None:
            say(epoch_line(at.epoch_record, at.epochs))

    say(left_out(stores))
    return run_recipe(file, opened, stores, out, target, progress=show_epoch, say=say)
