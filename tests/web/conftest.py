"""Rendered corpora, written once, and a served project for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from deixis.annotation.workbench import Assistant
from tests.annotation.conftest import postgresql  # noqa: F401
from tests.web.site import Site, make_project, open_site, write_corpora

MakeSite = Callable[..., Site]


@pytest.fixture(scope="session")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_corpora(tmp_path_factory.mktemp("corpora"))


@pytest.fixture
def make_site(tmp_path: Path, corpora: tuple[Path, Path]) -> Iterator[MakeSite]:
    """Make a project of rendered scenes and serve it; with `known`, workers are tested and watched."""
    with ExitStack() as stack:

        def make(assistant: Assistant | None = None, **rules: object) -> Site:
            where = str(tmp_path / "project.db")
            make_project(where, corpora, **rules)  # type: ignore[arg-type]
            return stack.enter_context(open_site(where, assistant))

        yield make
