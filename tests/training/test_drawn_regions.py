"""Aligners and captioners rank drawn regions and phrases as an HM-LSTM does (the HM-LSTM paper, Table 4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deixis.corpus import Corpus, Image
from deixis.corpus.boxes import box_array, merge
from deixis.features.store import FeatureStore
from deixis.metrics.region_phrase_ranking import evaluate_region_phrases, region_phrases
from deixis.metrics.score_blocks import MatrixScores
from deixis.model import ImageFeatures
from deixis.training.evaluating import evaluate_run
from deixis.training.recipe import RecipeFile, check_recipe
from deixis.training.run_models import load_run
from deixis.training.running import run_recipe
from tests.stores import drawn_store
from tests.training.test_alignment import VARIANTS
from tests.training.test_captioning import SETTINGS
from tests.training.test_captioning import corpus as corpus
from tests.training.test_captioning import store as store

CPU = torch.device("cpu")


@pytest.mark.parametrize(("settings", "asked"), [(VARIANTS["brnn"], False), (SETTINGS, True)])
def test_a_region_is_a_picture_without_regions(
    settings: dict[str, Any],
    asked: bool,
    corpus: Corpus,
    store: FeatureStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Captioners do so when they are asked to, aligners wherever there is a store of drawn regions."""
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    drawn, run = drawn_store(corpus, tmp_path / "chains"), tmp_path / "run"
    recipe = check_recipe({"name": "other", **settings}, "other")
    run_recipe(RecipeFile("", recipe), corpus, [store], run, CPU)
    results = evaluate_run(run, corpus, [store, drawn], CPU, split="val", drawn_regions=asked)
    (found,) = (result.metrics for result in results if result.protocol.name == "region-phrase ranking")
    matcher, items = load_run(run, CPU), region_phrases(corpus.split("val").images)
    vectors = {}
    for image in corpus.split("val").images:
        vectors |= {(image.id, box): row for box, row in zip(_merged(image), drawn.regions(image.id), strict=True)}
    texts = [tuple(string.split(" ")) for string in items.strings]
    scores = np.concatenate(
        [
            matcher.score([ImageFeatures(row, row[None][:0], np.zeros((0, 4), np.float32), (9.0, 9.0))], texts)
            for row in (vectors[name, (box.x1, box.y1, box.x2, box.y2)] for name, box in items.regions)
        ]
    )
    expected = evaluate_region_phrases(items, MatrixScores(scores)).as_dict()
    strings: Any = found["strings"]
    for way in ("region_to_phrase", "phrase_to_region"):
        assert strings[way] == pytest.approx(expected["strings"][way], rel=0.02)


def _merged(image: Image) -> list[tuple[float, ...]]:
    return [tuple(merge(box_array(image.chain_boxes(chain.id))).tolist()) for chain in image.chains if chain.boxes]
