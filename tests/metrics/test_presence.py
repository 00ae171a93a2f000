"""Phrase presence against counting by hand: which pictures count for a phrase, and how they are ranked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from deixis.corpus import Chain, Image, Phrase, make_caption, make_image, open_corpus
from deixis.errors import DeixisError
from deixis.metrics.presence import BestRegion, evaluate_presence, presence_questions
from deixis.model import ImageFeatures, Localized, Tokens
from deixis.text.tokens import tokens_of


@pytest.fixture(scope="module")
def images() -> list[Image]:
    return list(open_corpus("scenes").split("val").images[:25])


def occurs(words: Sequence[str], tokens: Sequence[str]) -> bool:
    return any(tuple(tokens[k : k + len(words)]) == tuple(words) for k in range(len(tokens)))


def slow_average_precision(scores: np.ndarray, right: np.ndarray) -> float:
    """Walk down the ranking, every wrong one of equal score first; the best precision from there on counts."""
    order = sorted(range(len(scores)), key=lambda number: (-scores[number], right[number]))
    hits, precisions = 0, []
    for place, number in enumerate(order, start=1):
        if right[number]:
            hits += 1
            precisions.append(hits / place)
    return sum(max(precisions[k:]) for k in range(len(precisions))) / len(precisions)


def test_labels_are_those_of_the_captions(images: list[Image]) -> None:
    asked = presence_questions(images)
    assert len(set(asked.phrases)) == len(asked.phrases) > 50
    kinds = set()
    for number, image in enumerate(images):
        phrases = {
            tuple(tokens_of(caption)[phrase.start : phrase.end])
            for caption in image.captions
            for phrase in caption.phrases
            if phrase.visual
        }
        assert phrases <= set(asked.phrases)
        for row, words in zip(asked.labels, asked.phrases, strict=True):
            there = any(occurs(words, tokens_of(caption)) for caption in image.captions)
            assert row[number] == (1 if words in phrases else -1 if there else 0)
            kinds.add(int(row[number]))
    assert kinds == {-1, 0, 1}


def test_words_inside_other_words_or_across_captions_do_not_count() -> None:
    cap = make_caption("a cap", phrases=[Phrase(0, 2, "1")])
    images = [
        make_image("cap", captions=[cap], chains=[Chain("1")]),
        make_image("cape", captions=[make_caption("a cape")]),
        make_image("two captions", captions=[make_caption("here is a"), make_caption("cap of mine")]),
        make_image("not a phrase", captions=[make_caption("A cap on it")]),
    ]
    assert presence_questions(images).labels.tolist() == [[1, 0, 0, -1]]


@pytest.mark.parametrize("levels", [3, 1000])
def test_figures_are_those_of_a_walk_down_the_ranking(images: list[Image], levels: int) -> None:
    random = np.random.default_rng(levels)
    asked = presence_questions(images)
    scores = random.integers(0, levels, asked.labels.shape) / levels
    number = {image.id: place for place, image in enumerate(images)}
    found = evaluate_presence(images, lambda image, phrases: scores[:, number[image.id]])
    counted = asked.labels >= 0
    single = [
        slow_average_precision(own[use], labels[use] == 1)
        for own, labels, use in zip(scores, asked.labels, counted, strict=True)
    ]
    assert found.mean == pytest.approx(100 * np.mean(single))
    assert found.pooled == pytest.approx(100 * slow_average_precision(scores[counted], asked.labels[counted] == 1))
    for name, value in found.by_type.items():
        own = [ap for ap, types in zip(single, asked.types, strict=True) if name in types]
        assert value == pytest.approx(100 * np.mean(own))
    assert found.right + found.wrong + found.left_out == asked.labels.size


def test_a_perfect_model_scores_all_and_a_constant_scores_the_share_of_right_pairs(images: list[Image]) -> None:
    asked = presence_questions(images)
    number = {image.id: place for place, image in enumerate(images)}
    perfect = evaluate_presence(images, lambda image, phrases: asked.labels[:, number[image.id]] == 1)
    assert perfect.pooled == perfect.mean == 100
    constant = evaluate_presence(images, lambda image, phrases: np.zeros(len(phrases)))
    assert constant.pooled == pytest.approx(constant.pooled_constant)
    assert constant.mean == pytest.approx(constant.mean_constant)
    assert 0 < constant.pooled_constant < 50


def test_scores_that_only_compare_within_a_phrase_lose_in_the_pool_alone(images: list[Image]) -> None:
    asked = presence_questions(images)
    number = {image.id: place for place, image in enumerate(images)}
    shift = 2.0 * np.arange(len(asked.phrases))
    found = evaluate_presence(images, lambda image, phrases: (asked.labels[:, number[image.id]] == 1) + shift)
    assert found.mean == 100
    assert found.pooled < 50


def test_the_score_of_a_picture_is_that_of_its_best_region() -> None:
    class Fixed:
        def localize(self, image: ImageFeatures, phrases: Sequence[Tokens]) -> Localized:
            return Localized(np.zeros((3, 4)), np.array([[1.0, 5, 2], [0, -1, -2]]))

    features = ImageFeatures(np.zeros(2), np.zeros((3, 2)), np.zeros((3, 4)), (10, 10))
    assert BestRegion(Fixed()).presence(features, [("a",), ("b",)]).tolist() == [5, 0]


def test_what_cannot_be_ranked_is_refused(images: list[Image]) -> None:
    with pytest.raises(DeixisError, match="presence scores without NaN or"):
        evaluate_presence(images, lambda image, phrases: np.full(len(phrases), np.nan))
    with pytest.raises(DeixisError, match="nothing to detect"):
        evaluate_presence([make_image("empty")], lambda image, phrases: np.zeros(len(phrases)))
