"""Fitting where a list of matches ends (`deixis.search.relevance`), on captioned pictures.

end         best mean F1 of what is called a match, as a share of what the best cut of each query reaches. For nouns and
            phrases that many pictures show, it is moved towards where their own lists end best (`end_for`); as these
            need many pictures, training pictures count here, too.
without     the largest distance below the end that costs at most 25% of the first ten pictures of "WANTED -DENIED"
            that show what is wanted and not what is denied; over pairs of frequent nouns.

What other values of the constants do on validation pictures is in results/search/validation.json
(`benchmarks/calibration_choices.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from deixis.adapters.bundles import Threshold
from deixis.adapters.phrasing import name_of, telling_words
from deixis.adapters.search_model import Floats
from deixis.errors import DeixisError
from deixis.search.asked_collections import SMALLER, Asked
from deixis.search.caption_queries import Tokens
from deixis.search.relevance import threshold
from deixis.text.tokens import tokens_of

#: Where a list ends is fitted on nouns that so many pictures match (half as many in smaller collections), and phrases.
NOUN_MATCHES, PHRASE_MATCHES = 10, 3
#: Of the pictures that show something, the share that says so in a caption: what is called a match and not mentioned is
#: not always wrong.
MENTIONED = 0.75
#: Distances by which the end of a noun's list is moved, how far near ones count as the same, and how much F1 a distance
#: of 0.2 must gain.
MOVED, MOVED_NEAR, MOVED_COST = np.arange(-20, 21) / 50, 0.06, 0.2
#: How much F1 a distance of 0.2 must gain for labels, whose pictures are all known.
LABEL_COST = 0.04
#: Distances below the end that are tried for what must not be there, and the share of right pictures that may be lost.
WITHOUT, LOST = tuple(step / 20 for step in range(21)), 0.25
#: Nouns that are wanted and denied (the most frequent ones), how many pictures must show the wanted one without the
#: other, and both, and how many first pictures count.
WANTED_NOUNS, DENIED_NOUNS, LEAST_FREE, LEAST_BOTH, FIRST = 40, 15, 10, 5, 10


def fit_end(collections: Sequence[Asked], noun_matches: int = NOUN_MATCHES) -> Threshold:
    """What the score of the last match must reach.

    Args:
        noun_matches: pictures that must match a noun for it to count.
    """
    from scipy.optimize import minimize

    judged = []
    for asked in collections:
        least = noun_matches if asked.size > SMALLER else noun_matches / 2
        counts = asked.matches.sum(1)
        # Nouns are asked for more often than phrases, and captions show more reliably which pictures have them.
        nouns, phrases = (
            asked.of((counts >= least) & ~asked.known.several),
            asked.of((counts >= PHRASE_MATCHES) & asked.known.several),
        )
        judged += [
            (cut_table(collection), collection, weight)
            for collection, weight in ((nouns, 2.0), (phrases, 1.0))
            if len(collection.scores)
        ]
    if not judged:
        raise DeixisError("there are too few validation pictures and phrases to calibrate on")

    def loss(numbers: NDArray[np.float64]) -> float:
        total = 0.0
        for table, asked, weight in judged:
            ends = _end(Threshold(*numbers.tolist()), asked)
            # Averaged over near ends, which smooths the steps.
            reached = np.mean([f1_at(table, asked, ends + moved).mean() for moved in (-0.02, 0.0, 0.02)])
            total += weight * float(reached) / float(table.max(1).mean())
        return -total / sum(weight for *_, weight in judged)

    middle = np.median(np.concatenate([asked.best.few for _, asked, _ in judged]))
    starts = [np.array([middle - 0.3 - share * middle, share, 0.0, 0.0]) for share in (0.0, 0.4, 0.8)]
    steps = np.array([0.2, 0.2, 0.1, 0.1])
    outcomes = []
    for start in starts:
        simplex = np.vstack([start, start + np.diag(steps)])
        outcomes.append(
            minimize(loss, start, method="Nelder-Mead", options={"initial_simplex": simplex, "maxiter": 400})
        )
    return Threshold(*min(outcomes, key=lambda outcome: float(outcome.fun)).x.tolist())


def fit_slope(collections: Sequence[Asked], end: Threshold) -> float:
    """How fast pictures become matches around the end of the list."""
    from sklearn.linear_model import LogisticRegression

    differences, matches = [], []
    for asked in collections:
        chosen = asked.of(np.asarray(asked.matches.any(1)))
        differences.append((chosen.scores - _end(end, chosen)[:, None]).ravel())
        matches.append(chosen.matches.ravel())
    # Most pictures of a query are no matches, which moves the curve; only how steep it is counts.
    model = LogisticRegression(C=1e6)
    model.fit(np.concatenate(differences)[:, None], np.concatenate(matches))
    return max(1.0, float(model.coef_[0, 0]))


def fit_end_for(collections: Sequence[Asked], queries: Sequence[Tokens], end: Threshold) -> dict[str, float]:
    """By how much the end of the list is moved for nouns and phrases that enough pictures match."""
    gains = defaultdict[str, NDArray[np.float64]](lambda: np.zeros(len(MOVED)))
    for asked in collections:
        chosen = asked.matches.sum(1) >= NOUN_MATCHES
        if not chosen.any():
            continue
        by_distance = _f1_by_distance(asked.of(chosen), end)
        # Where the list of all nouns ends best is not their own doing: training pictures score higher.
        usual = float(MOVED[by_distance.mean(0).argmax()])
        for row, curve in zip(np.flatnonzero(chosen).tolist(), by_distance, strict=True):
            gains[name_of(telling_words(queries[row]))] += np.interp(MOVED + usual, MOVED, curve)
    return {name: _best_distance(gain, MOVED_COST) for name, gain in gains.items()}


def fit_end_for_labels(asked: Asked, labels: Sequence[str], end: Threshold) -> dict[str, float]:
    """The same for labels."""
    by_distance = _f1_by_distance(asked, end, mentioned=1.0)
    return {
        name_of(telling_words(tokens_of(label))): _best_distance(curve, LABEL_COST)
        for label, curve in zip(labels, by_distance, strict=True)
    }


def _f1_by_distance(asked: Asked, end: Threshold, mentioned: float | None = None) -> NDArray[np.float64]:
    """F1 of each query if the end of its list is moved, `(queries, distances)`; smoothed."""
    near = np.exp(-0.5 * ((MOVED[:, None] - MOVED) / MOVED_NEAR) ** 2)
    table, ends = cut_table(asked, mentioned), _end(end, asked)
    by_distance = np.stack([f1_at(table, asked, ends + distance) for distance in MOVED], 1)
    return np.asarray(by_distance @ (near / near.sum(0)))


def _best_distance(gain: NDArray[np.float64], cost: float) -> float:
    return float(MOVED[(gain - cost * (MOVED / 0.2) ** 2).argmax()])


def fit_without(collections: Sequence[Asked], end: Threshold) -> float:
    """How far below the end of a list a picture must score to be free of what it must not show; 0 without pairs."""
    right = np.zeros(len(WITHOUT))
    for asked in collections:
        heads = np.where(asked.known.several, 0, asked.heads)
        nouns = np.argsort(-heads, kind="stable")[: min(WANTED_NOUNS, (heads > 0).sum())]
        above = asked.scores - np.minimum(_end(end, asked), asked.scores.max(1))[:, None]
        shares = []
        for wanted in nouns.tolist():
            for denied in nouns[:DENIED_NOUNS].tolist():
                alone = asked.matches[wanted] & ~asked.matches[denied]
                both = asked.matches[wanted] & asked.matches[denied]
                if alone.sum() < LEAST_FREE or both.sum() < LEAST_BOTH:
                    continue
                worst = [np.minimum(above[wanted], -above[denied] - distance) for distance in WITHOUT]
                shares.append([alone[np.argpartition(-odds, FIRST)[:FIRST]].mean() for odds in worst])
        if shares:
            right += np.mean(shares, 0)
    if not right.any():
        return 0.0
    return WITHOUT[int(np.flatnonzero(right >= (1 - LOST) * right.max())[-1])]


def cut_table(asked: Asked, mentioned: float | None = None) -> NDArray[np.float64]:
    """F1 if the first 0, 1, … pictures of each query are called matches, `(queries, pictures + 1)`.

    It is that of the matches that captions would mention if they mentioned all, 1 / `mentioned` times as many
    (None: `MENTIONED`).
    """
    mentioned = MENTIONED if mentioned is None else mentioned
    order = np.argsort(-asked.scores, 1, kind="stable")
    right = np.cumsum(np.take_along_axis(asked.matches, order, 1), 1)
    f1 = 2 * right / (mentioned * np.arange(1, asked.size + 1) + asked.matches.sum(1, keepdims=True))
    return np.concatenate([np.zeros((len(f1), 1)), f1], 1)


def f1_at(table: NDArray[np.float64], asked: Asked, ends: Floats) -> NDArray[np.float64]:
    """F1 of each query if the list ends at a score; the best picture is always a match."""
    counts = np.maximum(1, (asked.scores >= ends[:, None]).sum(1))
    return np.asarray(table[np.arange(len(table)), counts])


def _end(end: Threshold, asked: Asked) -> Floats:
    return threshold(end, asked.best, asked.known)
