"""The recipe and the model of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from deixis.training.kinds import kind_of
from deixis.training.recipe import FitRecipe, check_recipe
from deixis.training.runs import read_model, read_plan


def read_recipe(run: str | Path) -> FitRecipe:
    """The recipe of a run folder, with every setting."""
    return check_recipe(dict(read_plan(run).recipe), str(run))


def load_matcher(run: str | Path, device: torch.device) -> Any:
    """The matcher of a finished run; what it can do is told by the protocols of `deixis.model`."""
    read_model(run)
    recipe = read_recipe(run)
    return kind_of(recipe.kind).load_model(Path(run), recipe, device)
