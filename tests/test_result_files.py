"""Result files tell the hashes that the recipes of the package have now. Changes of code are not seen here."""

import json
import runpy
from pathlib import Path

from deixis.metrics.results import FormerRecipe, Recipe, Result, load_folder
from deixis.training.recipe import load_recipe, package_recipes
from deixis.training.recipe_reference import reference

ROOT = Path(__file__).parents[1]
RESULTS = load_folder(ROOT / "results")
#: The recipes of version 1 with the hash that results tell of them, their names now, and the hash of their settings.
FORMER = json.loads((Path(__file__).parent / "training" / "former_recipes.json").read_text())
#: Recipes whose settings were changed on purpose since: localization on the papers' proposals, with regions pooled in
#: bins (Entities) or described by a detector (two-branch).
CHANGED = {
    "entities-cca/phrases-all",
    "entities-cca/phrases-crops",
    "entities-cca/phrases-n1",
    "entities-cca/phrases-n10",
    *(
        f"two-branch/phrases-{row}"
        for row in (
            "augmented",
            "bi",
            "cca",
            "constraints",
            "linear-single",
            "random",
            "sampling",
            "similarity",
            "similarity-augmented",
            "similarity-augmented-1fc",
            "similarity-augmented-2fc",
            "similarity-linear",
            "similarity-linear-augmented",
            "single",
        )
    ),
}


def with_those_below(recipe: Recipe) -> list[Recipe]:
    return [recipe, *(each for other in recipe.stands_on for each in with_those_below(other))]


def recipes_of(result: Result) -> list[Recipe]:
    return with_those_below(result.recipe) if result.recipe else []


def test_results_are_of_the_recipes_as_they_are() -> None:
    report: dict[str, dict[str, set[str]]] = {}
    for file, result in RESULTS.items():
        if result.recipe:
            report.setdefault(result.recipe.name, {}).setdefault(result.recipe.hash, set()).add(file)
    present = {name: reference(load_recipe(name).recipe).hash for name in report if name in package_recipes()}
    stale = {name: report[name] for name, now in present.items() if set(report[name]) != {now}}
    assert len(present) > 100
    assert not stale


def test_every_recipe_of_version_1_that_is_left_is_one_recipe_now_with_the_same_settings() -> None:
    alone = {name: former for name, former in FORMER.items() if " + " not in name}
    assert len(alone) == 134
    assert len({former["recipe"] for former in alone.values()}) == 134
    same = {name: former for name, former in alone.items() if former["recipe"] not in CHANGED}
    changed = {
        name for name, former in same.items() if reference(load_recipe(former["recipe"]).recipe).hash != former["hash"]
    }
    assert len(alone) - len(same) == len(CHANGED)
    assert not changed


def test_every_renamed_result_is_of_the_recipe_that_its_former_name_leads_to() -> None:
    renamed = [(file, each) for file, result in RESULTS.items() for each in recipes_of(result) if each.formerly]
    assert len({file for file, _ in renamed}) == 364
    for file, each in renamed:
        assert each.formerly is not None
        former = FORMER[each.formerly.name]
        assert each.name == former["recipe"], file
        assert file.startswith(each.name.partition("/")[0]) or each is not RESULTS[file].recipe, file
        assert (each.formerly.hash, each.hash) == (former["formerly"], former["hash"]), file


def test_renaming_a_result_leaves_every_other_byte() -> None:
    rename = runpy.run_path(str(ROOT / "scripts" / "rename_results.py"))["renamed_result"]
    name, former = "paper1/sentences-bi", FORMER["paper1/sentences-bi"]
    before, between, after = (
        '{\n  "ties": 5.30e-6,\n',
        '  "seed": 0,\n',
        f'  "command": "deixis reproduce {name}"\n}}\n',
    )
    rows = '  "rows": [\n    "paper1/table2/embedding-bi"\n  ],\n'
    recipe = f'  "recipe": {{\n    "name": "{name}",\n    "hash": "{former["formerly"]}"\n  }},\n'
    text = rename(before + rows + between + recipe + after)
    assert text.startswith(before + rows.replace("paper1", "two-branch") + between)
    assert text.endswith(after)
    renamed = json.loads(text)
    assert renamed["recipe"] == {
        "name": "two-branch/sentences-bi",
        "hash": former["hash"],
        "formerly": {"name": name, "hash": former["formerly"]},
    }
    assert rename(text) == text
    assert FormerRecipe(name, former["formerly"]) in {
        each.formerly for result in RESULTS.values() for each in recipes_of(result)
    }


def test_lengths_of_word_vectors_are_of_the_training_captions() -> None:
    splits = {
        result.corpus.split
        for result in RESULTS.values()
        if result.protocol.name == "word magnitudes" and result.corpus is not None
    }
    assert splits == {"train"}
