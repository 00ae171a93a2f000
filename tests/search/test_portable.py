"""The photo commands on a system that opens no folders, and has no limits of memory and files: as on Windows."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pillow

from deixis.search.doctor import examine
from deixis.search.engine import SearchEngine
from deixis.search.indexing import index_folders
from deixis.vision import decoding_process
from deixis.web.serving import MOST_CONNECTIONS, most_connections
from tests.search.fakes import COLOURS, CellModel, paint


@pytest.fixture
def plain_system(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def open_files_only(path: Any, *arguments: Any, **options: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", path)
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", open_files_only)
    for name in ("sched_getaffinity", "fork"):
        monkeypatch.delattr(os, name, raising=False)
    # An import of it fails.
    monkeypatch.setitem(sys.modules, "resource", None)


def test_an_index_is_made_brought_up_to_date_searched_and_examined(
    plain_system: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, index, pictures = CellModel(), tmp_path / "index", tmp_path / "pictures"
    monkeypatch.setattr("deixis.search.doctor.load_search_model", lambda name: model)
    paint(pictures / "red.png", COLOURS["red"])
    stream = io.BytesIO()
    Pillow.new("RGB", (50, 40), COLOURS["blue"]).save(stream, "AVIF")
    (pictures / "blue.avif").write_bytes(stream.getvalue())
    assert index_folders(index, [pictures], model, "cells").added == 2
    paint(pictures / "green.png", COLOURS["green"])
    assert index_folders(index, [], model, "cells").added == 1
    best = SearchEngine(index, model).search("blue", 1).hits[0]
    assert os.fsdecode(best.path) == str(pictures / "blue.avif")
    assert all(finding.ok for finding in examine(index))
    decoding_process._end_all()


def test_limits_are_those_of_the_program_where_the_system_has_none(plain_system: None) -> None:
    assert most_connections() == MOST_CONNECTIONS
    # The decoding process sets none, and does not fail.
    decoding_process._set_limits(1, 1)
