"""Recipes: TOML files with all settings of a training. Errors name the field.

    kind = "sentences"              # what is trained: one of `deixis.training.kinds.KINDS`
    about = "One line for people."
    corpus = "flickr8k"             # a path, or a name for which `--corpus` gives the path
    features = "regions"            # a built-in feature recipe, or a table of one
    seed = 0
    rows = ["two-branch/table2/embedding-bi"]    # what it reproduces among the papers' tables
    readings = []                   # readings of the papers that it follows
    [schedule]                      # see `deixis.training.schedule`
    …                               # and the sections of its kind: [text], [model], [loss], [sampler]

Where the files are, and how a recipe extends another: `deixis.training.recipe_files`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from deixis.errors import DeixisError, InputError
from deixis.features.feature_recipe import BUILT_IN, FeatureRecipe, RegionRecipe
from deixis.training.kinds import KINDS, kind_of
from deixis.training.recipe_files import package_files, read_settings
from deixis.training.schedule import Schedule
from deixis.vision import TOWER


class FitRecipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of every recipe. A kind adds its own sections, each a struct next to the code it configures."""

    name: Annotated[str, Meta(min_length=1)]
    kind: str
    about: str = ""
    corpus: Annotated[str, Meta(min_length=1)]
    features: str | FeatureRecipe
    seed: Annotated[int, Meta(ge=0)] = 0
    rows: tuple[str, ...] = ()
    readings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.features, str) and self.features not in BUILT_IN:
            raise ValueError(f"features: unknown feature recipe {self.features!r}; built in: {', '.join(BUILT_IN)}")
        for row in self.rows:
            if row not in _known_rows():
                raise ValueError(f"rows: the papers' tables have no row {row!r}; `deixis results papers` lists them")

    @property
    def learns_from_boxes(self) -> bool:
        """Whether ground-truth boxes are used in training; model cards say so."""
        return False

    @property
    def builds_on(self) -> tuple[str, ...]:
        """The recipes or runs that this one needs: here, a trained backbone that its features name."""
        backbone = "" if self.features is None else self.feature_recipe.backbone
        return (backbone.removeprefix(TOWER),) if backbone.startswith(TOWER) else ()

    @property
    def feature_recipe(self) -> FeatureRecipe:
        return BUILT_IN[self.features] if isinstance(self.features, str) else self.features

    @property
    def region_features(self) -> FeatureRecipe:
        """The feature recipe of a kind that needs regions."""
        regions_of(self.feature_recipe)
        return self.feature_recipe


def regions_of(features: FeatureRecipe) -> RegionRecipe:
    if features.regions is None:
        raise DeixisError("this kind of recipe needs regions: add a [features.regions] section")
    return features.regions


class Recipe(FitRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recipe of a kind that is trained by gradient descent."""

    schedule: Schedule


class RecipeFile(NamedTuple):
    """A recipe as TOML, including what it inherits, and as a typed record with every setting."""

    text: str
    recipe: FitRecipe


def load_recipe(name: str | Path, overrides: Sequence[str] = ()) -> RecipeFile:
    """Read a recipe by its name in the package or by its path, and check it.

    Args:
        name: `two-branch/sentences-bi`, or a `.toml` file.
        overrides: settings to change, `schedule.epochs=3`; a value that is not TOML is taken as text.

    Raises:
        InputError: naming the file and the field.
    """
    path, text, settings = read_settings(str(name))
    for override in overrides:
        apply_override(settings, override)
    if any(not override.startswith("seed=") for override in overrides):
        # With other settings it no longer reproduces a row of a paper.
        settings.pop("rows", None)
    # An error in an override should not be reported for the file.
    source = f"{name} with {', '.join(overrides)}" if overrides else str(path)
    return RecipeFile(text, check_recipe(settings, source))


def check_recipe(settings: dict[str, Any], source: str) -> FitRecipe:
    """Check settings and convert them to the recipe type of their kind. An `InputError` names the source and field."""
    name = settings.get("kind")
    if not isinstance(name, str) or name not in KINDS:
        known = ", ".join(KINDS) or "none"
        raise InputError(source, f"{name!r} is not a kind of recipe; known: {known}", "kind")
    if huge := next(_huge_numbers(settings, ""), ""):
        raise InputError(source, "is a number of more than 64 bits", huge)
    try:
        return msgspec.convert(settings, kind_of(name).recipe_type)
    except msgspec.ValidationError as fault:
        problem, _, location = str(fault).partition(" - at `$")
        raise InputError(source, problem, location.strip("`.")) from None


def _huge_numbers(value: Any, location: str) -> Iterator[str]:
    """The names of settings with integers of more than 64 bits, which TOML does not allow."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _huge_numbers(part, f"{location}.{name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _huge_numbers(part, location)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        yield location


def apply_override(settings: dict[str, Any], override: str) -> None:
    """Change one setting in place: `schedule.epochs=3`.

    >>> settings = {"schedule": {"epochs": 30}}
    >>> apply_override(settings, "schedule.epochs=3")
    >>> apply_override(settings, "schedule.optimizer=sgd")
    >>> settings
    {'schedule': {'epochs': 3, 'optimizer': 'sgd'}}
    """
    path, equals, value = override.partition("=")
    names = path.strip().split(".")
    if not equals or not all(names):
        raise DeixisError(f"{override!r} is not a setting; write it as schedule.epochs=3")
    table: Any = settings
    for depth, name in enumerate(names[:-1], start=1):
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise DeixisError(f"{override!r}: {'.'.join(names[:depth])} is not a table of settings")
    try:
        table[names[-1]] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        table[names[-1]] = value.strip()


class RecipeSummary(msgspec.Struct, frozen=True):
    """The first fields of a recipe, read without importing its kind."""

    name: str
    kind: str
    corpus: str
    about: str = ""
    rows: tuple[str, ...] = ()


@cache
def package_recipes() -> Mapping[str, RecipeSummary]:
    """The recipes of the package by name, read on first use."""
    heads = {name: msgspec.convert(read_settings(name).settings, RecipeSummary) for name in package_files()}
    return MappingProxyType(heads)


def _known_rows() -> frozenset[str]:
    """Rows as results name them: `two-branch/table2/similarity`, or a whole table where one run gives all its rows."""
    from deixis.metrics.paper_tables import paper_tables

    tables = paper_tables()
    return frozenset(tables) | {f"{name}/{row.id}" for name, table in tables.items() for row in table.rows}
