"""Smoothing and counting against all possibilities, tried one by one."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deixis.corpus.boxes import iou_matrix
from deixis.errors import DeixisError
from deixis.papers.dvsa.reference import best_chain_score, chain_score
from deixis.papers.dvsa.snippets import (
    KEEP,
    OVERLAP,
    Snippet,
    count_regions,
    marginals,
    most_shared,
    number_of,
    phrase_scores,
    smooth,
    snippets_of,
)


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.3, 1.0, 5.0]))
def test_smoothing_finds_the_best_of_all_states_of_every_sentence(seed: int, beta: float) -> None:
    random = np.random.default_rng(seed)
    regions, lengths = int(random.integers(1, 4)), random.integers(1, 6, 3)
    scores = torch.from_numpy(random.normal(size=(3, int(lengths.max()), regions)))
    if regions > 1:
        scores[0, :, -1] = -torch.inf
    found = smooth(scores, torch.from_numpy(lengths), beta)
    for own, states, length in zip(scores, found.tolist(), lengths.tolist(), strict=True):
        best = best_chain_score(own[:length], beta)
        assert chain_score(own, tuple(states[:length]), beta) == pytest.approx(best)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.3, 2.0]))
def test_a_word_s_region_is_as_likely_as_all_chains_that_put_it_there(seed: int, beta: float) -> None:
    random = np.random.default_rng(seed)
    regions, lengths = int(random.integers(1, 4)), random.integers(1, 5, 3)
    scores = torch.from_numpy(random.normal(size=(3, int(lengths.max()), regions)))
    if regions > 1:
        scores[0, :, -1] = -torch.inf
    corners = torch.from_numpy(np.sort(random.uniform(0, 10, (regions, 2, 2)), axis=1).reshape(regions, 4))
    overlaps = torch.from_numpy(iou_matrix(corners.numpy(), corners.numpy()))
    found = marginals(scores, torch.from_numpy(lengths), beta)
    shared = most_shared(2 * scores, torch.from_numpy(lengths), overlaps, 2 * beta, 2.0)
    for own, likely, regions_of_words, length in zip(scores, found, shared, lengths.tolist(), strict=True):
        expected = torch.zeros(length, regions, dtype=torch.float64)
        for chain in product(range(regions), repeat=length):
            for word, region in enumerate(chain):
                expected[word, region] += np.exp(chain_score(own, chain, beta))
        expected /= expected.sum(1, keepdim=True)
        assert likely[:length].numpy() == pytest.approx(expected.numpy())
        worth = expected @ overlaps
        best = best_chain_score(worth[:length], KEEP)
        assert chain_score(worth, tuple(regions_of_words[:length].tolist()), KEEP) == pytest.approx(best)


def test_sentences_of_several_pictures_together_have_the_regions_that_they_have_alone() -> None:
    random = np.random.default_rng(0)
    regions, lengths = [3, 6, 1, 5], torch.tensor([4, 2, 5, 5])
    scores, overlaps = torch.full((4, 5, 6), -torch.inf), torch.zeros(4, 6, 6)
    for number, count in enumerate(regions):
        scores[number, :, :count] = torch.from_numpy(random.normal(size=(5, count)))
        corners = random.uniform(0, 50, (count, 2))
        boxes = np.concatenate([corners, corners + random.uniform(5, 50, (count, 2))], 1)
        overlaps[number, :count, :count] = torch.from_numpy(iou_matrix(boxes, boxes))
    together = most_shared(scores, lengths, overlaps, 0.5, 0.7)
    for number, count in enumerate(regions):
        own = scores[number : number + 1, : lengths[number], :count]
        alone = most_shared(own, lengths[number : number + 1], overlaps[number, :count, :count], 0.5, 0.7)
        assert together[number, : lengths[number]].tolist() == alone[0].tolist()


def test_a_cold_chain_is_the_best_one_and_a_hot_one_the_middle_of_all_regions() -> None:
    scores = torch.randn(5, 7, 4, generator=torch.Generator().manual_seed(0))
    lengths = torch.full((5,), 7)
    boxes = np.array([[0, 0, 10, 10], [1, 0, 10, 10], [2, 0, 10, 10], [20, 20, 30, 30.0]])
    overlaps = torch.from_numpy(iou_matrix(boxes, boxes))
    for beta in (0.0, 0.5):
        assert most_shared(scores, lengths, torch.eye(4), beta, 1e-3).tolist() == smooth(scores, lengths, beta).tolist()
        assert set(most_shared(scores, lengths, overlaps, beta, 1e6).flatten().tolist()) == {1}


def test_neighbours_that_must_agree_do_however_cold_the_chain() -> None:
    scores = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    lengths = torch.tensor([5, 3, 1])
    found = most_shared(scores, lengths, torch.eye(4, dtype=torch.float64), 100.0, 0.1)
    wanted = smooth(scores, lengths, 100.0)
    for row, length in enumerate(lengths.tolist()):
        assert found[row, :length].tolist() == wanted[row, :length].tolist()


def test_without_beta_every_word_has_its_best_region_and_with_much_all_have_one() -> None:
    scores = torch.randn(5, 7, 4, generator=torch.Generator().manual_seed(0))
    lengths = torch.full((5,), 7)
    assert smooth(scores, lengths, 0.0).tolist() == scores.argmax(2).tolist()
    assert smooth(scores, lengths, 1e3).tolist() == scores.sum(1).argmax(1)[:, None].expand(5, 7).tolist()
    with pytest.raises(DeixisError, match="negative"):
        smooth(scores, lengths, -1.0)


def test_snippets_are_the_runs_of_one_region() -> None:
    scores = np.arange(12, dtype=float).reshape(4, 3)
    assert snippets_of([1, 1, 0, 2], scores) == [Snippet(0, 2, 1, 5.0), Snippet(2, 3, 0, 6.0), Snippet(3, 4, 2, 11.0)]
    assert snippets_of([], np.empty((0, 3))) == []


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 4))
def test_counted_regions_are_the_best_set_of_different_ones(seed: int, number: int) -> None:
    random = np.random.default_rng(seed)
    corners = np.sort(random.uniform(0, 10, (7, 2, 2)), axis=1)
    boxes, scores = corners.reshape(7, 4), random.normal(size=7)

    def different(one: int, other: int) -> bool:
        low, high = np.maximum(boxes[one, :2], boxes[other, :2]), np.minimum(boxes[one, 2:], boxes[other, 2:])
        areas = [(boxes[k, 2] - boxes[k, 0]) * (boxes[k, 3] - boxes[k, 1]) for k in (one, other)]
        return bool(np.clip(high - low, 0, None).prod() <= OVERLAP * min(areas))

    sets = [
        (size, float(scores[list(chosen)].sum()))
        for size in range(1, number + 1)
        for chosen in combinations(range(7), size)
        if all(different(*pair) for pair in combinations(chosen, 2))
    ]
    found = count_regions(scores, boxes, number)
    assert all(different(*pair) for pair in combinations(found, 2))
    assert (len(found), scores[found].sum()) == pytest.approx(max(sets))


def test_a_head_is_no_second_person() -> None:
    person, head, other = [0, 0, 10, 30], [3, 0, 7, 5], [20, 0, 30, 30]
    assert count_regions(np.array([3.0, 2.0, 1.0]), np.array([person, head, other], float), 2) == [0, 2]


def test_numbers_are_read_from_phrases() -> None:
    said = {"three people": 3, "a couple of dogs": 2, "the 4 men": 4, "a dog": None, "people": None, "1990 cars": None}
    assert {phrase: number_of(phrase.split()) for phrase in said} == said


def test_the_parts_of_a_thing_speak_for_it_where_all_chains_are_asked() -> None:
    # The whole picture; two people, each with a head and legs.
    people = [[x, 10 + low, x + 20, 10 + high] for x in (10, 60) for low, high in ((0, 60), (0, 35), (25, 60))]
    boxes = np.array([[0, 0, 100, 100], *people], float)
    products = np.array([[0, 1.0, 1.2, 1.15, 1.0, 1.1, 1.0], [9, 0, 0, 0, 0, 0, 0]])
    assert phrase_scores(products, boxes, (0, 1), 0.5, 0.0).tolist() == products[0, 1:].tolist()
    shared = phrase_scores(products, boxes, (0, 1), 0.5, 1.0)
    assert count_regions(products[0, 1:], boxes[1:], 2) == [1, 2]
    assert count_regions(shared, boxes[1:], 2) == [0, 3]
    likely = marginals(torch.from_numpy(products)[None], torch.tensor([2]), 0.5)[0, 0, 1:].numpy()
    assert shared == pytest.approx(likely @ iou_matrix(boxes[1:], boxes[1:]))
