"""How results refer to a recipe: by its name and by a hash of its settings.

The hash covers settings that differ from their defaults, so that adding a setting does not change the hashes of old
recipes. It does not depend on names: a recipe that names another (its concept network, its aligner, a trained backbone)
is hashed with the other's hash in place of the name. Nor does it depend on `seed`, which results give separately, or on
texts for people.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from deixis.errors import DeixisError
from deixis.metrics.results import Recipe as RecipeReference
from deixis.training.recipe import FitRecipe, load_recipe
from deixis.training.running import recipe_of, recipe_of_folder
from deixis.vision import TOWER

#: Settings that are not hashed.
NOT_HASHED = frozenset({"name", "about", "rows", "seed"})


def reference(recipe: FitRecipe) -> RecipeReference:
    """Name and hash of a recipe, with those of the recipes that it builds on.

    A run that it builds on and that no longer exists is left out; the name of its folder still gives its recipe.
    """
    below, hashes = [], {}
    for name in recipe.builds_on:
        try:
            below.append(reference(recipe_of(name).recipe))
            hashes[name] = below[-1].hash
        except DeixisError:
            if maker := recipe_of_folder(name):
                hashes[name] = reference(load_recipe(maker).recipe).hash
    settings = {name: value for name, value in chosen_settings(recipe).items() if name not in NOT_HASHED}
    digest = hashlib.sha256(msgspec.json.encode(_without_names(settings, hashes), order="sorted")).hexdigest()
    return RecipeReference(recipe.name, digest, tuple(below))


def chosen_settings(settings: msgspec.Struct) -> dict[str, Any]:
    """The settings that differ from their defaults."""
    chosen: dict[str, Any] = {}
    for field in msgspec.structs.fields(settings):
        value = getattr(settings, field.name)
        default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        if value != default:
            chosen[field.name] = (
                chosen_settings(value) if isinstance(value, msgspec.Struct) else msgspec.to_builtins(value)
            )
    tag = settings.__struct_config__.tag
    return chosen if tag is None else {"kind": tag, **chosen}


def _without_names(settings: Any, hashes: Mapping[str, str]) -> Any:
    """Settings with hashes in place of the names of recipes, also in `tower:NAME`."""
    if isinstance(settings, dict):
        return {field: _without_names(value, hashes) for field, value in settings.items()}
    if isinstance(settings, str):
        return hashes.get(settings.removeprefix(TOWER), settings)
    return settings
