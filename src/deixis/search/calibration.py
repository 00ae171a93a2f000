"""Fitting the two thresholds of `relevance.py` on the validation pictures of captioned corpora.

Queries are nouns and noun phrases of captions. A picture matches a query if one of its captions has all the query's
words, in either number. Captions leave things out, so some of what counts as no match or as absent is there. Training
pictures with labelled boxes, if given, show all that they show of their labels: these decide about the labels' names.

end         best mean F1 of what is called a match, as a share of what the best cut of each query reaches. For nouns and
            phrases that many pictures show, it is moved towards where their own lists end best (`end_for`); as these
            need many pictures, training pictures count here, too.
present     a logistic regression between queries that some picture of a collection matches and queries whose noun no
            caption of the collection mentions, in collections of several sizes; the largest have training pictures.
            Absent words are rarer, since they come from more captions; so that rarity alone does not decide, single
            words of either kind are weighted to be equally common.
            For a noun that many pictures match and that would still be called absent, the threshold is lower
            (`lower_for`); for a label it is between collections with few pictures of it and with none.
            Phrases of several words have their own regression, in which calling absent what is there counts more. It
            also has to reject pairs of a modifier and a noun that captions have, but never together ("a purple
            elephant").
without     the largest distance below the end that costs at most 25% of the first ten pictures of "WANTED -DENIED"
            that show what is wanted and not what is denied; over pairs of frequent nouns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from deixis.adapters.bundles import Relevance, Threshold
from deixis.adapters.phrasing import (
    FUNCTION_WORDS,
    KINDS,
    NUMBERS,
    Phrasing,
    distinct_words,
    embed_phrases,
    name_of,
    phrasing,
    telling_words,
)
from deixis.adapters.search_model import Floats, Pictures, SearchModel
from deixis.corpus import Image
from deixis.errors import DeixisError
from deixis.search.relevance import WordsInBest, best_count, mean_of_best, threshold, words_in_best
from deixis.text.chunker import Chunker
from deixis.text.plurals import singular
from deixis.text.tokens import has_content, tokens_of, tokens_of_captions
from deixis.text.vocabulary import Vocabulary

Tokens = tuple[str, ...]
Bools = NDArray[np.bool_]

#: Phrases of one origin at most.
PHRASES = 1000
#: Words asked by themselves: among so many of the most frequent, read so often.
WORDS, WORD_COUNT = 2500, 20
#: Pictures of the smaller collection that is drawn from a corpus.
SMALLER = 200
#: A single word is there if so many pictures match it.
WORD_MATCHES = 3
#: Where a list ends is fitted on nouns that so many pictures match (half as many in smaller collections), and phrases.
NOUN_MATCHES, PHRASE_MATCHES = 10, 3
#: Of the pictures that show something, the share that says so in a caption: what is called a match and not mentioned is
#: not always wrong. (Of COCO's classes, captions of training pictures mention 0.57, small things in the background
#: included; 0.57, 0.75 and 1 were compared on validation pictures, without a result file.)
MENTIONED = 0.75
#: How many pictures must match a noun for its threshold to be lowered, and by how much more than would suffice here.
LOWER_MATCHES, LOWER_MARGIN = 10, 0.05
#: How much worse it is to call a phrase absent that is there than to show something that is not. Single nouns that many
#: pictures show are kept by `lower_for`, so for words both count the same.
COST_OF_ABSENT = 1.3
#: Pairs of a modifier and a noun that are drawn, how many phrases must have the modifier, how many pictures must match
#: each of the two, and how much such pairs count beside phrases whose noun is absent.
PAIRS, MODIFIED, PAIR_MATCHES, PAIR_WEIGHT = 1200, 4, 5, 0.1
#: Distances by which the end of a noun's list is moved, how far near ones count as the same, and how much F1 a distance
#: of 0.2 must gain. (On validation pictures, distances fitted on training pictures raise the share of the best F1 from
#: 0.862 to 0.878 on Flickr8k and from 0.889 to 0.899 on COCO-mini; a cost from 0.05 to 0.4 makes little difference.)
MOVED, MOVED_NEAR, MOVED_COST = np.arange(-20, 21) / 50, 0.06, 0.2
#: Distances below the end that are tried for what must not be there, and the share of right pictures that may be lost.
#: (With 0.15, people are left in the first ten of every fourth query with `-people` on COCO's validation pictures.)
WITHOUT, LOST = tuple(step / 20 for step in range(21)), 0.25
#: Nouns that are wanted and denied (the most frequent ones), how many pictures must show the wanted one without the
#: other, and both, and how many first pictures count.
WANTED_NOUNS, DENIED_NOUNS, LEAST_FREE, LEAST_BOTH, FIRST = 40, 15, 10, 5, 10
#: How much F1 a distance of 0.2 must gain for labels, whose pictures are all known.
LABEL_COST = 0.04
#: How many pictures must show a label for its threshold to be fitted to it. The size of the collections in which it is
#: looked for, how many pictures of it half of them have, and how many of either kind are drawn. Where the threshold is
#: between what the best pictures have on average in collections without it (0) and with it (1).
OWN_MATCHES, DRAWN_SIZE, DRAWN_MATCHES, DRAWS, BETWEEN = 15, 500, 3, 8, 0.35
#: Of pairs of pictures, the share that is alike.
ALIKE = 0.01


class Asked(NamedTuple):
    """Queries asked of a collection."""

    #: `(queries, pictures)`.
    scores: Floats
    matches: Bools
    #: Which captions mention the query's noun, its last word.
    nouns: Bools
    #: `(queries,)`: the images with a noun phrase that ends in the query's last word.
    heads: NDArray[np.int64]
    #: `(queries,)`: the mean score of the best pictures, and what is known of the words.
    best: Floats
    commonness: Floats
    several: Bools
    #: `(queries,)`: how common the noun is.
    noun_commonness: Floats

    @property
    def size(self) -> int:
        return int(self.scores.shape[1])

    @property
    def mentioned(self) -> Bools:
        """Whether any caption of the collection mentions the noun."""
        return np.asarray(self.nouns.any(1))

    def of(self, chosen: Bools) -> Asked:
        return Asked._make(field[chosen] for field in self)


class Collection(NamedTuple):
    """Queries asked of a collection, and the words of the queries, each by itself."""

    asked: Asked
    words: Asked

    def of_pictures(self, some: NDArray[np.intp]) -> Collection:
        """The same questions asked of some of the pictures."""
        return Collection(*(_of_pictures(asked, some) for asked in self))


class Labelled(NamedTuple):
    """Pictures of which all is known that they show of some labels."""

    pictures: Pictures
    labels: list[str]
    #: `(labels, pictures)`.
    shown: Bools


def fitted(
    model: SearchModel,
    pictures: Sequence[Pictures],
    images: Sequence[Sequence[Image]],
    queries: Sequence[Tokens],
    random: np.random.Generator,
    validation_counts: Sequence[int] | None = None,
    labelled: Labelled | None = None,
) -> Relevance:
    """Fit on collections of pictures, whose images have captions, and on smaller ones drawn from them.

    Args:
        validation_counts: how many of each collection's pictures are validation pictures, the first ones; the others
            are training pictures. None: all.
        labelled: training pictures with labels.
    """
    if not all(map(len, images)):
        raise DeixisError("there are too few validation pictures and phrases to calibrate on")
    validation_counts = (
        [len(collection_images) for collection_images in images] if validation_counts is None else validation_counts
    )
    queries = [*queries, *(pairs := modified_pairs(queries, random))]
    words = sorted({word for query in queries for word in telling_words(query)})
    larger = ask_collections(model, pictures, images, queries, words)
    whole = [
        collection.of_pictures(np.arange(count)) for collection, count in zip(larger, validation_counts, strict=True)
    ]
    smaller = [collection.of_pictures(random.permutation(collection.asked.size)[:SMALLER]) for collection in whole]
    smaller = [collection for collection, of in zip(smaller, whole, strict=True) if of.asked.size > SMALLER]
    sizes = [*whole, *smaller, *(collection for collection in larger if collection.asked.size > max(validation_counts))]
    present = fit_present([single_words(collection) for collection in sizes])
    without_pairs = slice(0, len(queries) - len(pairs))
    whole_asked, larger_asked = (
        [_first(collection.asked, without_pairs) for collection in some] for some in (whole, larger)
    )
    collections = [*whole_asked, *(_first(collection.asked, without_pairs) for collection in smaller)]
    end = fit_end(collections)
    rows = np.concatenate(
        [embedded.embeddings[:count] for embedded, count in zip(pictures, validation_counts, strict=True)]
    )
    alike = (rows @ rows.T)[np.triu_indices(len(rows), 1)]
    end_for = fit_end_for(larger_asked, queries, end)
    least = fit_lower([*whole_asked, *larger_asked], queries, present)
    lower_for = {noun: lower for noun, lower in least.items() if lower > 0}
    of_labels = ask_labels(model, labelled) if labelled is not None else None
    if labelled is not None and of_labels is not None:
        end_for |= fit_end_for_labels(of_labels.asked, labelled.labels, end)
        of_words = fit_lower_of_labels(of_labels, labelled.labels, present, None, lower_for, random)
        lower_for |= {name: max(lower, least.get(name, lower)) for name, lower in of_words.items()}
    groups = [
        group
        for collection in sizes
        for group in phrases_of(
            collection, queries, words, len(pairs), needed_by(collection.words, words, present, lower_for)
        )
    ]
    present_of_phrase = fit_present(groups) if any(group.can_be_fitted for group in groups) else None
    if labelled is not None and of_labels is not None and present_of_phrase is not None:
        lower_for |= fit_lower_of_labels(of_labels, labelled.labels, present, present_of_phrase, lower_for, random)
    return Relevance(
        present,
        end,
        slope=fit_slope(collections, end),
        alike=float(np.quantile(alike, 1 - ALIKE)),
        without=fit_without(whole_asked, end),
        lower_for=lower_for,
        present_of_phrase=present_of_phrase,
        end_for={name: moved for name, moved in sorted(end_for.items()) if moved},
    )


def modified_pairs(queries: Sequence[Tokens], random: np.random.Generator) -> list[Tokens]:
    """Pairs of a modifier and a noun of phrases of two words, drawn at random; none where there are few phrases."""
    pairs = [tuple(words) for query in queries if len(words := telling_words(query)) == 2]
    modifiers = defaultdict[str, set[str]](set)
    for modifier, noun in pairs:
        modifiers[modifier].add(noun)
    known, nouns = set(map(tuple, pairs)), sorted({noun for _, noun in pairs})
    first = sorted(modifier for modifier, named in modifiers.items() if len(named) >= MODIFIED)
    if not first:
        return []
    drawn = {
        (first[random.integers(len(first))], nouns[random.integers(len(nouns))])
        for _ in range(min(PAIRS, len(first) * len(nouns)))
    }
    return sorted(pair for pair in drawn - known if pair[0] != pair[1])


class Presences(NamedTuple):
    """Queries of one kind asked of a collection; some of them are there, some absent, and of others one cannot say."""

    #: `(queries, 5)`: the mean score of the best pictures, commonness, and `WordsInBest`.
    known: NDArray[np.float64]
    there: Bools
    absent: Bools
    weight: float = 1.0
    cost_of_absent: float = 1.0
    equally_common: bool = False

    @property
    def can_be_fitted(self) -> bool:
        return bool(self.there.any() and self.absent.any())


def single_words(collection: Collection) -> Presences:
    asked = collection.asked.of(~collection.asked.several)
    zero = np.zeros_like(asked.best)
    known = np.stack([asked.best, asked.commonness, zero, zero, zero], 1)
    # A word of few captions need not mean what a query means by it.
    return Presences(known, asked.matches.sum(1) >= WORD_MATCHES, ~asked.mentioned, equally_common=True)


def phrases_of(
    collection: Collection, queries: Sequence[Tokens], words: Sequence[str], pairs: int, needed: Floats
) -> list[Presences]:
    """Phrases against phrases whose noun is absent, and phrases of two words against the last `pairs` of the queries.

    Args:
        needed: what each word needs, `(words,)`.
    """
    asked, by_itself = collection
    places = np.flatnonzero(asked.several)
    of_query = word_rows([queries[place] for place in places.tolist()], words)
    in_best = collection_words_in_best(collection, places, of_query, needed)
    known = np.stack([asked.best[places], asked.commonness[places], *in_best], 1)
    counts, there = by_itself.matches.sum(1), np.asarray(asked.matches.any(1))[places]
    is_pair = places >= len(queries) - pairs
    two, both = (
        np.array([(len(rows) == 2, counts[rows].min() >= PAIR_MATCHES) for rows in of_query], bool).reshape(-1, 2).T
    )
    return [
        Presences(known, there & ~is_pair, ~asked.mentioned[places] & ~is_pair, 1.0, COST_OF_ABSENT),
        Presences(known, there & two & both & ~is_pair, ~there & both & is_pair, PAIR_WEIGHT, COST_OF_ABSENT),
    ]


def word_rows(queries: Sequence[Tokens], words: Sequence[str]) -> list[list[int]]:
    """For each query where its words are among all, the noun last."""
    places = {word: place for place, word in enumerate(words)}
    return [[places[word] for word in distinct_words(telling_words(query))] for query in queries]


def needed_by(asked: Asked, words: Sequence[str], present: Threshold, lower_for: dict[str, float]) -> Floats:
    """What the best pictures of single words need, `(words,)`."""
    lower = np.array([lower_for.get(singular(word), 0.0) for word in words], np.float32)
    return threshold(present, asked.best, asked.commonness, asked.several) - lower


def collection_words_in_best(
    collection: Collection, rows: NDArray[np.intp], of_query: Sequence[Sequence[int]], needed: Floats
) -> WordsInBest:
    """Of some queries of a collection.

    Args:
        rows: which queries.
        of_query: the `word_rows` of each.
        needed: what each word needs.
    """
    asked, by_itself = collection
    count = best_count(asked.size, asked.size)
    both = np.zeros((2, len(rows)), np.float32)
    for index, (row, of_words) in enumerate(zip(rows.tolist(), of_query, strict=True)):
        best = np.argpartition(-asked.scores[row], count - 1)[:count]
        both[:, index] = words_in_best(by_itself.scores[list(of_words)][:, best], needed[list(of_words)])
    worst, noun = both
    return WordsInBest(worst, noun, asked.noun_commonness[rows])


def fit_present(groups: Sequence[Presences]) -> Threshold:
    """What the best pictures' mean score must reach for a thing to be there."""
    from sklearn.linear_model import LogisticRegression

    table, present, weights = [], [], []
    for group in groups:
        if group.can_be_fitted:
            yes, no = group.known[group.there], group.known[group.absent]
            shares = [np.full(len(yes), 1 / len(yes)), np.full(len(no), 1 / len(no))]
            if group.equally_common:
                common, other = yes[:, 1].astype(np.float32), no[:, 1].astype(np.float32)
                shares = [alike_weights(common, other), alike_weights(other, common)]
            table += [yes, no]
            present += [np.ones(len(yes)), np.zeros(len(no))]
            weights += [group.cost_of_absent * group.weight * shares[0], group.weight * shares[1]]
    if not table:
        raise DeixisError("there are too few validation pictures and phrases to calibrate on")
    model = LogisticRegression(C=1e6, max_iter=1000)
    model.fit(np.concatenate(table), np.concatenate(present), sample_weight=1000 * np.concatenate(weights))
    slope, common, worst, noun, noun_common = model.coef_[0].tolist()
    if slope <= 0:
        raise DeixisError("the model's scores do not separate phrases that pictures show from phrases that they do not")
    base = -float(model.intercept_[0]) / slope
    return Threshold(
        base,
        commonness=-common / slope,
        worst_word=-worst / slope,
        noun=-noun / slope,
        noun_commonness=-noun_common / slope,
    )


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


def _f1_by_distance(asked: Asked, end: Threshold, mentioned: float = MENTIONED) -> NDArray[np.float64]:
    """F1 of each query if the end of its list is moved, `(queries, distances)`; smoothed."""
    near = np.exp(-0.5 * ((MOVED[:, None] - MOVED) / MOVED_NEAR) ** 2)
    table, ends = cut_table(asked, mentioned), _end(end, asked)
    by_distance = np.stack([f1_at(table, asked, ends + distance) for distance in MOVED], 1)
    return np.asarray(by_distance @ (near / near.sum(0)))


def _best_distance(gain: NDArray[np.float64], cost: float) -> float:
    return float(MOVED[(gain - cost * (MOVED / 0.2) ** 2).argmax()])


def fit_lower(collections: Sequence[Asked], queries: Sequence[Tokens], present: Threshold) -> dict[str, float]:
    """By how much the threshold must be lower, at least, for nouns that many pictures match to be called present.

    Below 0: it could be higher.
    """
    lower: dict[str, float] = {}
    for asked in collections:
        lack = threshold(present, asked.best, asked.commonness, asked.several) - asked.best
        frequent = (asked.matches.sum(1) >= LOWER_MATCHES) & (asked.heads >= LOWER_MATCHES) & ~asked.several
        for row in np.flatnonzero(frequent).tolist():
            noun, least = singular(queries[row][-1]), round(float(lack[row]) + LOWER_MARGIN, 4)
            lower[noun] = max(lower.get(noun, least), least)
    return dict(sorted(lower.items()))


def fit_lower_of_labels(
    collection: Collection,
    labels: Sequence[str],
    present: Threshold,
    present_of_phrase: Threshold | None,
    lower_for: dict[str, float],
    random: np.random.Generator,
) -> dict[str, float]:
    """By how much the threshold is lower for labels that enough pictures show; for phrases with `present_of_phrase`.

    Args:
        lower_for: of single words.
    """
    asked, words = collection.asked, label_words(labels)
    needed = needed_by(collection.words, words, present, lower_for)
    lower: dict[str, float] = {}
    for row, label in enumerate(labels):
        if asked.matches[row].sum() < OWN_MATCHES or bool(asked.several[row]) != (present_of_phrase is not None):
            continue
        of_phrase = None
        if present_of_phrase is not None:
            of_phrase = OfPhrase(present_of_phrase, word_rows([tokens_of(label)], words)[0], needed)
        lower[name_of(telling_words(tokens_of(label)))] = round(
            lack_between(collection, row, present, random, of_phrase), 4
        )
    return lower


class OfPhrase(NamedTuple):
    """What `lack_between` needs for a phrase of several words."""

    present: Threshold
    #: Its `word_rows`, and what all words need.
    words: list[int]
    needed: Floats


def lack_between(
    collection: Collection, row: int, present: Threshold, random: np.random.Generator, phrase: OfPhrase | None = None
) -> float:
    """By how much a threshold has to be lower to be between collections without matches and with few.

    Where the scores do not separate these, what many pictures match is called present.
    """
    query = collection.asked.of(np.arange(len(collection.asked.best)) == row)
    matching, others = np.flatnonzero(query.matches[0]), np.flatnonzero(~query.matches[0])
    lacks: dict[int, list[float]] = {0: [], DRAWN_MATCHES: [], LOWER_MATCHES: []}
    for count in [*lacks] * DRAWS:
        some = np.concatenate([random.permutation(matching)[:count], random.permutation(others)[: DRAWN_SIZE - count]])
        drawn, in_best = _of_pictures(query, some), WordsInBest()
        if phrase is not None:
            both = Collection(drawn, _of_pictures(collection.words, some))
            in_best = collection_words_in_best(both, np.zeros(1, np.intp), [phrase.words], phrase.needed)
        moved = phrase.present if phrase is not None else present
        needed = threshold(moved, drawn.best, drawn.commonness, drawn.several, in_best)
        lacks[count].append(float((needed - drawn.best)[0]))
    none, few, many = (float(np.mean(some)) for some in lacks.values())
    return max(none + BETWEEN * (few - none), many + LOWER_MARGIN)


def label_words(labels: Sequence[str]) -> list[str]:
    return sorted({word for label in labels for word in telling_words(tokens_of(label))})


def ask_labels(model: SearchModel, labelled: Labelled) -> Collection:
    """Ask for labels and for their words."""
    asked = [phrasing(label, model) for label in labelled.labels]
    words = [phrasing(word, model) for word in label_words(labelled.labels)]
    nothing = np.zeros((len(words), labelled.shown.shape[1]), bool)
    return Collection(
        _asked(asked, query_scores(model, asked, labelled.pictures), labelled.shown, labelled.shown),
        _asked(words, query_scores(model, words, labelled.pictures), nothing, nothing),
    )


def ask_collections(
    model: SearchModel,
    pictures: Sequence[Pictures],
    images: Sequence[Sequence[Image]],
    queries: Sequence[Tokens],
    words: Sequence[str],
) -> list[Collection]:
    """Ask queries and words of each collection; each text is embedded once."""
    asked, single = [phrasing(" ".join(query), model) for query in queries], [(word,) for word in words]
    of_words = [phrasing(word, model) for word in words]
    scores = scores_of_collections(model, [*asked, *of_words], pictures)
    collections = []
    for both, own_images in zip(scores, images, strict=True):
        nouns = caption_matches(own_images, [query[-1:] for query in queries])
        matches, heads = caption_matches(own_images, queries), head_counts(own_images, queries)
        word_matches = caption_matches(own_images, single)
        collections.append(
            Collection(
                _asked(asked, both[: len(asked)], matches, nouns, heads),
                _asked(of_words, both[len(asked) :], word_matches, word_matches),
            )
        )
    return collections


def _asked(
    asked: Sequence[Phrasing],
    scores: Floats,
    matches: Bools,
    nouns: Bools,
    heads: NDArray[np.int64] | None = None,
) -> Asked:
    return Asked(
        scores,
        matches,
        nouns,
        np.zeros(len(asked), np.int64) if heads is None else heads,
        mean_of_best(scores, scores.shape[1]),
        np.array([phrase.commonness for phrase in asked], np.float32),
        np.array([phrase.several for phrase in asked], bool),
        np.array([phrase.noun_commonness for phrase in asked], np.float32),
    )


def alike_weights(first: Floats, others: Floats, bins: int = 10) -> NDArray[np.float64]:
    """Weights that give a group the distribution that it shares with others, by bins of equal counts; they sum to 1."""
    edges = np.quantile(np.concatenate([first, others]), np.linspace(0, 1, bins + 1)[1:-1])
    bin_of, bin_of_others = (np.digitize(values, edges) for values in (first, others))
    counts, other_counts = (np.bincount(members, minlength=bins) for members in (bin_of, bin_of_others))
    # As shares, so that the smaller group does not decide how much the larger one counts.
    shared = np.minimum(counts / len(first), other_counts / len(others))
    weights = (shared / np.maximum(counts, 1))[bin_of]
    return np.asarray(weights / weights.sum() if weights.sum() else np.full(len(first), 1 / len(first)))


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
            asked.of((counts >= least) & ~asked.several),
            asked.of((counts >= PHRASE_MATCHES) & asked.several),
        )
        judged += [
            (cut_table(collection), collection, weight)
            for collection, weight in ((nouns, 2.0), (phrases, 1.0))
            if len(collection.best)
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

    middle = np.median(np.concatenate([asked.best for _, asked, _ in judged]))
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


def fit_without(collections: Sequence[Asked], end: Threshold) -> float:
    """How far below the end of a list a picture must score to be free of what it must not show; 0 without pairs."""
    right = np.zeros(len(WITHOUT))
    for asked in collections:
        heads = np.where(asked.several, 0, asked.heads)
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


def cut_table(asked: Asked, mentioned: float = MENTIONED) -> NDArray[np.float64]:
    """F1 if the first 0, 1, … pictures of each query are called matches, `(queries, pictures + 1)`.

    It is that of the matches that captions would mention if they mentioned all, 1 / `mentioned` times as many.
    """
    order = np.argsort(-asked.scores, 1, kind="stable")
    right = np.cumsum(np.take_along_axis(asked.matches, order, 1), 1)
    f1 = 2 * right / (mentioned * np.arange(1, asked.size + 1) + asked.matches.sum(1, keepdims=True))
    return np.concatenate([np.zeros((len(f1), 1)), f1], 1)


def f1_at(table: NDArray[np.float64], asked: Asked, ends: Floats) -> NDArray[np.float64]:
    """F1 of each query if the list ends at a score; the best picture is always a match."""
    counts = np.maximum(1, (asked.scores >= ends[:, None]).sum(1))
    return np.asarray(table[np.arange(len(table)), counts])


def _end(end: Threshold, asked: Asked) -> Floats:
    return threshold(end, asked.best, asked.commonness, asked.several)


def query_scores(model: SearchModel, asked: Sequence[Phrasing], pictures: Pictures) -> Floats:
    """`(queries, pictures)`, as search scores them."""
    (scores,) = scores_of_collections(model, asked, [pictures])
    return scores


def scores_of_collections(
    model: SearchModel, asked: Sequence[Phrasing], pictures: Sequence[Pictures], batch: int = 256
) -> list[Floats]:
    """The same of several collections, for which the queries are embedded once."""
    parts: list[list[Floats]] = [[] for _ in pictures]
    for start in range(0, len(asked), batch):
        phrases = embed_phrases(model, asked[start : start + batch])
        for own_parts, own_pictures in zip(parts, pictures, strict=True):
            own_parts.append(phrases.scores(own_pictures))
    return [np.concatenate(own_parts) for own_parts in parts]


def caption_matches(images: Sequence[Image], queries: Sequence[Tokens]) -> Bools:
    """`(queries, images)`: whether one caption of an image has all words of a query that say what is meant.

    A caption that has a kind of a general word ("man" for "people") has that word.
    """
    having = defaultdict[str, set[tuple[int, int]]](set)
    for image_index, image in enumerate(images):
        for caption_index, caption in enumerate(image.captions):
            for token in tokens_of(caption):
                having[singular(token)].add((image_index, caption_index))
    matches = np.zeros((len(queries), len(images)), bool)
    for row, query in zip(matches, queries, strict=True):
        names = [(singular(word), *KINDS.get(singular(word), "").split()) for word in telling_words(query)]
        words = [set[tuple[int, int]]().union(*(having.get(name, ()) for name in name_set)) for name_set in names]
        row[[index for index, _ in set.intersection(*words)] if words else []] = True
    return matches


def head_counts(images: Sequence[Image], queries: Sequence[Tokens]) -> NDArray[np.int64]:
    """For each query the images that have a noun phrase ending in its last word, which is then used as a noun."""
    sentences = [(index, tokens_of(caption)) for index, image in enumerate(images) for caption in image.captions]
    spans = Chunker.load().phrases_of([tokens for _, tokens in sentences])
    having = defaultdict[str, set[int]](set)
    for (image_index, tokens), phrase_spans in zip(sentences, spans, strict=True):
        for start, end in phrase_spans:
            if end > start and is_name(tokens[end - 1]) and tokens[end - 1] not in FUNCTION_WORDS | NUMBERS:
                having[singular(tokens[end - 1])].add(image_index)
    return np.array([len(having[singular(query[-1])]) for query in queries], np.int64)


def known_queries(
    model: SearchModel, vocabulary: Vocabulary, groups: Sequence[Sequence[Image]], random: np.random.Generator
) -> list[Tokens]:
    """Noun phrases of the captions of each group, their nouns, and frequent words; all their words are known.

    Of those that are asked for alike ("a man", "the man", "men"), one.
    """
    queries: list[Tokens] = []
    for images in groups:
        phrases = noun_phrases(vocabulary, images)
        heads = {singular(phrase[-1]) for phrase in phrases}
        queries += [(head,) for head in sorted(heads) if vocabulary.count(head) >= WORD_COUNT]
        queries += [phrases[index] for index in random.permutation(len(phrases))[:PHRASES]]
    queries += [(word,) for word in frequent_words(vocabulary)]
    return list({phrasing(" ".join(query), model).forms: query for query in reversed(queries)}.values())


def frequent_words(vocabulary: Vocabulary) -> list[str]:
    """Words that the model has read often: rarer ones have hardly a meaning to it."""
    words = zip(vocabulary.words[:WORDS], vocabulary.counts[:WORDS], strict=True)
    return [word for word, count in words if count >= WORD_COUNT and is_name(word)]


def noun_phrases(vocabulary: Vocabulary, images: Sequence[Image]) -> list[Tokens]:
    """The noun phrases of images' captions whose words are all known, each once."""
    sentences = tokens_of_captions(images)
    spans = Chunker.load().phrases_of(sentences)
    phrases = {
        tokens[start:end]
        for tokens, phrase_spans in zip(sentences, spans, strict=True)
        for start, end in phrase_spans
        if end > start
    }
    return sorted(phrase for phrase in phrases if is_name(phrase[-1]) and all(token in vocabulary for token in phrase))


def is_name(word: str) -> bool:
    """Whether a word may name something."""
    return word.isalpha() and len(word) > 2 and has_content(word)


def _of_pictures(asked: Asked, some: NDArray[np.intp]) -> Asked:
    """The same queries asked of some of the pictures."""
    scores, matches, nouns = asked.scores[:, some], asked.matches[:, some], asked.nouns[:, some]
    return asked._replace(scores=scores, matches=matches, nouns=nouns, best=mean_of_best(scores, len(some)))


def _first(asked: Asked, rows: slice) -> Asked:
    """Some of the queries, one after another."""
    return Asked._make(field[rows] for field in asked)
