"""Each paper's README names files and functions that exist: `loss.py`: `ranking_loss`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import deixis

PAPERS = Path(deixis.__file__).parent / "papers"
FOLDERS = sorted(path.parent for path in PAPERS.glob("*/__init__.py"))
#: `file.py`: `name`, `name`
REFERENCE = re.compile(r"`((?:fast/)?[a-z_]+\.py)`(?:: ((?:`[A-Za-z_]+`(?:, )?)+))?")


def names_in(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_equation_table_names_what_exists(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    table = [line for line in text.splitlines() if line.startswith("| ") and ".py" in line]
    assert len(table) >= 5, "there is a table of equations and functions"
    references = REFERENCE.findall(text)
    assert references
    for file, names in references:
        assert (folder / file).is_file(), f"{folder.name}/{file}"
        missing = set(re.findall(r"[A-Za-z_]+", names)) - names_in(folder / file)
        assert not missing, f"{folder.name}/{file} has no {missing}"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_links_lead_to_files(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    # The docs are in the checkout, not in an installed package.
    assert [link for link in links if "docs/" not in link and not (folder / link).exists()] == []
