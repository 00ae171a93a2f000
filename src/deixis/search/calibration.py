"""Fitting the two thresholds of `relevance.py` on the validation pictures of captioned corpora.

Queries are nouns and noun phrases of captions. A picture matches a query if one of its captions has all the query's
words, in either number. Captions leave things out, so some of what counts as no match or as absent is there.

end         best mean F1 of what is called a match, as a share of what the best cut of each query reaches. For single
            nouns that many pictures show, it is moved towards where their own lists end best (`end_for`); as these
            need many pictures, training pictures count here, too.
present     a logistic regression between queries that some picture of a collection matches and queries whose noun no
            caption of the collection mentions, in collections of several sizes; the largest have training pictures.
            Absent words are rarer, since they come from more captions; so that rarity alone does not decide, single
            words of either kind are weighted to be equally common. Of a noun that many pictures match and that would
            still be called absent, the threshold is lower (`lower_for`). Phrases have their own regression, in which
            calling absent what is there counts twice. It also has to reject pairs of a modifier and a noun that
            captions have, but never together ("a purple elephant").
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
from deixis.adapters.phrasing import FUNCTION_WORDS, KINDS, NUMBERS, Phrasing, embed_phrases, phrasing, telling_words
from deixis.adapters.search_model import Floats, Pictures, SearchModel
from deixis.corpus import Image
from deixis.errors import DeixisError
from deixis.search.relevance import best_count, mean_of_best, threshold, worst_word
from deixis.text.chunker import Chunker
from deixis.text.plurals import singular
from deixis.text.tokens import has_content, tokens_of, tokens_of_captions
from deixis.text.vocabulary import Vocabulary

Tokens = tuple[str, ...]
Bools = NDArray[np.bool_]

#: Phrases of one origin at most.
PHRASES = 1500
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
COST_OF_ABSENT = 2.0
#: Pairs of a modifier and a noun that are drawn, how many phrases must have the modifier, how many pictures must match
#: each of the two, and how much such pairs count beside phrases whose noun is absent.
PAIRS, MODIFIED, PAIR_MATCHES, PAIR_WEIGHT = 1200, 4, 5, 0.3
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


def fitted(
    model: SearchModel,
    pictures: Sequence[Pictures],
    images: Sequence[Sequence[Image]],
    queries: Sequence[Tokens],
    random: np.random.Generator,
    validation_counts: Sequence[int] | None = None,
) -> Relevance:
    """Fit on collections of pictures, whose images have captions, and on smaller ones drawn from them.

    Args:
        validation_counts: how many of each collection's pictures are validation pictures, the first ones; the others
            are training pictures. None: all.
    """
    if not all(map(len, images)):
        raise DeixisError("there are too few validation pictures and phrases to calibrate on")
    validation_counts = (
        [len(collection_images) for collection_images in images] if validation_counts is None else validation_counts
    )
    queries = [*queries, *(pairs := modified_pairs(queries, random))]
    words = sorted({word for query in queries for word in telling_words(query)})
    larger = [
        Collection(
            ask(model, *collection, queries), ask(model, *collection, [(word,) for word in words], count_heads=False)
        )
        for collection in zip(pictures, images, strict=True)
    ]
    whole = [
        collection.of_pictures(np.arange(count)) for collection, count in zip(larger, validation_counts, strict=True)
    ]
    smaller = [collection.of_pictures(random.permutation(collection.asked.size)[:SMALLER]) for collection in whole]
    smaller = [collection for collection, of in zip(smaller, whole, strict=True) if of.asked.size > SMALLER]
    sizes = [*whole, *smaller, *(collection for collection in larger if collection.asked.size > max(validation_counts))]
    present = fit_present([single_words(collection) for collection in sizes])
    groups = [group for collection in sizes for group in phrases_of(collection, queries, words, len(pairs), present)]
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
    return Relevance(
        present,
        end,
        slope=fit_slope(collections, end),
        alike=float(np.quantile(alike, 1 - ALIKE)),
        without=fit_without(whole_asked, end),
        lower_for=fit_lower([*whole_asked, *larger_asked], queries, present),
        present_of_phrase=fit_present(groups) if any(group.can_be_fitted for group in groups) else None,
        end_for=fit_end_for(larger_asked, queries, end),
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

    #: `(queries, 3)`: the mean score of the best pictures, commonness, and `worst_word`.
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
    known = np.stack([asked.best, asked.commonness, np.zeros_like(asked.best)], 1)
    # A word of few captions need not mean what a query means by it.
    return Presences(known, asked.matches.sum(1) >= WORD_MATCHES, ~asked.mentioned, equally_common=True)


def phrases_of(
    collection: Collection, queries: Sequence[Tokens], words: Sequence[str], pairs: int, present: Threshold
) -> list[Presences]:
    """Phrases against phrases whose noun is absent, and phrases of two words against the last `pairs` of the queries.

    Args:
        present: of single words.
    """
    asked, by_itself = collection
    rows, places = {word: row for row, word in enumerate(words)}, np.flatnonzero(asked.several)
    of_query = [[rows[word] for word in dict.fromkeys(telling_words(queries[index]))] for index in places.tolist()]
    needed = threshold(present, by_itself.best, by_itself.commonness, by_itself.several)
    count = best_count(asked.size, asked.size)
    worst = np.zeros(len(places))
    for index, (row, word_rows) in enumerate(zip(places.tolist(), of_query, strict=True)):
        best = np.argpartition(-asked.scores[row], count - 1)[:count]
        worst[index] = worst_word(by_itself.scores[word_rows][:, best], needed[word_rows])
    known = np.stack([asked.best[places], asked.commonness[places], worst], 1)
    counts, there = by_itself.matches.sum(1), np.asarray(asked.matches.any(1))[places]
    is_pair = places >= len(queries) - pairs
    two, both = (
        np.array(
            [(len(rows_of_words) == 2, counts[rows_of_words].min() >= PAIR_MATCHES) for rows_of_words in of_query], bool
        )
        .reshape(-1, 2)
        .T
    )
    return [
        Presences(known, there & ~is_pair, ~asked.mentioned[places] & ~is_pair, 1.0, COST_OF_ABSENT),
        Presences(known, there & two & both & ~is_pair, ~there & both & is_pair, PAIR_WEIGHT, COST_OF_ABSENT),
    ]


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
    slope, common, worst = model.coef_[0].tolist()
    if slope <= 0:
        raise DeixisError("the model's scores do not separate phrases that pictures show from phrases that they do not")
    base = -float(model.intercept_[0]) / slope
    return Threshold(base, commonness=-common / slope, worst_word=-worst / slope)


def fit_end_for(collections: Sequence[Asked], queries: Sequence[Tokens], end: Threshold) -> dict[str, float]:
    """By how much the end of the list is moved for single nouns that enough pictures match."""
    near = np.exp(-0.5 * ((MOVED[:, None] - MOVED) / MOVED_NEAR) ** 2)
    near /= near.sum(0)
    gains = defaultdict[str, NDArray[np.float64]](lambda: np.zeros(len(MOVED)))
    for asked in collections:
        chosen = (asked.matches.sum(1) >= NOUN_MATCHES) & ~asked.several
        if not chosen.any():
            continue
        nouns, table = asked.of(chosen), cut_table(asked.of(chosen))
        ends = _end(end, nouns)
        by_distance = np.stack([f1_at(table, nouns, ends + distance) for distance in MOVED], 1) @ near
        # Where the list of all nouns ends best is not their own doing: training pictures score higher.
        usual = float(MOVED[by_distance.mean(0).argmax()])
        for row, curve in zip(np.flatnonzero(chosen).tolist(), by_distance, strict=True):
            gains[singular(queries[row][-1])] += np.interp(MOVED + usual, MOVED, curve)
    moved = {
        noun: float(MOVED[(gain - MOVED_COST * (MOVED / 0.2) ** 2).argmax()]) for noun, gain in sorted(gains.items())
    }
    return {noun: distance for noun, distance in moved.items() if distance}


def fit_lower(collections: Sequence[Asked], queries: Sequence[Tokens], present: Threshold) -> dict[str, float]:
    """By how much the threshold is lower for nouns that would be called absent although many pictures match."""
    lower: dict[str, float] = {}
    for asked in collections:
        lack = threshold(present, asked.best, asked.commonness, asked.several) - asked.best
        missed = (lack > -LOWER_MARGIN) & (asked.heads >= LOWER_MATCHES) & ~asked.several
        for row in np.flatnonzero(missed).tolist():
            noun = singular(queries[row][-1])
            lower[noun] = max(lower.get(noun, 0.0), round(float(lack[row]) + LOWER_MARGIN, 4))
    return dict(sorted(lower.items()))


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


def cut_table(asked: Asked) -> NDArray[np.float64]:
    """F1 if the first 0, 1, … pictures of each query are called matches, `(queries, pictures + 1)`.

    It is that of the matches that captions would mention if they mentioned all, 1 / `MENTIONED` times as many.
    """
    order = np.argsort(-asked.scores, 1, kind="stable")
    right = np.cumsum(np.take_along_axis(asked.matches, order, 1), 1)
    f1 = 2 * right / (MENTIONED * np.arange(1, asked.size + 1) + asked.matches.sum(1, keepdims=True))
    return np.concatenate([np.zeros((len(f1), 1)), f1], 1)


def f1_at(table: NDArray[np.float64], asked: Asked, ends: Floats) -> NDArray[np.float64]:
    """F1 of each query if the list ends at a score; the best picture is always a match."""
    counts = np.maximum(1, (asked.scores >= ends[:, None]).sum(1))
    return np.asarray(table[np.arange(len(table)), counts])


def _end(end: Threshold, asked: Asked) -> Floats:
    return threshold(end, asked.best, asked.commonness, asked.several)


def ask(
    model: SearchModel,
    pictures: Pictures,
    images: Sequence[Image],
    queries: Sequence[Tokens],
    count_heads: bool = True,
) -> Asked:
    """Ask queries of a collection and look up in the captions what matches."""
    asked = [phrasing(" ".join(query), model) for query in queries]
    scores = query_scores(model, asked, pictures)
    return Asked(
        scores,
        caption_matches(images, queries),
        caption_matches(images, [query[-1:] for query in queries]),
        head_counts(images, queries) if count_heads else np.zeros(len(queries), np.int64),
        mean_of_best(scores, len(images)),
        np.array([asked_phrasing.commonness for asked_phrasing in asked], np.float32),
        np.array([asked_phrasing.several for asked_phrasing in asked], bool),
    )


def query_scores(model: SearchModel, asked: Sequence[Phrasing], pictures: Pictures, batch: int = 256) -> Floats:
    """`(queries, pictures)`, as search scores them."""
    parts = [asked[start : start + batch] for start in range(0, len(asked), batch)]
    return np.concatenate([embed_phrases(model, part).scores(pictures) for part in parts])


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
