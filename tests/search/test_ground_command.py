"""`deixis ground` as a person runs it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from PIL import Image as Pillow
from typer.testing import CliRunner

from deixis.base.grounding_model import GroundingModel
from deixis.cli import app
from deixis.errors import DeixisError
from deixis.model import Grounding
from tests.search.test_grounding import grounding_model


@pytest.fixture(autouse=True)
def small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deixis.loading.load_model", lambda name, device: grounding_model())


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "wide.png", tmp_path / "tall.jpg"]
    for path, size in zip(paths, ((90, 60), (40, 200)), strict=True):
        Pillow.effect_noise(size, 60).convert("RGB").save(path)
    return paths


def test_each_picture_is_a_line_with_boxes_in_its_own_pixels(pictures: list[Path]) -> None:
    done = CliRunner().invoke(app, ["ground", *map(str, pictures), "a man in a red shirt", "--json"])
    wide, tall = map(json.loads, done.stdout.splitlines())
    assert (wide["picture"], wide["width"], wide["height"]) == (str(pictures[0]), 90, 60)
    assert [each["phrase"] for each in wide["phrases"]] == ["a man", "a red shirt"]
    assert [(each["start"], each["end"]) for each in tall["phrases"]] == [(0, 5), (9, 20)]
    assert max(each["box"][2] for each in tall["phrases"]) <= 40
    assert 60 < max(each["box"][3] for each in tall["phrases"]) <= 200


def test_drawings_are_written_once(pictures: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "drawn.png"
    done = CliRunner().invoke(app, ["ground", str(pictures[0]), "a dog", "--out", str(out)])
    assert "a dog" in done.stdout
    with Pillow.open(out) as page:
        assert page.width > 900
    again = CliRunner().invoke(app, ["ground", str(pictures[0]), "a dog", "--out", str(out)])
    assert "--force" in str(again.exception)
    CliRunner().invoke(app, ["ground", *map(str, pictures), "a dog", "--out", str(tmp_path / "both")])
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == ["tall.png", "wide.png"]


def test_names_and_words_may_be_no_text(pictures: list[Path], tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff.png")
    os.rename(pictures[0], odd)
    done = CliRunner().invoke(app, ["ground", odd, "a dog\udcff", "--json"])
    report = json.loads(done.stdout)
    assert report["picture"].endswith("odd\\xff.png")
    assert report["sentence"] == "a dog?"


@pytest.mark.parametrize(("name", "report"), [("broken.png", "not a picture"), ("nowhere.png", "No such")])
def test_a_picture_that_cannot_be_read_is_reported_after_the_others(
    name: str, report: str, pictures: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    done = CliRunner().invoke(
        app, ["ground", str(pictures[0]), str(tmp_path / name), str(pictures[1]), "a dog", "--json"]
    )
    assert [json.loads(line)["picture"] for line in done.stdout.splitlines()] == [*map(str, pictures)]
    assert done.exit_code == 2
    assert name in done.stderr
    assert report in done.stderr


def test_faults_are_reported(pictures: list[Path], tmp_path: Path) -> None:
    for asked, report in (
        ([str(pictures[0]), "..."], "no words"),
        ([*map(str, pictures), "a dog", "--out", str(tmp_path / "both.png")], "several pictures go into a folder"),
    ):
        done = CliRunner().invoke(app, ["ground", *asked])
        assert isinstance(done.exception, DeixisError)
        assert report in str(done.exception)


def test_a_picture_that_shows_none_of_the_phrases_is_exit_code_1(
    pictures: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for chances, code in (((0.1, 0.2), 1), ((0.1, 0.9), 0)):

        def ground(self: object, image: object, sentence: str, chances: tuple[float, ...] = chances) -> list[Grounding]:
            return [Grounding("a dog", 0, 5, (0, 0, 9, 9), 0.8, chance) for chance in chances]

        monkeypatch.setattr(GroundingModel, "ground", ground)
        done = CliRunner().invoke(app, ["ground", str(pictures[0]), "a dog"])
        assert done.exit_code == code
        assert "not found" in done.stdout


def test_a_plural_has_several_boxes_in_the_table_and_in_json(
    pictures: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Grounding("two dogs", 0, 8, (0, 0, 90, 60), 0.8, 0.9, ((0, 0, 40, 60), (50, 0, 90, 60)))
    monkeypatch.setattr(GroundingModel, "ground", lambda self, image, sentence: [found])
    table = CliRunner().invoke(app, ["ground", str(pictures[0]), "two dogs"]).stdout
    assert "0, 0, 40, 60; 50, 0, 90, 60" in table
    report = json.loads(CliRunner().invoke(app, ["ground", str(pictures[0]), "two dogs", "--json"]).stdout)
    assert report["phrases"][0]["boxes"] == [[0, 0, 40, 60], [50, 0, 90, 60]]
    assert report["phrases"][0]["box"] == [0, 0, 90, 60]
    single = Grounding("a dog", 0, 5, (0, 0, 9, 9), 0.8)
    assert single.boxes == (single.box,)
