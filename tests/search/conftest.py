"""A run of the kind `pictures`, trained for a moment on a few scenes, and its bundle."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from deixis.corpus import open_corpus
from deixis.learning.recipe import RecipeFile, check_recipe
from deixis.learning.running import run_recipe
from deixis.search.export import export_onnx

SETTINGS = {
    "name": "towers",
    "kind": "pictures",
    "corpus": "scenes",
    "text": {"kind": "tokens", "minimum_count": 1},
    "model": {
        "backbone": "efficientnet-lite0",
        "side": 64,
        "dim": 16,
        "queries": 2,
        "recurrent": {"cell": "gru", "word": 8, "hidden": 8, "bidirectional": True, "pooling": "max"},
    },
    "sampler": {"images": 8, "captions": 2},
    "word_vectors": False,
    "schedule": {"epochs": 1, "learning_rate": 1e-3, "figure": "rsum"},
}


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search") / "run"
    whole = open_corpus("scenes")
    chosen = [image for image in whole if image.split == "train"][:16]
    corpus = whole.with_images(chosen + [image for image in whole if image.split == "val"][:12])
    recipe = check_recipe(SETTINGS, "here")
    run_recipe(RecipeFile("", recipe), corpus, [], folder, torch.device("cpu"))
    return folder


@pytest.fixture(scope="session")
def bundle(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search") / "bundle"
    export_onnx(run, folder, weights="float16")
    return folder
