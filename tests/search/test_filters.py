"""Filters by folder, file name and date, and the dates that the catalogue keeps for them."""

from __future__ import annotations

import json
import os
import sqlite3
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from deixis.cli import main
from deixis.errors import DeixisError
from deixis.search import engine as engine_module
from deixis.search import indexing
from deixis.search.collection import Collection
from deixis.search.engine import SearchEngine
from deixis.search.filters import Filter
from deixis.search.generations import current_generation
from deixis.search.indexing import index_folders
from deixis.vision.reading import read_header
from tests.search.fakes import COLOURS, CellModel, ColourModel, paint

TAKEN = {"red": "2019:07:14 15:20:31", "green": "2021:12:31 23:59:59", "blue": "2022:01:01 00:00:00"}


def photograph(path: Path, colour: tuple[int, int, int], taken: str, orientation: int = 1) -> Path:
    """A JPEG as a camera writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    exif.get_ifd(0x8769)[0x9003] = taken
    Pillow.new("RGB", (60, 40), colour).save(path, "JPEG", exif=exif)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures of three years in two folders, one of them without a date of its own."""
    pictures = tmp_path / "pictures"
    for name, taken in TAKEN.items():
        photograph(pictures / taken[:4] / f"{name.upper()}_1.jpg", COLOURS[name], taken)
    white = paint(pictures / "2019-old" / "white.png", COLOURS["white"])
    noon = datetime(2020, 5, 5, 12).timestamp()
    os.utime(white, (noon, noon))
    index_folders(tmp_path / "index", [pictures], ColourModel(), "colours")
    return tmp_path


def listed(folder: Path, only: Filter) -> list[str]:
    collection = Collection(folder / "index")
    try:
        names = [Path(os.fsdecode(collection.paths(int(each))[0])).stem for each in collection.listed(only)]
    finally:
        collection.close()
    return names


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (Filter(), ["BLUE_1", "GREEN_1", "white", "RED_1"]),
        (Filter(folder="2019"), ["white", "RED_1"]),
        (Filter(folder="2019/"), ["RED_1"]),
        (Filter(folder="PICTURES/2019-O"), ["white"]),
        (Filter(name="red"), ["RED_1"]),
        (Filter(name="*_1.jpg"), ["BLUE_1", "GREEN_1", "RED_1"]),
        (Filter(name="[a-z]*"), []),
        (Filter(since="2020-05-05"), ["BLUE_1", "GREEN_1", "white"]),
        (Filter(until="2019"), ["RED_1"]),
        (Filter(since="2020-05", until="2021-12-31"), ["GREEN_1", "white"]),
        (Filter(since="2022-01", until="2022-01"), ["BLUE_1"]),
        (Filter(folder="2021", until="2020"), []),
    ],
)
def test_pictures_are_listed_by_what_they_must_be_those_taken_last_first(
    folder: Path, only: Filter, expected: list[str]
) -> None:
    assert listed(folder, only) == expected


@pytest.mark.parametrize("date", ["yesterday", "2019-13", "2019-7", "20190714", "2019-07-14 ", "2019-00-01"])
def test_what_is_no_date_is_refused(date: str) -> None:
    for only in (Filter(since=date), Filter(until=date)):
        with pytest.raises(DeixisError, match="is no date"):
            only.check()


@pytest.mark.parametrize("model", [ColourModel(), CellModel()], ids=["rows", "cells"])
@pytest.mark.parametrize("query", ["red", '"red" -blue', "no red"])
@pytest.mark.parametrize("most", [20_000, 2])
def test_a_filter_leaves_pictures_out_and_changes_nothing_else(
    folder: Path, model: ColourModel, query: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores and matches are those of the search without it; past a bound, those pictures that are nearest are kept."""
    monkeypatch.setattr(engine_module, "CANDIDATES_OF_FILTER", most)
    index_folders(folder / "index", [], model, model.name)
    engine = SearchEngine(folder / "index", model)
    everything = engine.search(query).hits
    assert len(everything) == 4
    only = Filter(since="2020")
    found = engine.search(query, only=only).hits
    expected = [hit for hit in everything if b"RED" not in hit.path]
    assert found == expected[: len(found)]
    assert len(found) == min(most, 3)
    assert engine.search(query, only=Filter(name="nothing of this name")).hits == []
    alike = engine.similar(folder / "pictures/2019/RED_1.jpg").hits
    assert engine.similar(folder / "pictures/2019/RED_1.jpg", only=only).hits == alike[: len(found)]


def test_of_a_picture_with_copies_the_files_that_pass_are_named(folder: Path) -> None:
    copy = folder / "pictures" / "copies" / "again.jpg"
    copy.parent.mkdir()
    copy.write_bytes((folder / "pictures/2019/RED_1.jpg").read_bytes())
    index_folders(folder / "index", [], ColourModel(), "colours")
    engine = SearchEngine(folder / "index", ColourModel())
    assert [hit.path for hit in engine.search("red", only=Filter(folder="/copies/")).hits] == [os.fsencode(copy)]


def test_the_command_takes_filters(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    for module in ("loading", "search.engine"):
        monkeypatch.setattr(f"deixis.{module}.load_search_model", lambda name, device="auto": ColourModel())

    def names(*options: str) -> list[str]:
        command = ["deixis", "search", "red", "--index", str(folder / "index"), "--json", *options]
        monkeypatch.setattr("sys.argv", command)
        with pytest.raises(SystemExit) as end:
            main()
        # 1: nothing matches.
        assert end.value.code in (None, 0, 1)
        return [Path(hit["path"]).stem for hit in json.loads(capsysbinary.readouterr().out)["hits"]]

    assert names("--since", "2020", "--until", "2020-05") == ["white"]
    assert names("--name", "*.PNG") == ["white"]
    # A folder that is there is meant as a whole; its name alone may be the beginning of another's.
    assert names("--folder", str(folder / "pictures" / "2019")) == ["RED_1"]
    assert sorted(names("--folder", "2019")) == ["RED_1", "white"]
    for options, said in (
        (["--since", "2099"], b"No match for red: no picture passes the filters.\n"),
        (["--since", "2020", "--until", "2020-05"], b"No match for red. Closest pictures:\n"),
    ):
        monkeypatch.setattr("sys.argv", ["deixis", "search", "red", "--index", str(folder / "index"), *options])
        with pytest.raises(SystemExit, match="1"):
            main()
        assert capsysbinary.readouterr().out.startswith(said)
    monkeypatch.setattr("sys.argv", ["deixis", "search", "red", "--index", str(folder / "index"), "--since", "May"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert b"'May' is no date" in capsysbinary.readouterr().err


@pytest.mark.parametrize(
    "taken", ["", "0000:00:00 00:00:00", "    :  :     :  :  ", "2019:02:30 00:00:00", "2019", "\0", "x" * 7000]
)
def test_a_camera_without_a_clock_leaves_the_time_of_the_file(tmp_path: Path, taken: str) -> None:
    data = photograph(tmp_path / "no-clock.jpg", (1, 2, 3), taken).read_bytes()
    assert read_header(data) == (60, 40, "")


def test_sizes_are_those_of_upright_pictures(tmp_path: Path) -> None:
    data = photograph(tmp_path / "turned.jpg", (1, 2, 3), TAKEN["red"], orientation=6).read_bytes()
    assert read_header(data) == (40, 60, "2019-07-14T15:20:31")


def as_version_1(index: Path) -> None:
    """Make the catalogue one of version 1, which had no details."""
    generation = current_generation(index)
    assert generation is not None
    connection = sqlite3.connect(generation / "catalogue.sqlite")
    with connection:
        connection.execute("DROP TABLE details")
        connection.execute("UPDATE meta SET value = '1' WHERE key = 'version'")
    connection.close()


def test_an_index_of_version_1_is_searched_and_gets_dates_without_encoding(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dated = listed(folder, Filter())
    before = Collection(folder / "index")
    rows = before.embeddings_of(before.ids)
    before.close()
    as_version_1(folder / "index")
    engine = SearchEngine(folder / "index", ColourModel())
    assert engine.search("red").hits[0].path.endswith(b"RED_1.jpg")
    # Of files alone, all but one were made today.
    assert listed(folder, Filter(until="2020")) == ["white"]
    assert engine.collection.details(1) == (0, 0, "", b"")
    engine.collection.close()
    model = ColourModel()
    report = index_folders(folder / "index", [], model, "colours")
    assert model.encoded == 0
    assert (report.added, report.changed, report.removed, report.files) == (0, 0, 0, 4)
    assert listed(folder, Filter()) == dated
    after = Collection(folder / "index")
    assert np.array_equal(after.embeddings_of(after.ids), rows)
    assert all(after.details(int(each)).width for each in after.ids)
    after.close()
    # Once is enough.
    monkeypatch.setattr(indexing, "read_file", lambda path: pytest.fail("nothing has changed"))
    index_folders(folder / "index", [], model, "colours")


def test_details_go_with_their_pictures(folder: Path) -> None:
    (folder / "pictures/2019/RED_1.jpg").unlink()
    index_folders(folder / "index", [], ColourModel(), "colours")
    generation = current_generation(folder / "index")
    assert generation is not None
    connection = sqlite3.connect(generation / "catalogue.sqlite")
    assert connection.execute("SELECT count(*) FROM details").fetchone() == (3,)
    connection.close()


def test_texts_that_no_file_could_match_are_refused() -> None:
    for wrong in ({"name": "*a" * 20_000}, {"folder": "a" * 501}):
        with pytest.raises(DeixisError, match="at most 500"):
            Filter(**wrong).check()
