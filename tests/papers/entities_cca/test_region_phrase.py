"""Region-phrase distances are those of the equations, pair by pair, whatever the block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deixis.papers.entities_cca.reference import region_phrase_distance
from deixis.papers.entities_cca.weighted_distance import weighted_distances
from deixis.papers.two_branch.combined_distance import combined_distances
from deixis.training.region_distances import region_phrase_distances


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1000),
    region_counts=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    mention_counts=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    gamma=st.sampled_from([1.0, 1.5]),
    squared=st.booleans(),
    memory=st.sampled_from([1, 60, 2**20]),
)
def test_they_are_the_equations(
    seed: int, region_counts: list[int], mention_counts: list[int], gamma: float, squared: bool, memory: int
) -> None:
    generator = np.random.default_rng(seed)
    regions = generator.normal(size=(sum(region_counts), 3)).astype(np.float32)
    phrases = generator.normal(size=(6, 3)).astype(np.float32)
    mentions = generator.integers(0, 6, size=sum(mention_counts))
    region_offsets, mention_offsets = (np.cumsum([0, *counts]) for counts in (region_counts, mention_counts))
    ours = region_phrase_distances(
        regions, region_offsets, phrases, mentions, mention_offsets, gamma=gamma, squared=squared, memory=memory
    )
    expected = region_phrase_distance(
        np.split(regions, region_offsets[1:-1]), np.split(phrases[mentions], mention_offsets[1:-1]), gamma, squared
    )
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_a_phrase_that_is_a_region_is_at_no_distance() -> None:
    rows = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    ours = region_phrase_distances(rows, [0, 2, 4], rows, [0, 1, 2, 3], [0, 2, 4])
    np.testing.assert_allclose(np.diag(ours), 0, atol=1e-5)
    assert (ours[[0, 1], [1, 0]] > 0.5).all()


def test_the_weights_lie_where_the_papers_put_them() -> None:
    whole, parts = np.array([[1.0, 2.0, 3.0]]), np.array([[10.0, 20.0, np.nan]])
    np.testing.assert_allclose(weighted_distances(whole, parts), [[0.7 * 1 + 0.3 * 10, 0.7 * 2 + 0.3 * 20, 3]])
    np.testing.assert_allclose(combined_distances(whole, parts), [[0.8 * 1 + 0.2 * 10, 0.8 * 2 + 0.2 * 20, 3]])


@pytest.mark.parametrize(
    ("region_offsets", "mentions", "mention_offsets", "problem"),
    [
        ([0, 2, 2], [0], [0, 1], "image 1 has no regions"),
        ([0, 1], [0], [0, 1], "offsets must"),
        ([0, 2], [0], [0, 2], "offsets must"),
        ([0, 2], [1], [0, 1], "mentions must be rows of phrases, within 0 and 0"),
    ],
)
def test_what_does_not_fit_is_refused(region_offsets: Any, mentions: Any, mention_offsets: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        region_phrase_distances(np.ones((2, 3)), region_offsets, np.ones((1, 3)), mentions, mention_offsets)
