"""The READMEs of the papers name files, functions and methods that exist: `loss.py`: `ranking_loss`."""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

import deixis

PAPERS = Path(deixis.__file__).parent / "papers"
FOLDERS = sorted(path.parent for path in PAPERS.glob("*/__init__.py"))
#: `file.py`: `name` (`method`), `name`; or a link to a file of another folder in place of `file.py`
FILE = r"(?:`((?:fast/)?[a-z_]+\.py)`|\[`[a-z_/]+\.py`\]\(([^)]+\.py)\))"
NAMES = r"(?:: ((?:`[A-Za-z_]+`(?: \((?:`[a-z_]+`(?:, )?)+\))?(?:, )?)+))?"
REFERENCE = re.compile(FILE + NAMES)


def names_in(path: Path) -> set[str]:
    """Functions, classes, methods and fields of a module."""
    return {
        node.target.id if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else node.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        or (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name))
    }


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_equation_table_names_what_exists(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    table = [line for line in text.splitlines() if line.startswith("| ") and ".py" in line]
    assert len(table) >= 10, "there is a table of equations and functions"
    references = REFERENCE.findall(text)
    assert references
    for own, linked, names in references:
        file = (folder / (own or linked)).resolve()
        assert file.is_file(), f"{folder.name}: {own or linked}"
        missing = set(re.findall(r"[A-Za-z_]+", names)) - names_in(file)
        assert not missing, f"{folder.name}: {own or linked} has no {missing}"


#: The numbered equations of each paper (DVSA: of its supplement).
EQUATIONS = {"entities_cca": 2, "two_branch": 8, "hm_lstm": 10, "concepts_order": 4, "dvsa": 1}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_equation_table_has_every_numbered_equation(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert set(range(1, EQUATIONS[folder.name] + 1)) <= numbers_of(text, r"eqs?\.")


def numbers_of(text: str, word: str) -> set[int]:
    """The numbers after a word: `eq. 3`, `eqs. 4 and 5`, `Tables 2 to 4`."""
    named = set[int]()
    for first, joint, last in re.findall(rf"{word} (\d+)(?: (to|and) (\d+))?", text):
        named |= set(range(int(first), int(last) + 1)) if joint == "to" else {int(first), int(last or first)}
    return named


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_table_and_every_recipe_is_listed(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    listed = text.partition("## Tables and recipes")[2].partition("## What")[0]
    tables = re.findall(r"^\[tables\.table(\d+)", (folder / "tables.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(map(int, tables)) <= numbers_of(listed, "Tables?")
    rows = [line for line in listed.splitlines() if line.startswith("| ")]
    patterns = {pattern for line in rows for pattern in re.findall(r"`([a-z0-9.*-]+)`", line)}
    recipes = {path.stem for path in folder.glob("recipes/*.toml")}
    assert {name for name in recipes if not any(fnmatch(name, pattern) for pattern in patterns)} == set()
    assert {pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in recipes)} == set()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_links_lead_to_files(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    # The docs are in the checkout, not in an installed package.
    assert [link for link in links if "docs/" not in link and not (folder / link).exists()] == []
