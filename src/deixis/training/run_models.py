"""The recipe and the model of a finished run."""

from __future__ import annotations

from pathlib import Path

import torch

from deixis.model import Model
from deixis.training.feature_model import FeatureModel, RunInfo
from deixis.training.kinds import kind_of
from deixis.training.loading_limits import loading
from deixis.training.recipe import FitRecipe, check_recipe
from deixis.training.runs import read_model, read_plan


def read_recipe(run: str | Path) -> FitRecipe:
    """The recipe of a run folder, with every setting."""
    return check_recipe(dict(read_plan(run).recipe), str(run))


def load_run(run: str | Path, device: torch.device) -> Model:
    """The model of a finished run, which computes the features of pictures as its training did."""
    folder, record, recipe = Path(run), read_model(run), read_recipe(run)
    kind = kind_of(recipe.kind)
    with loading(folder):
        model = kind.load_model(folder, recipe, device)
    model.name = str(run)
    if isinstance(model, FeatureModel):
        model.loaded_from(
            RunInfo(
                recipe.name,
                record.weights_sha256,
                kind.features(recipe, folder),
                kind.by_regions(recipe),
                kind.regions_kept(recipe),
            )
        )
    return model
