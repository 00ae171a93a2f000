"""CCA and the region-phrase distance in their textbook form.

Slow, and easy to check against the paper; the tests hold `cca.py` and `training/combining.py` to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def cca_eigenproblem(X: Array, Y: Array, ridge: float) -> tuple[Array, Array, Array]:
    """CCA as one generalized eigenproblem, solved directly.

        [ 0     S_xy ] [u]       [ S_xx + r_x I   0            ] [u]
        [ S_yx  0    ] [v]  = ρ  [ 0              S_yy + r_y I ] [v]

    with r_x = `ridge` times the mean variance of X's columns, and r_y likewise.

    Args:
        X, Y: `(pairs, x)` and `(pairs, y)`.

    Returns:
        Correlations ρ `(k,)`, descending, and directions u `(x, k)`, v `(y, k)`, each of unit variance;
        k = min(x, y).
    """
    import scipy.linalg

    x = X.shape[1]
    joint = np.cov(np.hstack([X, Y]).T)
    within = np.zeros_like(joint)
    for view in (slice(0, x), slice(x, None)):
        block = joint[view, view]
        within[view, view] = block + ridge * np.trace(block) / len(block) * np.eye(len(block))
    between = joint - scipy.linalg.block_diag(joint[:x, :x], joint[x:, x:])
    values, vectors = scipy.linalg.eigh(between, within)
    k = min(x, Y.shape[1])
    # eigh gives both halves together unit variance; each half has half of it.
    vectors = np.sqrt(2) * vectors[:, ::-1][:, :k]
    return values[::-1][:k], vectors[:x], vectors[x:]


def region_phrase_distance(
    regions: Sequence[Array], sentences: Sequence[Array], gamma: float, squared: bool
) -> NDArray[np.float64]:
    """D_RP `(images, sentences)`, eq. 1: Σ over phrases of the distance to the nearest region, over L^γ.

    Args:
        regions: of each image its regions `(regions, dim)`.
        sentences: of each sentence its L phrases `(phrases, dim)`; one without phrases gets NaN.
        squared: squared distances, as eq. 2 has them; two-branch networks' eq. 8 has plain ones.
    """
    power = 2 if squared else 1
    distances = np.full((len(regions), len(sentences)), np.nan)
    for row, image in enumerate(regions):
        for column, phrases in enumerate(sentences):
            if len(phrases):
                nearest = [min(np.linalg.norm(phrase - region) ** power for region in image) for phrase in phrases]
                distances[row, column] = sum(nearest) / len(phrases) ** gamma
    return distances
