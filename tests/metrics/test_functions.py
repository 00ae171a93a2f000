"""Metrics on plain arrays: they agree with slow, obvious counts, and faults in the arrays are named."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deixis import metrics
from deixis.corpus import open_corpus
from deixis.corpus.boxes import iou_matrix, merge
from deixis.errors import DeixisError
from deixis.metrics.text_blind import text_blind_recall

SCORES = [[0.9, 0.8, 0.1, 0.3], [0.2, 0.8, 0.7, 0.6]]


def slow_recall(scores: np.ndarray, image_of: np.ndarray, k: int) -> tuple[float, float]:
    """Recall@K in percent from images to captions and back: a wrong answer with the same score ranks first."""

    def rank(row: np.ndarray, right: np.ndarray) -> int:
        order = sorted(range(len(row)), key=lambda item: (-row[item], right[item]))
        return 1 + next(place for place, item in enumerate(order) if right[item])

    images = [rank(row, image_of == image) for image, row in enumerate(scores) if (image_of == image).any()]
    captions = [rank(column, np.arange(len(scores)) == image) for column, image in zip(scores.T, image_of, strict=True)]
    return 100 * float(np.mean(np.array(images) <= k)), 100 * float(np.mean(np.array(captions) <= k))


def test_public_names_are_functions_and_no_module_hides_one() -> None:
    modules = {path.stem for path in Path(str(metrics.__file__)).parent.glob("*.py")}
    for name in metrics.__all__:
        assert callable(getattr(metrics, name)), name
        assert getattr(metrics, name).__doc__
        assert ">>> " in getattr(metrics, name).__doc__, f"{name} has no example"
    assert not modules & set(metrics.__all__)
    assert dir(metrics) == sorted(metrics.__all__)
    for module in modules - {"__init__"}:
        import_module(f"deixis.metrics.{module}")
    assert callable(metrics.average_precision)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = metrics.nonsense


@pytest.mark.parametrize("seed", range(20))
def test_recall_agrees_with_a_slow_count_for_uneven_captions_and_ties(seed: int) -> None:
    random = np.random.default_rng(seed)
    image_of = random.integers(0, 7, 30)
    scores = random.integers(0, 6, (7, 30)) / 8
    found = metrics.recall_at_k(scores, image_of=image_of, recall_at=(1, 3))
    for k in (1, 3):
        assert (found["image_to_text"][f"r@{k}"], found["text_to_image"][f"r@{k}"]) == pytest.approx(
            slow_recall(scores, image_of, k)
        )
    assert set(found["image_to_text"]) == {"r@1", "r@3", "median_rank", "mean_rank"}


def test_embeddings_lists_and_tensors_give_the_figures_of_the_matrix() -> None:
    random = np.random.default_rng(0)
    images, captions = random.normal(size=(12, 5)), random.normal(size=(60, 5))
    unit = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (images, captions)]
    expected = metrics.recall_at_k(unit[0] @ unit[1].T)
    assert metrics.embedding_recall_at_k(images, captions) == expected
    assert metrics.recall_at_k(torch.tensor(unit[0] @ unit[1].T)) == expected
    assert metrics.recall_at_k((unit[0] @ unit[1].T).tolist()) == expected
    dots = metrics.embedding_recall_at_k(images, captions, normalize=False)
    assert dots == metrics.recall_at_k(images @ captions.T) != expected
    assert metrics.recall_at_k(unit[0] @ unit[1].T, folds=3) != expected


def test_a_random_order_is_the_mean_of_many_orders() -> None:
    random = np.random.default_rng(0)
    found = [metrics.recall_at_k(random.permutation(200).reshape(10, 20), 2) for _ in range(400)]
    expected = metrics.random_recall_at_k(10, 2)
    for way in ("image_to_text", "text_to_image"):
        for name in ("r@1", "r@5", "mean_rank"):
            assert np.mean([each[way][name] for each in found]) == pytest.approx(expected[way][name], rel=0.05)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.recall_at_k(SCORES), "2 images with 5 captions each need 10 captions, not 4"),
        (lambda: metrics.recall_at_k(np.array(SCORES).T, 2), "transposed"),
        (lambda: metrics.recall_at_k([[np.nan, 1.0]], 2), "row 0, column 0"),
        (lambda: metrics.recall_at_k([1.0, 2.0], 2), "must be a matrix"),
        (lambda: metrics.recall_at_k(SCORES, image_of=[0, 0, 1, 2]), "caption 3 belongs to image 2"),
        (lambda: metrics.recall_at_k(SCORES, 2, folds=3), "equal folds"),
        (lambda: metrics.embedding_recall_at_k(np.eye(2), np.eye(3), 1), "2 and of 3 dimensions"),
        (lambda: metrics.average_precision([1, 2], [True]), "same length"),
        (lambda: metrics.average_precision([1, np.nan], [True, False]), "item 1 is NaN"),
        (lambda: metrics.average_precision([1, 2], [False, False]), "0 items are relevant"),
        (lambda: metrics.localization_recall([], []), "no phrase"),
        (lambda: metrics.localization_recall([[[0, 0, 1, 1]]], []), "no phrase"),
        (lambda: metrics.localization_recall([[[0, 0, 1, 1]]] * 2, [[[0, 0, 1, 1]]]), "1 phrases .* 2 lists of boxes"),
        (lambda: metrics.localization_recall([[[0, 0, 1]]], [[[0, 0, 1, 1]]]), r"phrase 0: boxes must be"),
        (lambda: metrics.localization_recall([[[0, 0, 1, 1]]], [[]]), "ground truth of phrase 0: there is no box"),
        (
            lambda: metrics.localization_recall([[[0, 0, 1, 1]]], [[[0, 0, 1, 1]]], [[np.nan]]),
            "phrase 0: 1 boxes need as many scores",
        ),
        (lambda: metrics.presence_precision([[1.0]], [[1, 0]]), "same shape"),
        (lambda: metrics.presence_precision([[1.0, 0.0]], [[0, 0]]), "0 items are relevant"),
        (lambda: metrics.region_phrase_recall([[1.0, 0.5]], [[2, 0]]), "string .0 to 1. and a region"),
        (lambda: metrics.region_phrase_recall([[1.0], [0.5]], [[0, 0]]), "region 1 has no mention"),
    ],
)
def test_faults_are_named(call: Any, message: str) -> None:
    with pytest.raises(DeixisError, match=message):
        call()


def test_localization_agrees_with_a_slow_count_over_phrases() -> None:
    random = np.random.default_rng(0)

    def boxes(count: int) -> np.ndarray:
        corner = random.integers(0, 6, (count, 2))
        return np.concatenate([corner, corner + random.integers(2, 8, (count, 2))], 1).astype(float)

    proposals = [boxes(int(random.integers(0, 12))) for _ in range(200)]
    truth = [boxes(int(random.integers(1, 3))) for _ in range(200)]
    scores = [random.integers(0, 4, len(own)) for own in proposals]
    for rule in ("merged", "any"):
        hits, covered = {1: 0, 3: 0}, 0
        for own, wanted, ranking in zip(proposals, truth, scores, strict=True):
            targets = merge(wanted)[None] if rule == "merged" else wanted
            right = [bool((iou_matrix(targets, box[None]) >= 0.5).any()) for box in own]
            order = sorted(range(len(own)), key=lambda box: (-ranking[box], right[box]))
            covered += any(right)
            for k in hits:
                hits[k] += any(right[box] for box in order[:k])
        found = metrics.localization_recall(proposals, truth, scores, recall_at=(1, 3), rule=rule)  # type: ignore[arg-type]
        expected = {"phrases": 200, "r@1": hits[1] / 2, "r@3": hits[3] / 2, "upper_bound": covered / 2}
        assert found == pytest.approx(expected)
        assert metrics.upper_bound(proposals, truth, rule=rule) == pytest.approx(covered / 2)  # type: ignore[arg-type]
        ranked = [own[np.argsort(-ranking, kind="stable")] for own, ranking in zip(proposals, scores, strict=True)]
        first = metrics.localization_recall(ranked, truth, recall_at=(1, 3), rule=rule)  # type: ignore[arg-type]
        assert first["r@1"] >= found["r@1"]


def test_text_blind_baselines_rank_without_the_phrase() -> None:
    random = np.random.default_rng(0)
    scenes = open_corpus("scenes")
    corpus = scenes.with_images(scenes.split("val").images[:30])
    proposals = {image.id: random_boxes(random, 8) for image in corpus}
    found = text_blind_recall(
        corpus.images, lambda image: (image.width, image.height), lambda image: proposals[image.id]
    )
    truth, of_image = [], []
    for image in corpus:
        for caption in image.captions:
            for phrase in caption.phrases:
                gold = image.chain_boxes(phrase.chain) if phrase.visual else ()
                # A phrase with two types counts twice.
                for _ in phrase.types if gold else ():
                    truth.append([[box.x1, box.y1, box.x2, box.y2] for box in gold])
                    of_image.append(image)
    for name, rank in (("largest_proposal", metrics.largest_proposal), ("proposal_order", metrics.proposal_order)):
        ranked = [rank(proposals[image.id]) for image in of_image]
        expected = metrics.localization_recall([boxes for boxes, _ in ranked], truth, [scores for _, scores in ranked])
        assert found[name] == pytest.approx({key: expected[key] for key in ("r@1", "r@5", "r@10")})
    whole = [metrics.whole_image(image.width, image.height)[0] for image in of_image]
    assert found["whole_image"] == pytest.approx({"r@1": metrics.upper_bound(whole, truth)})
    assert 0 < found["largest_proposal"]["r@1"] < found["largest_proposal"]["r@10"] < 100
    assert set(text_blind_recall(corpus.images, lambda image: (image.width, image.height))) == {"whole_image"}


def random_boxes(random: np.random.Generator, count: int) -> np.ndarray:
    corner = random.uniform(0, 150, (count, 2))
    return np.concatenate([corner, corner + random.uniform(20, 150, (count, 2))], 1)
