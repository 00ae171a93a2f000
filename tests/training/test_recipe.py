"""Recipes: every one of the package is sound, faults are named with their field, settings can be changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deixis.errors import DeixisError, InputError
from deixis.training.kinds import KINDS
from deixis.training.recipe import Recipe, apply_override, load_recipe, package_recipes
from tests.training.toy import ToyRecipe

TOML = """
name = "toy"
kind = "toy"
corpus = "scenes"
features = "image"

[schedule]
epochs = 3
learning_rate = 0.05
figure = "score"
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(KINDS, "toy", "tests.training.toy:ToyKind")
    path = tmp_path / "toy.toml"
    path.write_text(TOML, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", package_recipes())
def test_every_recipe_of_the_package_is_sound_and_named_as_its_file(name: str) -> None:
    assert load_recipe(name).recipe.name == name
    assert package_recipes()[name].about


def test_a_recipe_has_every_setting_and_its_text_as_given(toy: Path) -> None:
    text, recipe = load_recipe(toy)
    assert text == TOML
    assert isinstance(recipe, ToyRecipe)
    assert (recipe.schedule.optimizer, recipe.width, recipe.seed) == ("adam", 8, 0)


def test_settings_can_be_changed_by_name(toy: Path) -> None:
    changes = ["schedule.epochs=5", "schedule.optimizer=sgd", "seed = 7", "schedule.decay.kind=cosine"]
    recipe = load_recipe(toy, [*changes, "schedule.groups=[{prefix='0', rate=0.5}]", 'about="a = b"']).recipe
    assert isinstance(recipe, Recipe)
    assert (recipe.schedule.epochs, recipe.schedule.optimizer, recipe.seed) == (5, "sgd", 7)
    assert recipe.schedule.decay.__class__.__name__ == "Cosine"
    assert (recipe.schedule.groups[0].rate, recipe.about) == (0.5, "a = b")


@pytest.mark.parametrize("override", ["schedule.epochs", "=3", "schedule..epochs=3", "kind.of=toy"])
def test_what_is_no_setting_is_refused(override: str) -> None:
    settings: dict[str, Any] = {"kind": "toy", "schedule": {}}
    with pytest.raises(DeixisError, match=r"no (setting|table)"):
        apply_override(settings, override)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("epochs = 3", "epochs = 0", r"schedule.epochs: Expected `int` >= 1"),
        ("epochs = 3", 'epochs = "three"', r"schedule.epochs: Expected `int`, got `str`"),
        ('figure = "score"', "patience = 2", r"schedule: patience needs a figure"),
        ("epochs = 3", "epochs = 3\nepoch = 4", r"schedule: .*unknown field `epoch`"),
        ('features = "image"', "", r"missing required field `features`"),
        ('features = "image"', 'features = "vgg"', r"unknown feature recipe 'vgg'; built in: image"),
        ('features = "image"', "features = {side = 5}", r"features.side: Expected `int` >= 32"),
        ('kind = "toy"', 'kind = "nonsense"', r"kind: 'nonsense' is no kind of recipe; known: .*sentences"),
        ('name = "toy"', 'name = "toy"\nrows = ["two-branch/table9/none"]', r"have no row 'two-branch/table9/none'"),
        ("[schedule]", "[schedule", r"is not TOML"),
    ],
)
def test_a_fault_is_told_with_the_file_and_the_field(toy: Path, old: str, new: str, problem: str) -> None:
    toy.write_text(TOML.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError, match=rf"toy.toml: .*{problem}"):
        load_recipe(toy)


def test_a_fault_in_a_changed_setting_is_told_with_the_change(toy: Path) -> None:
    with pytest.raises(InputError, match=r"toy.toml with schedule.epoch=4: schedule: .*unknown field `epoch`"):
        load_recipe(toy, ["schedule.epoch=4"])


def test_a_recipe_that_is_not_there_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(DeixisError, match=r"no recipe 'nothing' in the package: did you mean .*`deixis recipes` lists"):
        load_recipe("nothing")
    for typed, meant in (
        ("two-branch/sentence-bi", "two-branch/sentences-bi, "),
        ("sentences-bi", "two-branch/sentences-bi, "),
        ("papr1/sentences-bi", "two-branch/sentences-bi, "),
        ("two-branch/nosuch", r"two-branch/\S+, two-branch/\S+ or two-branch/\S+\? \("),
        ("dvsa", r"dvsa/\S+, dvsa/\S+ or dvsa/\S+\? \("),
    ):
        with pytest.raises(DeixisError, match=f"did you mean {meant}"):
            load_recipe(typed)
    with pytest.raises(InputError, match="No such file"):
        load_recipe(tmp_path / "none.toml")
