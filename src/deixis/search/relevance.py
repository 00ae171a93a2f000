"""When a picture counts as what was asked for: log odds from cosines, alike for every term of a query.

Towers trained by contrast give cosines that compare from query to query, so one logistic curve serves all of them. It
is fitted on captioned pictures (`calibration.py`): what the best picture gets for words that its collection shows,
against what the best one gets for words that it does not. Measuring each query against background pictures was tried
and told the two apart less well: "a man", which half of all pictures show, stands above none of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from deixis.search.bundles import Relevance
from deixis.search.encoders import Rows


def log_odds(
    scores: Rows, examples: NDArray[np.bool_], denied: NDArray[np.bool_], relevance: Relevance
) -> NDArray[np.float32]:
    """How surely pictures are what was asked for, above 0 for "rather yes".

    Args:
        scores: `(terms, pictures)` cosines.
        examples: `(terms,)`, which terms are pictures.
        denied: `(terms,)`, which terms must not be there.
    """
    thresholds = np.where(examples, relevance.alike, relevance.threshold)[:, None]
    odds = relevance.slope * (scores - thresholds)
    # A picture must meet every term, so the worst met decides.
    worst: NDArray[np.float32] = np.where(denied[:, None], -odds, odds).min(0).astype(np.float32)
    return worst


def likelihoods(odds: NDArray[np.float32]) -> NDArray[np.float32]:
    """Log odds as numbers between 0 and 1."""
    return np.asarray(1 / (1 + np.exp(-np.clip(odds, -50, 50))), np.float32)
