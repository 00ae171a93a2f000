"""Recipes: every one of the package is sound, faults are named with their field, settings can be changed."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from deixis.errors import DeixisError, InputError
from deixis.training.kinds import KINDS
from deixis.training.recipe import Recipe, apply_override, check_recipe, load_recipe, package_recipes
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
    text, recipe = load_recipe(name)
    assert recipe.name == name
    assert package_recipes()[name].about
    settings = tomllib.loads(text)
    assert "extends" not in settings
    assert check_recipe(settings, name) == recipe, "what is printed and kept in a run is the whole recipe"


def test_a_recipe_has_every_setting_and_its_text_as_given(toy: Path) -> None:
    text, recipe = load_recipe(toy)
    assert text == TOML
    assert isinstance(recipe, ToyRecipe)
    assert (recipe.schedule.optimizer, recipe.width, recipe.seed) == ("adam", 8, 0)


def extend(toy: Path, text: str, name: str = "other.toml") -> Path:
    path = toy.parent / name
    path.write_text(f'extends = "toy.toml"\n{text}', encoding="utf-8")
    return path


def test_a_recipe_extends_another_and_sets_only_what_differs(toy: Path) -> None:
    toy.write_text(
        'about = "The first"\nreadings = ["as printed"]\nrows = ["two-branch/table5/weighted-distance"]\n' + TOML,
        encoding="utf-8",
    )
    path = extend(toy, 'width = 16\nunset = ["schedule.figure"]\nschedule.epochs = 5\nschedule.decay.kind = "cosine"\n')
    text, recipe = load_recipe(path)
    assert isinstance(recipe, ToyRecipe)
    assert (recipe.width, recipe.schedule.epochs, recipe.schedule.learning_rate) == (16, 5, 0.05)
    assert recipe.schedule.figure is None, "unset"
    assert (recipe.name, recipe.about, recipe.rows) == ("other", "", ()), "not inherited"
    assert recipe.readings == ("as printed",)
    assert check_recipe(tomllib.loads(text), "text") == recipe
    third = toy.parent / "third.toml"
    third.write_text('extends = "other.toml"\nname = "mine"\n[schedule]\nepochs = 6\n', encoding="utf-8")
    last = load_recipe(third).recipe
    assert isinstance(last, ToyRecipe)
    assert (last.name, last.width, last.schedule.epochs) == ("mine", 16, 6)


def test_a_table_of_another_kind_replaces_the_inherited_one(toy: Path) -> None:
    toy.write_text(TOML + 'decay = { kind = "cosine", warm_up = 1.0 }\n', encoding="utf-8")
    kept = load_recipe(extend(toy, "schedule.decay.warm_up = 0.5\n")).recipe
    other = load_recipe(extend(toy, 'schedule.decay.kind = "constant"\n')).recipe
    assert isinstance(kept, Recipe)
    assert isinstance(other, Recipe)
    assert (kept.schedule.decay.__class__.__name__, kept.schedule.decay.warm_up) == ("Cosine", 0.5)
    assert (other.schedule.decay.__class__.__name__, other.schedule.decay.warm_up) == ("Constant", 0.0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('extends = "other.toml"', r"other.toml: extends: .*extends itself"),
        ('extends = "nothing"', r"other.toml: extends: no recipe 'nothing' in the package: did you mean"),
        ('extends = "paper1/sentences-bi"', r"'paper1/sentences-bi' is now called 'two-branch/sentences-bi'"),
        ('extends = "none.toml"', r"none.toml: No such file"),
        ("extends = 3", r"other.toml: extends: is not the name of a recipe"),
        ('extends = "toy.toml"\nunset = ["schedule.patience"]', r"unset: .*does not set 'schedule.patience'"),
        ('unset = ["schedule.patience"]', r"other.toml: unset: needs `extends`"),
    ],
)
def test_a_fault_in_what_a_recipe_extends_is_one_line(toy: Path, text: str, problem: str) -> None:
    path = toy.parent / "other.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DeixisError, match=problem) as fault:
        load_recipe(path)
    assert "\n" not in str(fault.value)


def test_a_recipe_that_extends_itself_by_way_of_another_is_refused(toy: Path) -> None:
    toy.write_text('extends = "other.toml"\n', encoding="utf-8")
    with pytest.raises(InputError, match="extends itself"):
        load_recipe(extend(toy, ""))


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
    with pytest.raises(DeixisError, match=r"not a (setting|table)"):
        apply_override(settings, override)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("epochs = 3", "epochs = 0", r"schedule.epochs: Expected `int` >= 1"),
        ("epochs = 3", 'epochs = "three"', r"schedule.epochs: Expected `int`, got `str`"),
        ('figure = "score"', "patience = 2", r"schedule: patience needs a validation figure"),
        ("epochs = 3", "epochs = 3\nepoch = 4", r"schedule: .*unknown field `epoch`"),
        ('features = "image"', "", r"missing required field `features`"),
        ('features = "image"', 'features = "vgg"', r"unknown feature recipe 'vgg'; built in: image"),
        ('features = "image"', "features = {side = 5}", r"features.side: Expected `int` >= 32"),
        ('kind = "toy"', 'kind = "nonsense"', r"kind: 'nonsense' is not a kind of recipe; known: .*sentences"),
        ('name = "toy"', 'name = "toy"\nrows = ["two-branch/table9/none"]', r"have no row 'two-branch/table9/none'"),
        ("[schedule]", "[schedule", r"is not TOML"),
    ],
)
def test_a_fault_is_reported_with_the_file_and_the_field(toy: Path, old: str, new: str, problem: str) -> None:
    toy.write_text(TOML.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError, match=rf"toy.toml: .*{problem}"):
        load_recipe(toy)


def test_a_fault_in_a_changed_setting_is_reported_with_the_change(toy: Path) -> None:
    with pytest.raises(InputError, match=r"toy.toml with schedule.epoch=4: schedule: .*unknown field `epoch`"):
        load_recipe(toy, ["schedule.epoch=4"])


def test_a_recipe_that_is_not_there_is_said_so(tmp_path: Path) -> None:
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
