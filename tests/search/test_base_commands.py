"""`deixis export base`, and `ground` and `describe` with what it wrote, as the package's own or by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image as Pillow
from typer.testing import CliRunner

from deixis.cli import app
from deixis.errors import DeixisError
from deixis.metrics.results import Protocol, make_result, save


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Pillow.effect_noise((90, 60), 80).convert("RGB").save(tmp_path / "picture.png")
    return tmp_path / "picture.png"


@pytest.fixture
def packaged(untrained_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deixis.adapters.bundles.packaged_folder", lambda: untrained_bundle)


def ask(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_a_bundle_comes_with_a_card_of_its_results(base_run: Path, captioner_run: Path, tmp_path: Path) -> None:
    result = make_result(
        Protocol("image-text ranking", "pessimistic"), {"image_to_text": {"r@1": 41.25, "mean_rank": 3}}, duration=1
    )
    save(result, tmp_path / "result.json")
    out = tmp_path / "base"
    runs = ("--pictures", base_run, "--captioner", captioner_run)
    report = json.loads(ask("export", "base", *runs, "--out", out, "--result", tmp_path / "result.json", "--json"))
    assert report["manifest"]["name"] == "deixis-base"
    assert report["manifest"]["weights"] == "mixed"
    card = (out / "README.md").read_text()
    assert "| image-text ranking |  | image_to_text.r@1 | 41.2 |" in card
    assert "mean_rank" not in card
    assert "Training run: pictures, grounding" in card
    assert "Training run: captioner" in card
    assert "Trained with ground-truth boxes." in card
    with pytest.raises(DeixisError, match="--force"):
        ask("export", "base", *runs, "--out", out)


@pytest.mark.usefixtures("packaged")
def test_the_packages_own_model_points_and_describes(picture: Path, tmp_path: Path) -> None:
    found = json.loads(ask("ground", picture, "a man in a red shirt", "--json"))
    assert [each["phrase"] for each in found["phrases"]] == ["a man", "a red shirt"]
    said = json.loads(ask("describe", picture, "--json", "--count", 2, "--out", tmp_path / "said.png"))
    assert (said["width"], said["height"], len(said["captions"])) == (90, 60, 2)
    assert said["captions"][0]["score"] >= said["captions"][1]["score"]
    assert (tmp_path / "said.png").exists()
    with pytest.raises(DeixisError, match="--model"):
        ask("describe", picture, "--regions")


def test_models_are_named(picture: Path, untrained_bundle: Path, bundle: Path) -> None:
    assert json.loads(ask("describe", picture, "--model", f"onnx:{untrained_bundle}", "--json"))["captions"]
    with pytest.raises(DeixisError, match="give some with --bank FILE"):
        ask("describe", picture, "--model", f"onnx:{bundle}")
    with pytest.raises(DeixisError, match="is not a run"):
        ask("describe", picture, "--model", "run:nowhere")
