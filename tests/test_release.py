"""A version is the same everywhere, and its changes fit a page."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import deixis

ROOT = Path(deixis.__file__).parent.parent.parent

pytestmark = pytest.mark.skipif(not (ROOT / "CHANGELOG.md").exists(), reason="the changelog is in the checkout")


def test_the_version_is_the_same_everywhere() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    newest, date = re.findall(r"(?m)^## (\S+) \((\d{4}-\d\d-\d\d)\)$", changes)[0]
    cited = re.findall(r"(?m)^version: (\S+)$", citation)[0], re.findall(r'(?m)^date-released: "(\S+)"$', citation)[0]
    built = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert (deixis.__version__, built, *cited) == (newest, newest, newest, date)


def test_the_changes_of_a_version_fit_a_page() -> None:
    sections = re.split(r"(?m)^## ", (ROOT / "CHANGELOG.md").read_text("utf-8"))[1:]
    assert [section.split()[0] for section in sections if len(section.split()) > 1000] == []
