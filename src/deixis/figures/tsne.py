"""t-SNE (van der Maaten and Hinton, 2008) of up to a few thousand points, with NumPy alone: it computes all pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Similarities count this much more in the first steps, so that groups form.
EXAGGERATION = 12.0
EARLY_STEPS = 250
LATE_STEPS = 500


def tsne(vectors: NDArray[np.float64], perplexity: float | None = None) -> NDArray[np.float64]:
    """Rows `(n, dim)` in a plane, `(n, 2)`, with neighbours together. Nothing in it is random.

    Args:
        perplexity: the effective number of a point's neighbours, 1 or more; None: 30, fewer for fewer than 91 rows.
    """
    if perplexity is None:
        perplexity = float(np.clip((len(vectors) - 1) / 3, 1, 30))
    conditional = neighbour_probabilities(vectors, perplexity)
    joint = ((conditional + conditional.T) / (2 * len(vectors))).astype(np.float32)
    start = principal_components(vectors)
    places = (1e-4 * start / (start[:, 0].std() or 1.0)).astype(np.float32)
    rate = max(len(vectors) / EXAGGERATION / 4, 50.0)
    update, gains = np.zeros_like(places), np.ones_like(places)
    for steps, exaggeration, momentum in ((EARLY_STEPS, EXAGGERATION, 0.5), (LATE_STEPS, 1.0, 0.8)):
        attraction = joint * np.float32(exaggeration)
        for _ in range(steps):
            gradient = _gradient(attraction, places)
            gains = np.maximum(np.where(update * gradient < 0, gains + 0.2, gains * 0.8), 0.01)
            update = momentum * update - rate * gains * gradient
            places = (places + update).astype(np.float32)
    return places.astype(np.float64)


def neighbour_probabilities(vectors: NDArray[np.float64], perplexity: float) -> NDArray[np.float64]:
    """`(n, n)`: of each row, a Gaussian over the other rows whose width gives it the perplexity; rows sum to 1."""
    distances = _squared_distances(vectors)
    others = ~np.eye(len(vectors), dtype=bool)
    # Of the nearest row it is 0, so that a sum of weights is never 0.
    distances -= np.where(others, distances, np.inf).min(1, keepdims=True)
    np.fill_diagonal(distances, 0)
    distances /= distances.mean() or 1.0
    low, high = np.full((len(vectors), 1), -10.0), np.full((len(vectors), 1), 30.0)
    for _ in range(40):
        middle = (low + high) / 2
        scaled = distances * np.exp(middle)
        weights = np.exp(-scaled) * others
        total = weights.sum(1, keepdims=True)
        entropy = np.log(total) + (weights * scaled).sum(1, keepdims=True) / total
        wide = entropy > np.log(perplexity)
        low, high = np.where(wide, middle, low), np.where(wide, high, middle)
    return np.asarray(weights / total)


def _gradient(joint: NDArray[np.float32], places: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of the Kullback-Leibler divergence, by the places."""
    closeness = _squared_distances(places)
    closeness += 1
    np.reciprocal(closeness, out=closeness)
    np.fill_diagonal(closeness, 0)
    forces = closeness * (-1 / closeness.sum())
    forces += joint
    forces *= closeness
    return np.asarray(4 * (forces.sum(1, keepdims=True) * places - forces @ places))


def _squared_distances(rows: NDArray[Any]) -> NDArray[Any]:
    squares = (rows * rows).sum(1)
    products: NDArray[Any] = rows @ rows.T
    products *= -2
    products += squares
    products += squares[:, None]
    np.maximum(products, 0, out=products)
    return products


def principal_components(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows `(n, dim)` in the plane of the largest variance, `(n, 2)`."""
    left, sizes, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    return np.asarray(left[:, :2] * sizes[:2])
