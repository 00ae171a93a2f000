"""No phrase keeps more than its limit, every phrase keeps something, and which exemplars stay is chance."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deixis.training.phrase_pairs import resample


@given(st.lists(st.sampled_from(["a man", "a dog", "two men", "the sky"])), st.integers(1, 5), st.integers(0, 99))
def test_each_phrase_keeps_at_most_its_limit(phrases: list[str], limit: int, seed: int) -> None:
    kept = resample(phrases, limit, np.random.default_rng(seed)).tolist()
    assert kept == sorted(set(kept))
    counts = Counter(phrases[position] for position in kept)
    assert counts == {phrase: min(count, limit) for phrase, count in Counter(phrases).items()}
    assert kept == resample(phrases, limit, np.random.default_rng(seed)).tolist()


def test_each_exemplar_is_as_likely_as_another() -> None:
    generator = np.random.default_rng(0)
    phrases = np.array([0, 1, 0, 0, 1, 0, 0, 0])
    kept = np.concatenate([resample(phrases, 2, generator) for _ in range(3000)])
    share = np.bincount(kept, minlength=8) / 3000
    np.testing.assert_allclose(share, np.where(phrases == 0, 2 / 6, 1), atol=0.04)


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        resample(["a man"], 0, np.random.default_rng(0))
