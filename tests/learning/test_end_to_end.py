"""A tower trained from pixels: its finished run, opened as features and a matcher, gets its validation's figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from deixis.corpus import open_corpus
from deixis.learning.judging import judge
from deixis.learning.recipe import RecipeFile, check_recipe
from deixis.learning.running import run_recipe, stores_for

CPU = torch.device("cpu")
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
    "schedule": {"epochs": 2, "learning_rate": 1e-3, "figure": "rsum"},
}


def test_the_finished_tower_gets_the_figures_of_its_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    whole = open_corpus("scenes")
    chosen = [image for image in whole if image.split == "train"][:16]
    corpus = whole.with_images(chosen + [image for image in whole if image.split == "val"][:12])
    recipe = check_recipe(SETTINGS, "here")
    report = run_recipe(RecipeFile("", recipe), corpus, [], tmp_path / "run", CPU)
    [store] = stores_for(recipe, corpus, run=tmp_path / "run")
    assert store.image_vectors().shape == (28, 16)
    metrics: Any = judge(tmp_path / "run", corpus, [store], CPU, split="val")[0].metrics
    # Weights and vectors are kept in half precision, and a tie or two may fall otherwise.
    for way in ("image_to_text", "text_to_image"):
        assert metrics[way]["r@5"] == pytest.approx(report.figures[f"{way}.r@5"], abs=9)
        assert metrics[way]["r@10"] == pytest.approx(report.figures[f"{way}.r@10"], abs=9)
