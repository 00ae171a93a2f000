"""Fitting the thresholds of `relevance.py` on the validation pictures of captioned corpora.

A picture matches a query if one of its captions has all the query's words (`caption_queries.py`). Training pictures
with labelled boxes, if given, show all that they show of their labels: these decide about the labels' names.
`list_end_calibration.py` fits where lists end; here is fitted whether a thing is there at all:

present     a logistic regression between queries that some picture of a collection matches and queries whose noun no
            caption of the collection mentions, in collections of several sizes; the largest have training pictures.
            Absent words are rarer, since they come from more captions; so that rarity alone does not decide, single
            words of either kind are weighted to be equally common. Rare words are a group of their own: to call them
            present where they are not counts more, as the model hardly knows them.
            How far the 20 best pictures fall below the five best counts for single words, not for words of phrases,
            which have a threshold of their own; it was fitted in collections of 200 pictures and more.
            For a noun that many pictures match and that would still be called absent, the threshold is lower
            (`lower_for`); for a label it is between collections with few pictures of it and with none.
            Phrases of several words have their own regression. Pairs of a modifier and a noun that captions have, but
            never together ("a purple elephant"), count as absent in it, with a small weight (`PAIR_WEIGHT`): most are
            still called present, as a larger weight calls more right phrases absent.

What other values of the constants do on validation pictures is in results/search/validation.json
(`benchmarks/calibration_choices.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from deixis.adapters.bundles import Relevance, Threshold
from deixis.adapters.phrasing import HARDLY_KNOWN, distinct_words, name_of, phrasing, telling_words, word_rarity
from deixis.adapters.search_model import Floats, Pictures, SearchModel
from deixis.corpus import Image
from deixis.errors import DeixisError
from deixis.search.asked_collections import (
    SMALLER,
    Asked,
    Collection,
    Labelled,
    ask_collections,
    ask_labels,
    label_words,
    of_pictures,
    query_scores,
)
from deixis.search.caption_queries import Bools, Tokens, is_name
from deixis.search.list_end_calibration import (
    fit_end,
    fit_end_for,
    fit_end_for_labels,
    fit_slope,
    fit_without,
)
from deixis.search.relevance import WordsInBest, fall, needed_by_words, threshold, words_in_best
from deixis.text.plurals import singular
from deixis.text.tokens import tokens_of

#: A single word is there if so many pictures match it.
WORD_MATCHES = 3
#: How many pictures must match a noun for its threshold to be lowered, and by how much more than would suffice here.
LOWER_MATCHES, LOWER_MARGIN = 5, 0.1
#: What thresholds depend on besides the best pictures' score (fields of `Threshold`): those of words by themselves, of
#: words of phrases, and of phrases.
OF_WORDS = ("fall", "commonness", "rarity", "rarity_times_usual")
OF_WORDS_IN_PHRASES = OF_WORDS[1:]
OF_PHRASES = ("noun_commonness", "worst_word", "noun")
#: How much rare words count beside others, and how much worse it is to call one absent where it is there than to call
#: it present where it is not.
RARE_WEIGHT, COST_OF_RARE = 0.5, 0.3
#: Pictures by which it is decided what words usually score, of which share they score less, and for which words.
USUAL_PICTURES, USUAL_SHARE, LEAST_RARITY = 1000, 0.9, 0.02
#: Pairs of a modifier and a noun that are drawn, how many phrases must have the modifier, how many pictures must match
#: each of the two, and how much such pairs count beside phrases whose noun is absent.
PAIRS, MODIFIED, PAIR_MATCHES, PAIR_WEIGHT = 1200, 4, 5, 0.1
#: How many pictures must show a label for its threshold to be fitted to it. The size of the collections in which it is
#: looked for, how many pictures of it few and many are, and how many collections of each kind are drawn. Where the
#: threshold is between what the best pictures have on average in collections without it (0) and with few (1).
OWN_MATCHES, DRAWN_SIZE, DRAWN_FEW, DRAWN_MANY, DRAWS, BETWEEN = 15, 500, 3, 10, 8, 0.35
#: Of pairs of pictures, the share that is alike.
ALIKE = 0.01


def fitted(
    model: SearchModel,
    pictures: Sequence[Pictures],
    images: Sequence[Sequence[Image]],
    queries: Sequence[Tokens],
    random: np.random.Generator,
    validation_counts: Sequence[int] | None = None,
    labelled: Labelled | None = None,
    rare: Sequence[Tokens] = (),
) -> Relevance:
    """Fit on collections of pictures, whose images have captions, and on smaller ones drawn from them.

    Args:
        validation_counts: how many of each collection's pictures are validation pictures, the first ones; the others
            are training pictures. None: all.
        labelled: training pictures with labels.
        rare: rare words that are asked for, too (`rare_words`).
    """
    if not all(map(len, images)):
        raise DeixisError("there are too few validation pictures and phrases to calibrate on")
    counts = [len(own_images) for own_images in images] if validation_counts is None else validation_counts
    model.relevance = msgspec.structs.replace(model.relevance, usual=usual_scores(model, pictures, counts, random))
    # What is asked for in the end must not depend on the order of the captions: pairs come last.
    phrases = list(dict.fromkeys([*queries, *rare]))
    queries = [*phrases, *(pairs := modified_pairs(queries, random))]
    words = sorted({word for query in queries for word in telling_words(query)})
    larger = ask_collections(model, pictures, images, queries, words)
    whole = [collection.of_pictures(np.arange(count)) for collection, count in zip(larger, counts, strict=True)]
    smaller = [
        collection.of_pictures(random.permutation(collection.asked.size)[:SMALLER])
        for collection in whole
        if collection.asked.size > SMALLER
    ]
    with_training = [collection for collection in larger if collection.asked.size > max(counts)]
    groups = [group for collection in (*whole, *smaller) for group in single_words(collection)]
    # The model has learned the rare words of training pictures by heart.
    groups += [single_words(collection)[0] for collection in with_training]
    present, in_phrase = fit_present(groups, OF_WORDS), fit_present(groups, OF_WORDS_IN_PHRASES)
    without_pairs = slice(0, len(phrases))
    whole_asked, larger_asked, smaller_asked = (
        [collection.asked.of(without_pairs) for collection in some] for some in (whole, larger, smaller)
    )
    end = fit_end([*whole_asked, *smaller_asked])
    end_for = fit_end_for(larger_asked, queries, end)
    least = fit_lower([*whole_asked, *larger_asked], queries, present)
    lower_for = {noun: lower for noun, lower in least.items() if lower > 0}
    of_labels = ask_labels(model, labelled) if labelled is not None else None
    if labelled is not None and of_labels is not None:
        end_for |= fit_end_for_labels(of_labels.asked, labelled.labels, end)
        of_words = fit_lower_of_labels(of_labels, labelled.labels, present, None, random)
        lower_for |= {name: max(lower, least.get(name, lower)) for name, lower in of_words.items()}
    groups = [
        group
        for collection in (*whole, *smaller, *with_training)
        for group in phrases_of(
            collection, queries, words, len(pairs), needed_by_words(in_phrase, collection.words.known)
        )
    ]
    present_of_phrase = fit_present(groups, OF_PHRASES) if any(group.can_be_fitted for group in groups) else None
    if labelled is not None and of_labels is not None and present_of_phrase is not None:
        lower_for |= fit_lower_of_labels(of_labels, labelled.labels, present_of_phrase, in_phrase, random)
    rows = np.concatenate([embedded.embeddings[:count] for embedded, count in zip(pictures, counts, strict=True)])
    return Relevance(
        present,
        end,
        slope=fit_slope([*whole_asked, *smaller_asked], end),
        alike=float(np.quantile((rows @ rows.T)[np.triu_indices(len(rows), 1)], 1 - ALIKE)),
        without=fit_without(whole_asked, end),
        lower_for=lower_for,
        present_of_phrase=present_of_phrase,
        present_in_phrase=in_phrase,
        end_for={name: moved for name, moved in sorted(end_for.items()) if moved},
        usual=model.relevance.usual,
    )


def usual_scores(
    model: SearchModel, pictures: Sequence[Pictures], counts: Sequence[int], random: np.random.Generator
) -> bytes:
    """What each word of the vocabulary scores in all but a tenth of the pictures (`Relevance.usual`).

    Of training pictures, where there are some: validation pictures are asked for the same words later.
    """
    if model.known_words is None:
        return b""
    firsts = [
        count if len(embedded.embeddings) > count else 0 for embedded, count in zip(pictures, counts, strict=True)
    ]
    embeddings = np.concatenate([embedded.embeddings[first:] for embedded, first in zip(pictures, firsts, strict=True)])
    cells = np.concatenate([embedded.cells[first:] for embedded, first in zip(pictures, firsts, strict=True)])
    drawn = random.permutation(len(embeddings))[:USUAL_PICTURES]
    words = model.known_words.words
    asked = [
        (place, phrasing(word, model))
        for place, word in enumerate(words)
        if is_name(word) and word_rarity(word, model.known_words) >= LEAST_RARITY
    ]
    usual = np.zeros(len(words), np.int8)
    if asked:
        scores = query_scores(model, [phrase for _, phrase in asked], Pictures(embeddings[drawn], cells[drawn]))
        hundredths = np.rint(100 * np.quantile(scores, USUAL_SHARE, axis=1))
        usual[[place for place, _ in asked]] = np.clip(hundredths, -127, 127)
    return usual.tobytes()


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

    asked: Asked
    in_best: WordsInBest
    there: Bools
    absent: Bools
    weight: float = 1.0
    #: How much worse it is to call absent what is there than to call present what is not.
    cost_of_absent: float = 1.0
    equally_common: bool = False

    @property
    def table(self) -> dict[str, Floats]:
        """What `Threshold` multiplies, by its names; `(queries,)` each."""
        best, known = self.asked.best, self.asked.known
        zero = np.zeros_like(best.few)
        in_best = {"worst_word": self.in_best.worst, "noun": self.in_best.noun}
        features = {"fall": fall(best, known), **known._asdict(), **in_best}
        return {name: zero + values for name, values in features.items()}

    @property
    def can_be_fitted(self) -> bool:
        return bool(self.there.any() and self.absent.any())


def single_words(collection: Collection) -> list[Presences]:
    """Words that the model knows well, and rare ones."""
    asked = collection.asked.of(~collection.asked.known.several)
    counts, absent, rare = asked.matches.sum(1), ~asked.mentioned, asked.known.rarity >= HARDLY_KNOWN
    # A word of few captions need not mean what a query means by it; for a rare one, more would be too many.
    known_well = Presences(asked, WordsInBest(), (counts >= WORD_MATCHES) & ~rare, absent & ~rare, equally_common=True)
    return [known_well, Presences(asked, WordsInBest(), (counts > 0) & rare, absent & rare, RARE_WEIGHT, COST_OF_RARE)]


def phrases_of(
    collection: Collection, queries: Sequence[Tokens], words: Sequence[str], pairs: int, needed: Floats
) -> list[Presences]:
    """Phrases against phrases whose noun is absent, and phrases of two words against the last `pairs` of the queries.

    Args:
        needed: what each word needs, `(words,)`.
    """
    asked, by_itself = collection
    places = np.flatnonzero(asked.known.several)
    of_query = word_rows([queries[place] for place in places.tolist()], words)
    in_best = collection_words_in_best(collection, places, of_query, needed)
    chosen = asked.of(places)
    counts, there = by_itself.matches.sum(1), np.asarray(chosen.matches.any(1))
    is_pair = places >= len(queries) - pairs
    two, both = (
        np.array([(len(rows) == 2, counts[rows].min() >= PAIR_MATCHES) for rows in of_query], bool).reshape(-1, 2).T
    )
    return [
        Presences(chosen, in_best, there & ~is_pair, ~chosen.mentioned & ~is_pair),
        Presences(chosen, in_best, there & two & both & ~is_pair, ~there & both & is_pair, PAIR_WEIGHT),
    ]


def word_rows(queries: Sequence[Tokens], words: Sequence[str]) -> list[list[int]]:
    """For each query where its words are among all, the noun last."""
    places = {word: place for place, word in enumerate(words)}
    return [[places[word] for word in distinct_words(telling_words(query))] for query in queries]


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
    both = np.zeros((2, len(rows)), np.float32)
    for index, (row, of_words) in enumerate(zip(rows.tolist(), of_query, strict=True)):
        words = list(of_words)
        both[:, index] = words_in_best(asked.scores[row], by_itself.scores[words], needed[words], asked.size)
    worst, noun = both
    return WordsInBest(worst, noun)


def fit_present(groups: Sequence[Presences], features: Sequence[str]) -> Threshold:
    """What the best pictures' mean score must reach for a thing to be there.

    Args:
        features: fields of `Threshold`.
    """
    from sklearn.linear_model import LogisticRegression

    table, present, weights = [], [], []
    for group in groups:
        if group.can_be_fitted:
            columns = np.stack([group.asked.best.few, *(group.table[name] for name in features)], 1).astype(np.float64)
            shares = [np.full(kind.sum(), 1 / kind.sum()) for kind in (group.there, group.absent)]
            if group.equally_common:
                common, other = (group.asked.known.commonness[kind] for kind in (group.there, group.absent))
                shares = [alike_weights(common, other), alike_weights(other, common)]
            table += [columns[group.there], columns[group.absent]]
            present += [np.ones(group.there.sum()), np.zeros(group.absent.sum())]
            weights += [group.cost_of_absent * group.weight * shares[0], group.weight * shares[1]]
    if not table:
        raise DeixisError("there are too few validation pictures and phrases to calibrate on")
    rows = np.concatenate(table)
    # A feature that is the same everywhere says nothing; its coefficient would be left to chance.
    used = rows.std(0) > 0
    used[0] = True
    model = LogisticRegression(C=1e6, max_iter=1000)
    model.fit(rows[:, used], np.concatenate(present), sample_weight=1000 * np.concatenate(weights))
    slope, *coefficients = model.coef_[0].tolist()
    if slope <= 0:
        raise DeixisError("the model's scores do not separate phrases that pictures show from phrases that they do not")
    names = [name for name, in_use in zip(features, used[1:], strict=True) if in_use]
    moved = {name: -coefficient / slope for name, coefficient in zip(names, coefficients, strict=True)}
    return Threshold(-float(model.intercept_[0]) / slope, **moved)


def fit_lower(collections: Sequence[Asked], queries: Sequence[Tokens], present: Threshold) -> dict[str, float]:
    """By how much the threshold must be lower, at least, for nouns that many pictures match to be called present.

    Below 0: it could be higher.
    """
    lower: dict[str, float] = {}
    for asked in collections:
        lack = threshold(present, asked.best, asked.known) - asked.best.few
        frequent = (asked.matches.sum(1) >= LOWER_MATCHES) & (asked.heads >= LOWER_MATCHES) & ~asked.known.several
        for row in np.flatnonzero(frequent).tolist():
            noun, least = singular(queries[row][-1]), round(float(lack[row]) + LOWER_MARGIN, 4)
            lower[noun] = max(lower.get(noun, least), least)
    return dict(sorted(lower.items()))


def fit_lower_of_labels(
    collection: Collection,
    labels: Sequence[str],
    present: Threshold,
    in_phrase: Threshold | None,
    random: np.random.Generator,
) -> dict[str, float]:
    """By how much the threshold is lower for labels that enough pictures show.

    Args:
        present: of single words, or of phrases.
        in_phrase: what words of phrases need; None: labels of one word are looked at, not those of several.
    """
    asked, words = collection.asked, label_words(labels)
    lower: dict[str, float] = {}
    for row, label in enumerate(labels):
        if asked.matches[row].sum() < OWN_MATCHES or bool(asked.known.several[row]) != (in_phrase is not None):
            continue
        of_phrase = None
        if in_phrase is not None:
            needed = needed_by_words(in_phrase, collection.words.known)
            of_phrase = OfPhrase(word_rows([tokens_of(label)], words)[0], needed)
        lower[name_of(telling_words(tokens_of(label)))] = round(
            lack_between(collection, row, present, random, of_phrase), 4
        )
    return lower


class OfPhrase(NamedTuple):
    """What `lack_between` needs for a phrase of several words."""

    #: Its `word_rows`, and what all words need.
    words: list[int]
    needed: Floats


def lack_between(
    collection: Collection, row: int, present: Threshold, random: np.random.Generator, phrase: OfPhrase | None = None
) -> float:
    """By how much a threshold has to be lower to be between collections without matches and with few.

    Where the scores do not separate these, what many pictures match is called present.
    """
    query = collection.asked.of(np.arange(len(collection.asked.scores)) == row)
    matching, others = np.flatnonzero(query.matches[0]), np.flatnonzero(~query.matches[0])
    lacks: dict[int, list[float]] = {0: [], DRAWN_FEW: [], DRAWN_MANY: []}
    for count in [*lacks] * DRAWS:
        some = np.concatenate([random.permutation(matching)[:count], random.permutation(others)[: DRAWN_SIZE - count]])
        drawn, in_best = of_pictures(query, some), WordsInBest()
        if phrase is not None:
            both = Collection(drawn, of_pictures(collection.words, some))
            in_best = collection_words_in_best(both, np.zeros(1, np.intp), [phrase.words], phrase.needed)
        needed = threshold(present, drawn.best, drawn.known, in_best)
        lacks[count].append(float((needed - drawn.best.few)[0]))
    none, few, many = (float(np.mean(some)) for some in lacks.values())
    return max(none + BETWEEN * (few - none), many + LOWER_MARGIN)


def alike_weights(first: Floats, others: Floats, bins: int = 10) -> NDArray[np.float64]:
    """Weights that give a group the distribution that it shares with others, by bins of equal counts; they sum to 1."""
    edges = np.quantile(np.concatenate([first, others]), np.linspace(0, 1, bins + 1)[1:-1])
    bin_of, bin_of_others = (np.digitize(values, edges) for values in (first, others))
    counts, other_counts = (np.bincount(members, minlength=bins) for members in (bin_of, bin_of_others))
    # As shares, so that the smaller group does not decide how much the larger one counts.
    shared = np.minimum(counts / len(first), other_counts / len(others))
    weights = (shared / np.maximum(counts, 1))[bin_of]
    return np.asarray(weights / weights.sum() if weights.sum() else np.full(len(first), 1 / len(first)))
