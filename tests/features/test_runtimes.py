"""What runs networks on a processor: the faster, always the same on one machine; told by the store, same features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deixis.corpus import Corpus
from deixis.corpus.scenes import scenes_corpus
from deixis.errors import DeixisError
from deixis.features import FeatureStore, extract, runtimes
from deixis.features.feature_recipe import FeatureRecipe, RegionRecipe
from deixis.features.mapper import MapperMaker
from deixis.features.runtimes import chosen_runtime
from deixis.vision import Runtime
from deixis.vision.onnx_maps import can_run
from tests.features.fakes import FakeMapper, make_corpus

needs_onnx = pytest.mark.skipif(not can_run(), reason="needs onnx: pip install 'deixis[export]'")
RECIPE = FeatureRecipe("efficientnet-lite0")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, float]]:
    """What the next measurements will find; those that were made are gone from it."""
    told: list[dict[str, float]] = []
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(runtimes, "measure", lambda network: told.pop(0))
    monkeypatch.setattr(runtimes, "can_run", lambda: True)
    return told


@pytest.mark.parametrize(
    ("torch", "onnx", "chosen"), [(1.0, 0.7, "onnxruntime"), (1.0, 0.95, "torch"), (1, 2, "torch")]
)
def test_the_faster_is_chosen_once_and_for_all(
    measured: list[dict[str, float]], tmp_path: Path, torch: float, onnx: float, chosen: str
) -> None:
    measured.append({"torch": torch, "onnxruntime": onnx})
    for _ in range(3):
        assert chosen_runtime(RECIPE, "fastest", "cpu", tmp_path / "store") == chosen
    assert not measured
    measured.append({"torch": 1.0, "onnxruntime": 0.1})
    assert chosen_runtime(FeatureRecipe("efficientnet-lite1"), "fastest", "cpu", tmp_path / "store") == "onnxruntime"


def test_what_was_kept_and_is_damaged_is_measured_again(measured: list[dict[str, float]], tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "runtimes.json").write_text('{"half')
    measured.append({"torch": 1.0, "onnxruntime": 0.1})
    assert chosen_runtime(RECIPE, "fastest", "cpu", tmp_path / "store") == "onnxruntime"
    assert not measured


@pytest.mark.parametrize("made_by", ["torch", "onnxruntime"])
def test_who_goes_on_with_a_store_takes_what_began_it(
    measured: list[dict[str, float]], tmp_path: Path, made_by: str
) -> None:
    origin = {} if made_by == "torch" else {"runtime": made_by}
    extract(make_corpus(4), FakeMapper(), tmp_path / "store", provenance=origin)
    assert chosen_runtime(RECIPE, "fastest", "cpu", tmp_path / "store") == made_by


def test_nothing_is_measured_where_there_is_no_choice(measured: list[dict[str, float]], tmp_path: Path) -> None:
    out = tmp_path / "store"
    assert chosen_runtime(RECIPE, "fastest", "cuda", out) == "torch"
    assert chosen_runtime(FeatureRecipe("timm:resnet50"), "fastest", "cpu", out) == "torch"
    assert chosen_runtime(RECIPE, "torch", "cpu", out) == "torch"
    assert chosen_runtime(RECIPE, "onnxruntime", "cpu", out) == "onnxruntime"
    for recipe, device in ((RECIPE, "cuda"), (FeatureRecipe("timm:resnet50"), "cpu")):
        with pytest.raises(DeixisError, match="--runtime torch"):
            chosen_runtime(recipe, "onnxruntime", device, out)
    with pytest.raises(DeixisError, match="unknown runtime 'jax'; known: fastest, torch, onnxruntime"):
        chosen_runtime(RECIPE, "jax", "cpu", out)


def test_without_the_package_it_is_pytorch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runtimes, "can_run", lambda: False)
    assert chosen_runtime(RECIPE, "fastest", "cpu", tmp_path) == "torch"
    with pytest.raises(DeixisError, match=r"deixis\[export\]"):
        chosen_runtime(RECIPE, "onnxruntime", "cpu", tmp_path)


@needs_onnx
@pytest.mark.parametrize("recipe", [
    RECIPE,
    FeatureRecipe("efficientnet-lite0", crops="whole", side=128, regions=RegionRecipe(count=8)),
])  # fmt: skip
def test_features_are_the_same_and_the_store_tells_what_made_them(tmp_path: Path, recipe: FeatureRecipe) -> None:
    corpus = pictures()
    stores = {}
    names: tuple[Runtime, ...] = ("torch", "onnxruntime")
    for runtime in names:
        extract(corpus, MapperMaker(recipe, "cpu", runtime).mapper(), tmp_path / runtime)
        stores[runtime] = FeatureStore(tmp_path / runtime)
    ours, theirs = stores["onnxruntime"], stores["torch"]
    assert ours.plan.provenance["runtime"] == "onnxruntime"
    assert "runtime" not in theirs.plan.provenance
    assert ours.fingerprint != theirs.fingerprint
    close(ours.image_vectors()[:], theirs.image_vectors()[:])
    for image in corpus if recipe.regions else ():
        np.testing.assert_allclose(ours.boxes(image.id), theirs.boxes(image.id), atol=0.05)
        close(ours.regions(image.id), theirs.regions(image.id))
    # Readers of a cluster, which make no features, plan the same store.
    assert MapperMaker(recipe, "cpu", "onnxruntime").reader().provenance["runtime"] == "onnxruntime"


@needs_onnx
def test_a_measurement_takes_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "_SIDE", 32)
    assert all(0 < seconds < 10 for seconds in runtimes.measure("efficientnet-lite0").values())


def pictures() -> Corpus:
    return scenes_corpus(3)


def close(ours: Any, theirs: Any) -> None:
    """To half precision."""
    np.testing.assert_allclose(ours, theirs, atol=2e-3 * float(np.abs(theirs).max()))


def test_a_cache_that_cannot_be_kept_or_is_damaged_costs_a_measurement(
    measured: list[dict[str, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("no folder")
    monkeypatch.setenv("DEIXIS_CACHE", str(taken))
    measured.extend([{"torch": 1.0, "onnxruntime": 0.5}] * 2)
    assert [chosen_runtime(RECIPE, "fastest", "cpu", tmp_path / "out") for _ in range(2)] == ["onnxruntime"] * 2
    assert not measured
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "kept"))
    measured.append({"torch": 1.0, "onnxruntime": 0.5})
    assert chosen_runtime(RECIPE, "fastest", "cpu", tmp_path / "out") == "onnxruntime"
    kept = next((tmp_path / "kept").glob("*.json"))
    kept.write_text('{"' + next(iter(json.loads(kept.read_text()))) + '": {}}')
    measured.append({"torch": 1.0, "onnxruntime": 2.0})
    assert chosen_runtime(RECIPE, "fastest", "cpu", tmp_path / "out") == "torch"
