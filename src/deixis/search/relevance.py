"""When a picture counts as what was asked for: log odds from scores, for every term of a query.

A logistic curve turns the score of a term and a picture (`scoring.py`) into log odds. What a score means differs from
term to term, so the curve's threshold moves with how well the best of some background pictures, which show nearly
everything that the model was taught, meet the term: one that none of them meets is one that it hardly knows. It is
fitted on captioned pictures (`calibration.py`): what the best picture of a collection gets for phrases that it shows,
against what the best one gets for phrases that it does not. The larger a collection, the better its best is by
chance, so the threshold moves with the collection's size too.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from deixis.adapters.bundles import Relevance
from deixis.adapters.search_model import Rows, SearchModel

#: The part of the background that is a term's best.
BEST = 1 / 500
#: The pictures of a collection in which `Relevance.threshold` is the threshold.
USUAL_SIZE = 1000


def best_known(terms: Rows, background: Rows | None) -> NDArray[np.float32] | None:
    """How well the best of the background's pictures meet each term by its embedding, `(terms,)` cosines."""
    if background is None or not len(background):
        return None
    rank = max(1, round(BEST * len(background)))
    best: NDArray[np.float32] = np.partition(terms @ background.T, -rank, axis=1)[:, -rank]
    return best


def thresholds(terms: Rows, examples: NDArray[np.bool_], model: SearchModel, size: int) -> NDArray[np.float32]:
    """The score of each term from which on a picture of a collection of `size` is rather what was asked for.

    Args:
        terms: embeddings `(terms, dim)`.
        examples: `(terms,)`, which of them are pictures.
    """
    relevance, known = model.relevance, best_known(terms, model.background)
    words = np.full(len(terms), relevance.threshold + relevance.growth * math.log(max(1, size) / USUAL_SIZE))
    if known is not None:
        words += relevance.share * (known - relevance.usual)
    return np.where(examples, relevance.alike, words).astype(np.float32)


def log_odds(
    scores: Rows, thresholds: NDArray[np.float32], denied: NDArray[np.bool_], relevance: Relevance
) -> NDArray[np.float32]:
    """How surely pictures are what was asked for, above 0 for "rather yes".

    Args:
        scores: `(terms, pictures)`.
        thresholds: `(terms,)`.
        denied: `(terms,)`, which terms must not be there.
    """
    odds = relevance.slope * (scores - thresholds[:, None])
    # A picture must meet every term, so the worst met decides.
    worst: NDArray[np.float32] = np.where(denied[:, None], -odds, odds).min(0).astype(np.float32)
    return worst


def likelihoods(odds: NDArray[np.float32]) -> NDArray[np.float32]:
    """Log odds as numbers between 0 and 1."""
    return np.asarray(1 / (1 + np.exp(-np.clip(odds, -50, 50))), np.float32)
