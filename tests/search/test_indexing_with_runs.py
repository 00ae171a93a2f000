"""Every trained run that embeds pictures and texts indexes a photo folder, as a person types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from deixis import load_model
from deixis.cli import app
from deixis.corpus import Corpus
from deixis.errors import CannotError, DeixisError
from deixis.search.engine import SearchEngine
from deixis.training.recipe import RecipeFile, check_recipe
from deixis.training.running import run_recipe, stores_for

WHOLE = {"backbone": "efficientnet-lite0", "crops": "squash"}
REGIONS = {"backbone": "efficientnet-lite0", "crops": "whole", "side": 64, "regions": {"boxes": "grid", "count": 9}}
RUNS: dict[str, dict[str, Any]] = {
    "two-branch": {
        "kind": "sentences",
        "features": WHOLE,
        "text": {"kind": "tfidf"},
        "model": {"kind": "embedding", "image": [16, 8], "text": [16, 8]},
        "loss": {"kind": "ranking", "weights": [1.0, 1.5, 0.0, 0.0], "hardest": 10},
        "sampler": {"batch": 16},
        "schedule": {"epochs": 1, "learning_rate": 1e-2, "figure": "rsum"},
    },
    "cca": {
        "kind": "cca",
        "features": REGIONS,
        "pairs": "sentences",
        "text": {"kind": "tfidf"},
        "ridges": [1.0],
        "powers": [1.0],
    },
    "captioner": {
        "kind": "captioner",
        "features": WHOLE,
        "model": {"word": 8, "hidden": 8, "cell": "lstm"},
        "schedule": {"epochs": 1, "learning_rate": 1e-3},
    },
}


@pytest.fixture(scope="module")
def runs(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEIXIS_CACHE", str(folder / "cache"))
        for name, settings in RUNS.items():
            recipe = check_recipe({"name": name, "corpus": "scenes", **settings}, name)
            run_recipe(RecipeFile("", recipe), corpus, stores_for(recipe, corpus), folder / name, torch.device("cpu"))
    return folder


@pytest.fixture(scope="module")
def photos(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    assert corpus.pictures is not None
    for image in list(corpus)[:4]:
        (folder / f"{image.id}.png").write_bytes(corpus.pictures.read(image))
    return folder


def ask(*arguments: object) -> Any:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["two-branch", "cca"])
def test_a_run_that_embeds_indexes_a_folder(
    name: str, runs: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs)
    report = ask("index", photos, "--index", tmp_path / "index", "--model", name, "--json")
    assert report["pictures"] == 4
    assert report["model"].startswith(f"{name} (")
    # It is found again from any folder, by the name that the index kept.
    monkeypatch.chdir(tmp_path)
    answer = ask("search", "a man", "--index", tmp_path / "index", "--json")
    model = load_model(runs / name)
    paths = [hit["path"] for hit in answer["hits"]]
    scores = model.score(paths, ["a man"])[:, 0]
    assert len(paths) == 4
    # Embeddings are kept as float16.
    assert (np.diff(scores) < 2e-3).all()
    engine = SearchEngine(tmp_path / "index")
    assert np.allclose(model.embed_images(paths[:1])[0], engine.embed_picture(paths[0].encode()), atol=1e-5)
    assert engine.similar(paths[0], 1).hits[0].path != paths[0].encode()
    assert model.unknown_words("a man zorblax") == ["zorblax"]


def test_a_run_that_does_not_embed_says_so(runs: Path, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(
        CannotError, match="cannot index photos: it does not embed pictures and texts; it can: describe"
    ):
        ask("index", photos, "--index", tmp_path / "index", "--model", runs / "captioner", "--json")
    with pytest.raises(DeixisError, match="unknown model 'nowhere'; known: deixis-base, "):
        ask("index", photos, "--index", tmp_path / "index", "--model", "nowhere", "--json")
