"""What the program says beside its results is said to a person."""

from __future__ import annotations

import warnings

import pytest

from deixis.cli import _warn


def test_a_warning_is_a_line_and_one_for_programmers_names_its_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warnings, "showwarning", _warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = _warn
        warnings.warn("waiting for another process", stacklevel=1)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    first, *others = capsys.readouterr().err.splitlines()
    assert first == "deixis: waiting for another process"
    assert "test_warnings.py" in others[0]
    assert "DeprecationWarning: old" in others[0]
