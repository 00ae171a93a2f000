"""Which pictures match: is what was asked for there at all, and where does the list of matches end?

Both are thresholds on the score of a term and a picture (`deixis.adapters.search_model.scores`), and both move with
the query:

present     the five best pictures of the collection must reach it on average. It is higher for single words if the
            20 best score much less (what many pictures show is there), lower for common words, and for single nouns
            whose pictures score lower than those of other common words. A rare word, which the model
            hardly knows, must score clearly higher than it usually does. Phrases of several words have a threshold of
            their own, which is lower for common nouns, and higher if their noun's own best pictures hardly show it, or
            the phrase's best pictures one of the words. This rejects only some of the phrases whose words are
            there, but not together (a purple elephant among elephants and purple things).
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

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from deixis.adapters.bundles import Relevance, Threshold
from deixis.adapters.search_model import Floats

if TYPE_CHECKING:
    from deixis.adapters.phrasing import Phrasing

#: The best pictures of a collection whose mean score counts: at most so many, and of a small one this share.
BEST, BEST_SHARE = 5, 1 / 100
#: The same of the pictures that show whether many fit.
MANY, MANY_SHARE = 20, 1 / 10
#: The share of `Relevance.without` that a match must keep: with all of it even fewer pictures would be matches. With
#: half, 36% of the Flickr8k test pictures that fit a query with `-people` are called matches, and 23% of COCO-mini's
#: (results/search/without.json).
ENOUGH = 0.5


class Best(NamedTuple):
    """The mean scores of the best pictures of a collection, `(terms,)`."""

    #: Of the five best, and of the 20 best; of fewer in a small collection.
    few: Floats
    many: Floats

    def rows(self, chosen: Any) -> Best:
        return Best(self.few[chosen], self.many[chosen])


def mean_of_best(scores: Floats, size: int) -> Best:
    """The mean scores of the best pictures in a collection of `size`.

    Args:
        scores: `(terms, pictures)`, at least one picture; the best must be among them.
    """
    pictures = scores.shape[1]
    counts = best_count(pictures, size), min(pictures, MANY, max(1, round(MANY_SHARE * size)))
    few, many = (np.partition(scores, -count, axis=1)[:, -count:].mean(1) for count in counts)
    return Best(few, many)


def best_count(pictures: int, size: int) -> int:
    """How many pictures of a collection of `size` count as the best, if so many are known."""
    return min(pictures, BEST, max(1, round(BEST_SHARE * size)))


class WordsInBest(NamedTuple):
    """How far words of phrases are above what they need; `(terms,)`. A single word has no words: 0."""

    #: The worst word, in the mean of the phrase's best pictures.
    worst: Floats | float = 0.0
    #: The noun, in its own best pictures.
    noun: Floats | float = 0.0


def words_in_best(scores: Floats, word_scores: Floats, needed: Floats, size: int) -> tuple[float, float]:
    """`WordsInBest.worst` and `noun` of one phrase.

    Args:
        scores: `(pictures,)`, of those pictures that may be the best of a collection of `size`.
        word_scores: `(words, pictures)`, each word asked by itself, the noun last.
        needed: `(words,)`, what the best pictures of each must reach for it to be there (`needed_by_words`).
    """
    count = best_count(len(scores), size)
    best = np.argpartition(-scores, count - 1)[:count]
    worst = (word_scores[:, best] - needed[:, None]).min(0).mean()
    return float(worst), float(mean_of_best(word_scores[-1:], size).few[0] - needed[-1])


class Known(NamedTuple):
    """What is known of terms before anything is searched; `(terms,)`."""

    #: Of the rarest word, whether several words say what is meant, and of the noun (`Phrasing`).
    commonness: Floats
    several: NDArray[np.bool_]
    noun_commonness: Floats
    #: Of the rarest word, and this times what the word usually scores.
    rarity: Floats
    rarity_times_usual: Floats

    @classmethod
    def of(cls, phrasings: Sequence[Phrasing]) -> Known:
        return cls(
            np.array([phrase.commonness for phrase in phrasings], np.float32),
            np.array([phrase.several for phrase in phrasings], bool),
            np.array([phrase.noun_commonness for phrase in phrasings], np.float32),
            np.array([phrase.rarity for phrase in phrasings], np.float32),
            np.array([phrase.rarity * phrase.usual_score for phrase in phrasings], np.float32),
        )

    def rows(self, chosen: Any) -> Known:
        return Known(*(field[chosen] for field in self))


def fall(best: Best, known: Known) -> Floats:
    """How far the 20 best pictures fall below the five best; less for rare words, which few pictures show."""
    return (1 - known.rarity) * (best.few - best.many)


def threshold(moved: Threshold, best: Best, known: Known, words: WordsInBest = WordsInBest()) -> Floats:
    """A threshold for each term, `(terms,)`."""
    of_best = moved.best * best.few + moved.fall * fall(best, known)
    limit = moved.base + of_best + moved.commonness * known.commonness + moved.several * known.several
    of_words = moved.worst_word * words.worst + moved.noun * words.noun
    of_noun = moved.noun_commonness * known.noun_commonness
    of_rare = moved.rarity * known.rarity + moved.rarity_times_usual * known.rarity_times_usual
    return np.asarray(limit + of_words + of_noun + of_rare, np.float32)


def needed_by_words(present_in_phrase: Threshold, known: Known) -> Floats:
    """What the best pictures of words of phrases must reach for the words to be there, `(words,)`."""
    nothing = np.zeros_like(known.rarity)
    return threshold(present_in_phrase, Best(nothing, nothing), known)


def list_ends(
    scores: Floats,
    best: Best,
    known: Known,
    relevance: Relevance,
    denied: NDArray[np.bool_] | None = None,
    without_example: Best | None = None,
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
        denied = np.zeros(len(best.few), bool)
    top: Floats = scores.max(1)
    ends = threshold(relevance.end, best, known) + moved
    if without_example is not None:
        beside = relevance.end_with_example or relevance.end
        ends = np.where(denied, ends, threshold(beside, best, known))
    # By how much the best pictures fall short.
    plain = best if without_example is None else without_example
    needed = threshold(relevance.present, plain, known)
    if relevance.present_of_phrase is not None:
        of_phrase = threshold(relevance.present_of_phrase, plain, known, words)
        needed = np.where(known.several, of_phrase, needed)
    lack = needed - plain.few - (0 if lower is None else lower)
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
    if not (denied & np.isfinite(ends)).any():
        # Nothing is excluded, or unknown things alone.
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
