"""A recipe from beginning to end: its features, its task, its run folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from deixis.corpus import Corpus
from deixis.features.kept import features_for
from deixis.features.recipe import FeatureRecipe
from deixis.features.store import FeatureStore
from deixis.learning.fitting import Fits, fit
from deixis.learning.recipe import FitRecipe, Recipe, RecipeFile, kind_of
from deixis.learning.run_records import TrainingReport, make_run_plan
from deixis.learning.runs import RunFolder, read_model
from deixis.learning.trainer import Progress, train


def run_recipe(
    file: RecipeFile,
    corpus: Corpus,
    stores: Sequence[FeatureStore],
    out: str | Path,
    device: torch.device,
    *,
    progress: Callable[[Progress], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> TrainingReport:
    """Train a recipe into a run folder; one that was begun is continued, a finished one left as it is."""
    recipe = file.recipe
    with RunFolder(out, make_run_plan(recipe, corpus, stores), file.text) as run:
        if run.finished:
            return read_model(out).report
        task = kind_of(recipe.kind).build_task(recipe, corpus, stores, device)
        if isinstance(task, Fits):
            return fit(task, run, device=device, say=say)
        assert isinstance(recipe, Recipe)
        return train(task, recipe.schedule, run, seed=recipe.seed, device=device, progress=progress)


def stores_for(
    recipe: FitRecipe,
    corpus: Corpus,
    *,
    run: Path | None = None,
    device: str = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[FeatureStore]:
    """The features that a recipe asks for, or its finished `run`, from the cache or extracted into it."""
    wanted = recipe_features(recipe, run)
    return [features_for(corpus, features, device=device, progress=progress) for features in wanted]


def recipe_features(recipe: FitRecipe, run: Path | None = None) -> Sequence[FeatureRecipe]:
    """The features that a recipe learns from, or that its finished `run` is used with."""
    kind = kind_of(recipe.kind)
    made = getattr(kind, "run_features", None)
    found: Sequence[FeatureRecipe] = made(run) if made and run else kind.feature_recipes(recipe)
    return found
