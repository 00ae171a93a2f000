"""Recipe files: where they are, and how one extends another.

The package's recipes are in `papers/<folder>/recipes` and `base/recipes`. They are named after their folder and file:
`two-branch/sentences-bi` is `papers/two_branch/recipes/sentences-bi.toml`. A file of your own is named by its path, and
goes by its `name`, or by its file's name without one.

A recipe may extend another and set only what differs:

    extends = "two-branch/sentences-bi"     # a recipe of the package, or a .toml file beside this one
    about = "With neighbourhood sampling"
    unset = ["schedule.patience"]           # settings of the other recipe that go back to their defaults
    [sampler]
    neighbourhood = "sampling"

Tables are merged, at every depth. A list or a single value replaces the one of the other recipe, and so does a table
with another `kind`, since a logistic loss has no use for the settings of a ranking loss. `name`, `about` and `rows`
belong to one recipe and are not inherited. Everything else is, `readings` and `seed` included.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

from deixis.errors import DeixisError, InputError
from deixis.files import read_regular

#: The most bytes of a recipe.
RECIPE_LIMIT = 1 << 20
#: What a recipe does not inherit from the one that it extends.
NOT_INHERITED = ("name", "about", "rows")


class RecipeSettings(NamedTuple):
    """A recipe's settings with all that it inherits, not yet checked; `text` is the same as TOML."""

    path: Traversable
    text: str
    settings: dict[str, Any]


def read_settings(name: str) -> RecipeSettings:
    """The settings of a recipe, by its name in the package or by its path.

    Raises:
        InputError: naming the file, and the field where one is wrong.
        DeixisError: the package has no recipe of this name.
    """
    return _read(name, find_recipe(name), ())


def _read(name: str, path: Traversable, children: tuple[str, ...]) -> RecipeSettings:
    """Read a recipe and what it extends. `children` are the files that are being read because they extend it."""
    if str(path) in children:
        raise InputError(str(path), "extends itself, directly or by way of others", "extends")
    try:
        text = read_regular(path, RECIPE_LIMIT).decode() if isinstance(path, Path) else path.read_text("utf-8")
        settings = tomllib.loads(text)
    except OSError as fault:
        raise InputError(str(path), fault.strerror or str(fault)) from None
    # A number of thousands of digits is a ValueError, and so are the faults of TOML and UTF-8.
    except (ValueError, RecursionError) as fault:
        raise InputError(str(path), f"is not TOML: {fault}") from None
    if "name" not in settings:
        settings = {"name": Path(name).stem if isinstance(path, Path) and name.endswith(".toml") else name, **settings}
        text = f"name = {json.dumps(settings['name'])}\n{text}"
    parent, unset = settings.pop("extends", None), settings.pop("unset", [])
    if parent is None:
        if unset:
            raise InputError(str(path), "needs `extends`: there is nothing to unset without it", "unset")
        return RecipeSettings(path, text, settings)
    if not isinstance(parent, str):
        raise InputError(str(path), "is not the name of a recipe", "extends")
    if parent.endswith(".toml"):
        parent = str(Path(str(path)).parent / parent)
    try:
        parent_path = find_recipe(parent)
    except DeixisError as fault:
        raise InputError(str(path), str(fault), "extends") from None
    inherited = _read(parent, parent_path, (*children, str(path))).settings
    for field in NOT_INHERITED:
        inherited.pop(field, None)
    for setting in unset:
        _remove(inherited, str(setting), str(path))
    merged = {field: settings[field] for field in NOT_INHERITED if field in settings} | merge(inherited, settings)
    return RecipeSettings(path, to_toml(merged), merged)


def merge(inherited: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The inherited settings with one's own put over them.

    >>> merge({"loss": {"kind": "ranking", "margin": 0.1}, "seed": 0}, {"loss": {"margin": 0.2}})
    {'loss': {'kind': 'ranking', 'margin': 0.2}, 'seed': 0}
    >>> merge({"loss": {"kind": "ranking", "margin": 0.1}}, {"loss": {"kind": "logistic"}})
    {'loss': {'kind': 'logistic'}}
    """
    merged = dict(inherited)
    for field, value in changes.items():
        before = merged.get(field)
        if isinstance(value, dict) and isinstance(before, dict) and value.get("kind") in (None, before.get("kind")):
            merged[field] = merge(before, value)
        else:
            merged[field] = value
    return merged


def _remove(settings: dict[str, Any], setting: str, source: str) -> None:
    *tables, last = setting.split(".")
    table: Any = settings
    for name in tables:
        table = table.get(name) if isinstance(table, dict) else None
    if not isinstance(table, dict) or last not in table:
        raise InputError(source, f"the recipe that it extends does not set {setting!r}", "unset")
    del table[last]


def to_toml(settings: Mapping[str, Any], table: str = "") -> str:
    """Settings as TOML, single values before tables.

    >>> print(to_toml({"loss": {"weights": [1.0, 4.0]}, "seed": 0}), end="")
    seed = 0
    <BLANKLINE>
    [loss]
    weights = [1.0, 4.0]
    """
    lines = [f"{field} = {toml_value(value)}\n" for field, value in settings.items() if not isinstance(value, dict)]
    for field, value in settings.items():
        if isinstance(value, dict):
            name = f"{table}{field}"
            inside = to_toml(value, f"{name}.")
            # A table that holds only other tables needs no head of its own.
            head = "" if value and all(isinstance(part, dict) for part in value.values()) else f"\n[{name}]\n"
            lines.append(head + inside)
    return "".join(lines)


def toml_value(value: Any) -> str:
    """One value as TOML writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{field} = {toml_value(part)}" for field, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else re.sub(r"e([+-]?)0*(?=\d)", r"e\1", repr(value))


def package_files() -> dict[str, Traversable]:
    """The recipe files of the package by name."""
    from deixis.metrics.paper_tables import PAPERS

    package = files("deixis")
    folders = {"base": package / "base"} | {paper: package / "papers" / paper.replace("-", "_") for paper in PAPERS}
    return dict(sorted(file for name, folder in folders.items() for file in _toml_files(name, folder / "recipes")))


def _toml_files(name: str, folder: Traversable) -> Iterator[tuple[str, Traversable]]:
    for file in folder.iterdir() if folder.is_dir() else ():
        if file.name.endswith(".toml"):
            yield f"{name}/{file.name.removesuffix('.toml')}", file


def find_recipe(name: str) -> Traversable:
    """The file of a recipe: a path that ends in `.toml`, or a name in the package."""
    if name.endswith(".toml"):
        return Path(name)
    from deixis.metrics.former_names import current_name

    known = package_files()
    if name in known:
        return known[name]
    if current_name(name) in known:
        raise DeixisError(f"the recipe {name!r} is now called {current_name(name)!r}")
    *most, last = nearest(name, known)
    raise DeixisError(
        f"no recipe {name!r} in the package: did you mean {', '.join(most)} or {last}? "
        "(`deixis recipes` lists all; a file of your own must end in .toml)"
    )


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Three names that may be meant: those that end the same first, then those of the same folder."""
    folder, _, last = name.rpartition("/")

    def nearness(other: str) -> tuple[bool, bool, float, float]:
        other_folder, _, other_last = other.rpartition("/")
        return (
            other_last == last,
            other_folder in (folder, name),
            _similarity(last, other_last),
            _similarity(name, other),
        )

    return sorted(known, key=nearness, reverse=True)[:3]


def _similarity(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()
