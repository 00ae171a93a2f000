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
    if re.search(r"^ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
)


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_hold(
    module: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    outcome = doctest.testmod(import_module(module))
    assert outcome.attempted > 0
    assert outcome.failed == 0, capsys.readouterr().out


def test_no_example_is_skipped() -> None:
    skipped = [path.name for path in PACKAGE.rglob("*.py") if "doctest: +SKIP" in path.read_text(encoding="utf-8")]
    assert skipped == []


@pytest.mark.parametrize("name", sorted({*deixis.__all__} - {"__version__", "metrics"}))
def test_every_public_name_has_an_example(name: str) -> None:
    assert ">>> " in (getattr(deixis, name).__doc__ or "")


@pytest.mark.parametrize("name", sorted(deixis.metrics.__all__))
def test_every_public_metric_has_an_example(name: str) -> None:
    assert ">>> " in (getattr(deixis.metrics, name).__doc__ or "")
