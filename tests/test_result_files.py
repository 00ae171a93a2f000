"""Result files tell the hashes that the recipes of the package have now. Changes of code are not seen here."""

import json
from pathlib import Path

from deixis.training.judging import reference
from deixis.training.recipe import load_recipe, package_recipes

RESULTS = Path(__file__).parents[1] / "results"
#: Recipes that were mended after their results were made, which docs/training.md tells.
OLDER = {"beyond/pictures-both"}


def hashes_of_results() -> dict[str, dict[str, set[str]]]:
    """For each recipe, the hashes that results tell, and the files of each."""
    found: dict[str, dict[str, set[str]]] = {}
    for path in RESULTS.rglob("*.json"):
        told = json.loads(path.read_bytes())
        if recipe := told.get("recipe"):
            found.setdefault(recipe["name"], {}).setdefault(recipe["hash"], set()).add(path.name)
    return found


def test_results_are_of_the_recipes_as_they_are() -> None:
    results = hashes_of_results()
    present = {name: reference(load_recipe(name).recipe).hash for name in results if name in package_recipes()}
    stale = {name: results[name] for name, now in present.items() if set(results[name]) != {now}}
    assert len(present) > 100
    assert set(stale) == OLDER, stale
