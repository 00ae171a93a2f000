"""Runs that other recipes build on. Named by their recipe, they are trained once for a corpus and kept in the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from deixis.corpus import Corpus
from deixis.errors import DeixisError
from deixis.features.store import FeatureStore
from deixis.files import cache_folder, in_turn
from deixis.metrics.former_names import current_name
from deixis.training.recipe import RecipeFile, check_recipe, load_recipe
from deixis.training.recipe_files import package_files
from deixis.training.run_records import make_run_plan
from deixis.training.running import run_recipe
from deixis.training.runs import is_finished, read_plan


def recipe_of(name: str) -> RecipeFile:
    """The recipe of this name or path, or that of a finished run in this folder."""
    if is_finished(name):
        return RecipeFile("", check_recipe(dict(read_plan(name).recipe), name))
    if made_by := recipe_of_folder(name):
        command = f"deixis train {made_by} --seed {name.rpartition('-seed')[2]} --out {name}"
        raise DeixisError(f"there is no finished run in {name}; make it with `{command}`, and give it its --corpus")
    return load_recipe(name)


def recipe_of_folder(folder: str) -> str | None:
    """The package's recipe that made a run folder, judging by its name: `…/two-branch/sentences-bi-seed0`."""
    path, _, seed = folder.rpartition("-seed")
    name = current_name("/".join(Path(path).parts[-2:]))
    return name if seed.isdecimal() and name in package_files() else None


def kept_run(name: str, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device) -> Path:
    """The finished run in the folder `name`, or a run of the recipe `name`, trained unless it is in the cache."""
    if is_finished(name):
        return Path(name)
    file = recipe_of(name)
    plan = make_run_plan(file.recipe, corpus, stores)
    folder = cache_folder() / "runs" / hashlib.sha256(msgspec.json.encode(plan.identity)).hexdigest()[:32]
    with in_turn(folder):
        run_recipe(file, corpus, stores, folder, device)
    return folder
