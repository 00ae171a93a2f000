"""A tower trained from pixels: its finished run, opened as features and a matcher, gets its validation's figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from deixis.base.word_cells import Words, best_cells
from deixis.corpus import open_corpus
from deixis.training.contrastive import InfoNCELoss, InfoNCERecipe, ScoreInfoNCE, caption_contrast
from deixis.training.evaluating import evaluate_run
from deixis.training.recipe import RecipeFile, check_recipe
from deixis.training.running import run_recipe, stores_for

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
    metrics: Any = evaluate_run(tmp_path / "run", corpus, [store], CPU, split="val")[0].metrics
    # Weights and vectors are kept in half precision, and a tie or two may fall otherwise.
    for way in ("image_to_text", "text_to_image"):
        assert metrics[way]["r@5"] == pytest.approx(report.figures[f"{way}.r@5"], abs=9)
        assert metrics[way]["r@10"] == pytest.approx(report.figures[f"{way}.r@10"], abs=9)


def test_cells_and_words_and_captions_alone_learn_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    whole = open_corpus("scenes")
    chosen = [image for image in whole if image.split == "train"][:32]
    printed = [msgspec.structs.replace(image, id=f"gone-{image.id}", file="nowhere.png") for image in chosen[16:]]
    corpus = whole.with_images(chosen[:16] + printed + [image for image in whole if image.split == "val"][:12])
    model = {**SETTINGS["model"], "fine": 8}  # type: ignore[dict-item]
    sampler = {**SETTINGS["sampler"], "texts": 4}  # type: ignore[dict-item]
    recipe = check_recipe({**SETTINGS, "model": model, "sampler": sampler}, "here")
    report = run_recipe(RecipeFile("", recipe), corpus, [], tmp_path / "run", CPU)
    seen = corpus.where(lambda image: image.file != "nowhere.png")
    [store] = stores_for(recipe, seen, run=tmp_path / "run")
    assert store.image_vectors().shape == (28, 16 + 2 * 2 * 8)
    metrics: Any = evaluate_run(tmp_path / "run", seen, [store], CPU, split="val")[0].metrics
    for way in ("image_to_text", "text_to_image"):
        assert metrics[way]["r@10"] == pytest.approx(report.figures[f"{way}.r@10"], abs=9)


def test_scores_are_held_to_infonce_of_their_rows() -> None:
    torch.manual_seed(0)
    images, texts = (torch.nn.functional.normalize(torch.randn(count, 6)) for count in (4, 9))
    owner = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 3])
    expected, _ = InfoNCELoss(InfoNCERecipe())(images, texts, caption_contrast(owner, 4))
    torch.testing.assert_close(ScoreInfoNCE()(images @ texts.T, owner), expected)


def test_words_meet_their_best_cells() -> None:
    torch.manual_seed(0)
    cells = torch.nn.functional.normalize(torch.randn(3, 5, 4), dim=-1)
    vectors = torch.nn.functional.normalize(torch.randn(4, 4), dim=-1)
    weights, text = torch.tensor([0.3, 0.7, 1.0, 1.0]), torch.tensor([0, 0, 1, 3])
    found = best_cells(cells, Words(vectors, weights, text, 4))
    for picture in range(3):
        best = [max(float(cell @ vector) for cell in cells[picture]) for vector in vectors]
        wanted = torch.tensor([0.3 * best[0] + 0.7 * best[1], best[2], 0.0, best[3]])
        torch.testing.assert_close(found[picture], wanted)
