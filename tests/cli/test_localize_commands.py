"""`deixis localize compare` as a person types it, with runs that are made up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from typer.testing import CliRunner

from deixis.cli import app
from deixis.corpus import open_corpus, write_corpus
from deixis.errors import DeixisError
from deixis.model import ImageFeatures, Localized, Model, Tokens
from tests.stores import make_store, random_boxes


class Ranked(Model):
    """Ranks regions by their place in the store, from the first on or from the last."""

    localizes_features = True

    def __init__(self, sign: int) -> None:
        self.sign = sign

    def localize(self, image: ImageFeatures, phrases: Sequence[Tokens]) -> Localized:
        assert image.boxes is not None
        scores = -self.sign * np.arange(len(image.boxes), dtype=float)
        return Localized(image.boxes, np.tile(scores, (len(phrases), 1)))


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments for two made-up runs over a few scenes."""
    scenes = open_corpus("scenes")
    few = scenes.with_images(scenes.split("test").images[:8])
    write_corpus(few, tmp_path / "corpus", pictures=True)
    make_store(tmp_path / "store", few, random_boxes(9))
    matchers: dict[str, Any] = {"first": Ranked(1), "last": Ranked(-1), "deaf": Model()}
    monkeypatch.setattr("deixis.loading.load_model", lambda run, device: matchers[run.name])
    monkeypatch.setattr(
        "deixis.training.run_models.read_recipe", lambda run: SimpleNamespace(kind="phrases", regions=5)
    )
    return [
        "localize",
        "compare",
        "runs/first",
        "runs/last",
        "--corpus",
        str(tmp_path / "corpus"),
        "--features",
        str(tmp_path / "store"),
    ]


def test_draws_random_captions_and_reports_their_regions(places: list[str], tmp_path: Path) -> None:
    arguments = [*places, "--out", str(tmp_path / "a.png"), "--count", "2", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert len({example["image"] for example in report["examples"]}) == 2
    with Pillow.open(tmp_path / "a.png") as drawing:
        assert drawing.width > 1000
    for example in report["examples"]:
        first, last = example["found"]["first"], example["found"]["last"]
        assert [one["phrase"] for one in first] == [one["phrase"] for one in last]
        assert len(first) >= 3
        # The best of the first five regions from either end, as the recipe ranks five.
        assert {one["score"] for one in first} == {0}
        assert {one["score"] for one in last} <= {float(number) for number in range(5)}
    again = CliRunner().invoke(app, [*arguments, "--force"])
    assert json.loads(again.stdout) == report
    other = CliRunner().invoke(app, [*arguments, "--force", "--seed", "1"])
    assert json.loads(other.stdout) != report


def test_draws_the_caption_that_is_named(places: list[str], tmp_path: Path) -> None:
    image = open_corpus("scenes").split("test").images[2]
    number = next(
        n for n, caption in enumerate(image.captions) if any(map(image.chain_boxes, (p.chain for p in caption.phrases)))
    )
    done = CliRunner().invoke(
        app, [*places, "--image", f"{image.id}:{number}", "--out", str(tmp_path / "a.png"), "--json"]
    )
    assert done.exit_code == 0, done.output
    (example,) = json.loads(done.stdout)["examples"]
    assert example["image"] == image.id
    assert example["caption"] == image.captions[number].text


def test_what_cannot_be_drawn_is_reported(places: list[str], tmp_path: Path) -> None:
    for arguments, problem in (
        ([*places, "--out", str(tmp_path / "a.jpg")], "PNG"),
        ([*places, "--out", str(tmp_path / "a.png"), "--image", "nobody"], "no image 'nobody'"),
        ([*places, "--out", str(tmp_path / "a.png"), "--split", "nowhere"], "no split 'nowhere'"),
        ([*places[:3], "runs/deaf", *places[4:], "--out", str(tmp_path / "a.png")], "cannot localize"),
    ):
        done = CliRunner().invoke(app, arguments)
        assert isinstance(done.exception, DeixisError), done.output
        assert problem in str(done.exception)
    assert not list(tmp_path.glob("*.png"))


def test_runs_of_one_name_are_distinguished(places: list[str], tmp_path: Path) -> None:
    same = [*places[:3], "others/first", *places[4:], "--count", "1", "--out", str(tmp_path / "a.png"), "--json"]
    done = CliRunner().invoke(app, same)
    assert done.exit_code == 0, done.output
    (example,) = json.loads(done.stdout)["examples"]
    assert set(example["found"]) == {str(Path("runs/first")), str(Path("others/first"))}


def test_one_run_is_drawn_alone(places: list[str], tmp_path: Path) -> None:
    alone = [*places[:3], *places[4:], "--count", "2", "--out", str(tmp_path / "a.png"), "--json"]
    done = CliRunner().invoke(app, alone)
    assert done.exit_code == 0, done.output
    assert all(list(example["found"]) == ["first"] for example in json.loads(done.stdout)["examples"])
    both = CliRunner().invoke(app, [*places, "--count", "2", "--out", str(tmp_path / "b.png")])
    assert both.exit_code == 0, both.output
    with Pillow.open(tmp_path / "a.png") as one, Pillow.open(tmp_path / "b.png") as two:
        assert one.width == two.width
        assert one.height < two.height
