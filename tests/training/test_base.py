"""One network for both: a finished run gets, opened again, the figures of its validation in both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from deixis.corpus import open_corpus
from deixis.errors import InputError
from deixis.training.evaluating import evaluate_run
from deixis.training.recipe import RecipeFile, check_recipe
from deixis.training.running import run_recipe, stores_for
from deixis.training.runs import read_weights

CPU = torch.device("cpu")
SETTINGS: dict[str, Any] = {
    "name": "both",
    "kind": "base",
    "corpus": "scenes",
    "text": {"kind": "tokens", "minimum_count": 1},
    "model": {
        "backbone": "efficientnet-lite0",
        "side": 96,
        "dim": 16,
        "queries": 2,
        "fine": 8,
        "recurrent": {"cell": "gru", "word": 12, "hidden": 8, "bidirectional": True, "pooling": "max"},
    },
    "grounding": {
        "images": 4,
        "model": {
            "backbone": "efficientnet-lite0",
            "side": 96,
            "regions": 12,
            "map_width": 16,
            "bins": 2,
            "width": 16,
            "hidden": 8,
        },
    },
    "sampler": {"images": 8, "captions": 2},
    "word_vectors": False,
    "schedule": {"epochs": 1, "learning_rate": 1e-3, "figure": "rsum"},
}


def test_a_finished_run_gets_its_figures_of_retrieval_and_grounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    whole = open_corpus("scenes")
    chosen = [image for image in whole if image.split == "train"][:16]
    corpus = whole.with_images(chosen + [image for image in whole if image.split == "val"][:12])
    recipe = check_recipe(SETTINGS, "here")
    report = run_recipe(RecipeFile("", recipe), corpus, [], tmp_path / "run", CPU)
    # What both parts have is kept once.
    names = list(read_weights(tmp_path / "run"))
    assert not [
        name for name in names if name.startswith(("grounding.network.words", "grounding.network.proposer.back"))
    ]
    [store] = stores_for(recipe, corpus, run=tmp_path / "run")
    judged = evaluate_run(tmp_path / "run", corpus, [store], CPU, split="val")
    assert all(result.box_supervision and result.box_supervision.backbone for result in judged)
    results = {result.protocol.name: result.metrics for result in judged}
    assert set(results) == {"phrase localization", "image-text ranking"}
    ranking: Any = results["image-text ranking"]
    for way in ("image_to_text", "text_to_image"):
        assert ranking[way]["r@10"] == pytest.approx(report.figures[f"{way}.r@10"], abs=9)
    overall: Any = results["phrase localization"]
    assert overall["localization"]["overall"]["r@1"] == pytest.approx(report.figures["grounding.r@1"], abs=3)


def test_the_two_parts_must_look_at_the_same_picture() -> None:
    settings = {**SETTINGS, "model": {**SETTINGS["model"], "side": 64}}
    with pytest.raises(InputError, match="same backbone and side"):
        check_recipe(settings, "here")
