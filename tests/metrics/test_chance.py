"""Random's rows against rankings that are in fact random."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deixis.corpus import open_corpus
from deixis.metrics.random_baseline import random_region_phrases, random_retrieval
from deixis.metrics.ranking import evaluate_ranking
from deixis.metrics.region_phrase_ranking import evaluate_region_phrases, region_phrases
from deixis.metrics.score_blocks import MatrixScores


def test_retrieval_is_the_mean_of_random_rankings() -> None:
    corpus = open_corpus("scenes")
    images = corpus.split("test").images
    owners = np.repeat(np.arange(len(images)), [len(image.captions) for image in images])
    random = np.random.default_rng(0)
    tables = [random.random((len(images), len(owners)), np.float32) for _ in range(12)]
    drawn: list[Any] = [evaluate_ranking(MatrixScores(table), owners, folds=2).as_dict() for table in tables]
    found: Any = random_retrieval(corpus, "test", folds=2).metrics
    for way in ("image_to_text", "text_to_image"):
        for name, spread in (("r@1", 0.5), ("r@10", 1.5), ("median_rank", 4), ("mean_rank", 3)):
            assert found[way][name] == pytest.approx(np.mean([each[way][name] for each in drawn]), abs=spread)
    assert found["mean_recall"] == pytest.approx(np.mean([each["mean_recall"] for each in drawn]), abs=0.5)


def test_chance_of_region_phrases_is_that_of_every_model() -> None:
    corpus = open_corpus("scenes")
    items = region_phrases(corpus.split("test").images)
    scores = MatrixScores(np.zeros((len(items.regions), len(items.strings)), np.float32))
    beside: Any = evaluate_region_phrases(items, scores).as_dict()
    assert random_region_phrases(corpus, "test").metrics == {"strings": beside["strings"]["random"]}
