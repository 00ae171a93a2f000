"""Every example in a docstring of the package runs and prints what it says."""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest

import deixis

PACKAGE = Path(deixis.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if re.search(r"^ *>>> (?!.*doctest: \+SKIP)", path.read_text(encoding="utf-8"), re.MULTILINE)
)


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_hold(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = doctest.testmod(import_module(module))
    assert outcome.attempted > 0
    assert outcome.failed == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", sorted({*deixis.__all__} - {"__version__", "metrics"}))
def test_every_public_name_has_an_example(name: str) -> None:
    documentation = getattr(deixis, name).__doc__ or ""
    assert ">>> " in documentation or "Example" in documentation


@pytest.mark.parametrize("name", sorted(deixis.metrics.__all__))
def test_every_public_metric_has_an_example(name: str) -> None:
    assert ">>> " in (getattr(deixis.metrics, name).__doc__ or "")
