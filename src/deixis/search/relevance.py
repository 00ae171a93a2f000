"""Which pictures match: is what was asked for there at all, and where does the list of matches end?

Both are thresholds on the score of a term and a picture (`deixis.adapters.search_model.scores`), and both move with
the query:

present     the five best pictures of the collection must reach it on average. It is lower for common words, and for
            single nouns whose pictures score lower than those of other common words. Phrases of several words have a
            threshold of their own, which is lower for common nouns, and higher if their best pictures hardly show the
            noun or one of the words: a collection with elephants and with purple things need not have a purple
            elephant.
end         the last match must reach it. It rises with the average of the five best (where some fit very well, middling
            ones are not meant), is lower for common words (many pictures show them) and higher for phrases of several
            words. For nouns and phrases that many pictures show it is moved to where their own lists end best.

If a term is present, its best picture is a match; if it is absent, none is. What must not be in a picture must score
clearly below the end of its list: a picture that is a little worse than the last match may well show it. Half of that
distance is enough for a match, but pictures that keep all of it rank higher.

An example picture beside words adds its cosine with a picture to the score of every wanted phrase. Whether the words
are there at all is decided without it; where the list ends is a threshold of its own.

`calibration.py` fits all of this on validation pictures of captioned corpora.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from deixis.adapters.bundles import Relevance, Threshold
from deixis.adapters.search_model import Floats

#: The best pictures of a collection whose mean score counts: at most so many, and of a small one this share.
BEST, BEST_SHARE = 5, 1 / 100
#: The share of `Relevance.without` that a match must keep. (On validation pictures, with all of it every third query
#: with `-people` has no match, with half of it hardly any; of the pictures that keep half, 3% mention people.)
ENOUGH = 0.5


def mean_of_best(scores: Floats, size: int) -> Floats:
    """The mean score of the best pictures in a collection of `size`, `(terms,)`.

    Args:
        scores: `(terms, pictures)`, at least one picture; the best must be among them.
    """
    count = best_count(scores.shape[1], size)
    best: Floats = np.partition(scores, -count, axis=1)[:, -count:].mean(1)
    return best


def best_count(pictures: int, size: int) -> int:
    """How many pictures of a collection of `size` count as the best, if so many are known."""
    return min(pictures, BEST, max(1, round(BEST_SHARE * size)))


class WordsInBest(NamedTuple):
    """How far words of phrases are above what they need, in the mean of each phrase's best pictures; `(terms,)`.

    A single word has no words: 0.
    """

    worst: Floats | float = 0.0
    noun: Floats | float = 0.0
    #: How common the noun is.
    noun_commonness: Floats | float = 0.0


def words_in_best(word_scores: Floats, needed: Floats) -> tuple[float, float]:
    """`WordsInBest.worst` and `noun` of one phrase.

    Args:
        word_scores: `(words, best pictures)`, each word asked by itself, the noun last.
        needed: `(words,)`, what the best pictures of each must reach for it to be there (`Relevance.present`).
    """
    above = word_scores - needed[:, None]
    return float(above.min(0).mean()), float(above[-1].mean())


def threshold(
    moved: Threshold,
    best: Floats,
    commonness: Floats,
    several: NDArray[np.bool_],
    words: WordsInBest = WordsInBest(),
) -> Floats:
    """A threshold for each term, `(terms,)`."""
    limit = moved.base + moved.best * best + moved.commonness * commonness + moved.several * several
    of_words = moved.worst_word * words.worst + moved.noun * words.noun
    return np.asarray(limit + of_words + moved.noun_commonness * words.noun_commonness, np.float32)


def list_ends(
    scores: Floats,
    best: Floats,
    commonness: Floats,
    several: NDArray[np.bool_],
    relevance: Relevance,
    denied: NDArray[np.bool_] | None = None,
    without_example: Floats | None = None,
    lower: Floats | None = None,
    words: WordsInBest = WordsInBest(),
    moved: Floats | float = 0.0,
) -> Floats:
    """The score that a picture must reach to match each term, `(terms,)`; above all scores where a term is absent.

    Args:
        scores: `(terms, pictures)` of those pictures that may be the best.
        best: their `mean_of_best`.
        denied: `(terms,)`, which terms must not be there: a picture must stay below their end.
        lower: `(terms,)`, by how much `relevance.present` is lower for each term (`Relevance.lower_for`).
        words: of phrases of several words.
        moved: `(terms,)`, what is added to `relevance.end` for each term (`Relevance.end_for`).
        without_example: where an example's cosine is part of the scores of the wanted terms, what `best` is without it.
    """
    if denied is None:
        denied = np.zeros(len(best), bool)
    top: Floats = scores.max(1)
    ends = threshold(relevance.end, best, commonness, several) + moved
    if without_example is not None:
        beside = relevance.end_with_example or relevance.end
        ends = np.where(denied, ends, threshold(beside, best, commonness, several))
    # By how much the best pictures fall short.
    plain = best if without_example is None else without_example
    needed = threshold(relevance.present, plain, commonness, several)
    if relevance.present_of_phrase is not None:
        of_phrase = threshold(relevance.present_of_phrase, plain, commonness, several, words)
        needed = np.where(several, of_phrase, needed)
    lack = needed - plain - (0 if lower is None else lower)
    present_ends = np.minimum(ends, top) - np.where(denied, np.float32(relevance.without), np.float32(0))
    return np.asarray(np.where(lack > 0, np.maximum(ends, top) + np.maximum(lack, 1e-6), present_ends), np.float32)


def log_odds(
    scores: Floats, ends: Floats, denied: NDArray[np.bool_], slope: float, either: NDArray[np.intp] | None = None
) -> Floats:
    """How surely pictures match, from 0 on for those that do, `(pictures,)`.

    Args:
        scores: `(terms, pictures)`.
        ends: `(terms,)`.
        denied: `(terms,)`, which terms must not be there.
        either: as of `worst_met`.
    """
    odds = slope * (scores - ends[:, None])
    return worst_met(np.where(denied[:, None], -odds, odds), either)


def ranked(
    scores: Floats,
    ends: Floats,
    denied: NDArray[np.bool_],
    relevance: Relevance,
    either: NDArray[np.intp] | None = None,
) -> tuple[NDArray[np.intp], Floats]:
    """The order of pictures, best first, and how surely each of these matches: from 0 on if it does."""
    odds = log_odds(scores, ends, denied, relevance.slope, either)
    if not denied.any():
        order = np.argsort(-odds, kind="stable")
        return order, odds[order]
    enough = np.where(denied, ends + np.float32((1 - ENOUGH) * relevance.without), ends)
    matching = log_odds(scores, enough, denied, relevance.slope, either) >= 0
    # A match that does not keep all of the distance has odds below 0; this makes them positive, in the same order.
    odds = np.where(matching, np.logaddexp(0, odds), odds)
    order = np.argsort(-odds, kind="stable")
    return order, odds[order]


def worst_met(met: Floats, either: NDArray[np.intp] | None = None) -> Floats:
    """How well pictures meet all terms, `(pictures,)`: as well as the term that they meet worst.

    Args:
        met: how well they meet each, `(terms, pictures)`.
        either: `(terms,)`, equal for alternatives, of which the one that is met best counts. None: no alternatives.
    """
    if either is not None:
        met = np.stack([met[either == number].max(0) for number in np.unique(either)])
    worst: Floats = met.min(0).astype(np.float32)
    return worst


def likelihoods(odds: Floats) -> Floats:
    """Log odds as numbers between 0 and 1; 0.5 is the end of the list."""
    return np.asarray(1 / (1 + np.exp(-np.clip(odds, -50, 50))), np.float32)
