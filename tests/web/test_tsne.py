"""The map's t-SNE keeps neighbours together as well as scikit-learn's, and takes few or equal points."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.manifold import TSNE, trustworthiness

from deixis.figures.tsne import neighbour_probabilities, tsne


def test_neighbours_stay_together_as_with_scikit_learn() -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(8, 32))[random.integers(8, size=200)] + 0.7 * random.normal(size=(200, 32))
    other = TSNE(2, perplexity=30, init="pca", learning_rate="auto", random_state=0, n_jobs=1).fit_transform(vectors)
    places = tsne(vectors, 30)
    assert trustworthiness(vectors, places) > trustworthiness(vectors, other) - 0.01
    assert np.array_equal(places, tsne(vectors, 30))


def test_a_row_has_the_perplexity_that_is_asked_for() -> None:
    probabilities = neighbour_probabilities(np.random.default_rng(0).normal(size=(50, 8)), 12)
    assert np.allclose(probabilities.sum(1), 1)
    assert not probabilities.diagonal().any()
    entropy = -(probabilities * np.log(np.where(probabilities > 0, probabilities, 1))).sum(1)
    assert np.allclose(np.exp(entropy), 12)


@pytest.mark.parametrize("count", [3, 4, 12])
def test_few_points_and_equal_points_have_places(count: int) -> None:
    perplexity = max((count - 1) / 3, 1)
    for vectors in (np.eye(count, 16), np.ones((count, 16)), np.repeat(np.eye(3, 16), count // 3 + 1, 0)):
        places = tsne(vectors, perplexity)
        assert places.shape == (len(vectors), 2)
        assert np.isfinite(places).all()
