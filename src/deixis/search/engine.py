"""Answers to queries over a collection: candidates of every phrase by their embeddings, then all terms exactly."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from deixis.adapters.phrasing import EmbeddedPhrases, Phrasing, embed_phrases, phrasing
from deixis.adapters.search_model import Floats, Pictures, SearchModel, Texts, whole_texts
from deixis.loading import load_search_model
from deixis.search.collection import Collection
from deixis.search.filters import Filter
from deixis.search.queries import Query, parse_query
from deixis.search.relevance import (
    Known,
    WordsInBest,
    likelihoods,
    list_ends,
    mean_of_best,
    needed_by_words,
    ranked,
    words_in_best,
    worst_met,
)
from deixis.search.spelling import suggestion
from deixis.search.stores.exact import Ids
from deixis.vision.picture_files import read_file, shown
from deixis.vision.reading import MAX_PIXELS, decode_picture

#: Pictures whose cells are compared with the words of a query of one phrase: the nearest by their embeddings.
CANDIDATES = 300
#: The same of a query of several terms: a picture that meets all phrases is near each of them, and what must not be
#: there may be in many.
CANDIDATES_OF_SEVERAL = 1000
#: Of pictures that pass a filter, those whose cells are compared: the nearest by their embeddings.
CANDIDATES_OF_FILTER = 20_000
#: Pictures that are compared at a time.
COMPARED = 2048
#: The cosine from which on two pictures count as the same; embeddings in an index are rounded.
SAME_PICTURE = 0.999


class Hit(NamedTuple):
    #: As the system has it; it need not be text.
    path: bytes
    #: From 0 to 1: how surely the picture matches; 0.5 is where the list of matches ends.
    score: float
    relevant: bool


class Words(NamedTuple):
    """The words of a query's phrases, each asked by itself; of a phrase, the noun is the last."""

    phrases: EmbeddedPhrases
    #: `(words,)`: the score that each needs to be there, and the term that it belongs to.
    needed: NDArray[np.float32]
    term: NDArray[np.intp]


class Terms(NamedTuple):
    """An embedded query: one term per phrase, or one for an example picture alone. Arrays are `(terms,)`."""

    #: With an example beside words, its embedding is added to those of the wanted phrases.
    phrases: EmbeddedPhrases
    #: Which terms must not be in a picture.
    denied: NDArray[np.bool_]
    #: What is known of the words; a term with words that the model does not know matches nothing.
    known: Known
    unknown: NDArray[np.bool_]
    #: By how much lower the threshold of presence is (`Relevance.lower_for`).
    lower: NDArray[np.float32]
    #: What is added to where the list ends (`Relevance.end_for`).
    moved: NDArray[np.float32]
    #: The words of phrases of several words.
    words: Words | None = None
    #: Equal for terms that are alternatives; None if there are no alternatives.
    either: NDArray[np.intp] | None = None
    #: The embedding of an example picture `(dim,)`.
    example: Floats | None = None
    #: Whether the first term is the example, since no phrase is wanted.
    example_alone: bool = False

    @property
    def wanted(self) -> NDArray[np.bool_]:
        """Which alternatives of the phrases are wanted."""
        texts, first = self.phrases
        return np.repeat(~self.denied, np.diff([*first, len(texts.embeddings)]))


class Ranking(NamedTuple):
    """Pictures and their log odds, best first."""

    ids: Ids
    odds: Floats
    #: `(terms,)`: which terms no picture of the collection matches.
    absent: NDArray[np.bool_]


class IgnoredExclusion(NamedTuple):
    """What a query excludes and leaves no picture out by."""

    phrase: str
    #: Whether the model does not know a word of it, or no picture of the collection matches it.
    reason: Literal["unknown", "absent"]


class Answer(NamedTuple):
    query: str
    hits: list[Hit]
    #: Words of the query that the model has never seen. Nothing matches them; an exclusion of them is ignored.
    unknown: list[str]
    #: The query with known words in their place, where there are some like them.
    suggestion: str = ""
    #: Words that the model has hardly read: it is wrong about them more often than about others.
    rare: Sequence[str] = ()
    #: Whether there are more matches than `hits` has.
    more_matches: bool = False
    ignored_exclusions: Sequence[IgnoredExclusion] = ()

    @property
    def absent(self) -> bool:
        """Whether nothing in the collection matches."""
        return not any(hit.relevant for hit in self.hits)

    @property
    def seems_foreign(self) -> bool:
        """Whether the query may be in another language: several unknown words, or one of other letters, like none."""
        return not self.suggestion and (len(self.unknown) > 1 or not "".join(self.unknown).isascii())

    def as_data(self) -> dict[str, Any]:
        hits = [{"path": shown(hit.path), "score": hit.score, "relevant": hit.relevant} for hit in self.hits]
        return {
            "query": self.query,
            "hits": hits,
            "absent": self.absent,
            "unknown_words": self.unknown,
            "suggestion": self.suggestion,
            "rare_words": list(self.rare),
            "more_matches": self.more_matches,
            "ignored_exclusions": [ignored._asdict() for ignored in self.ignored_exclusions],
        }


class SearchEngine:
    """A collection and its model.

    Args:
        index: the index' folder.
        model: an open model; None opens the one that the index was made with.

    Example, with an index as `deixis index pictures --index my-index` makes it:

    >>> from deixis.corpus import open_corpus, write_corpus
    >>> from deixis.search.indexing import index_folders
    >>> lost = write_corpus(open_corpus("scenes:8"), "pictures", pictures=True)
    >>> report = index_folders(Path("my-index"), ["pictures"], load_search_model("deixis-base"), "deixis-base")
    >>> engine = SearchEngine("my-index")
    >>> len(engine.search("a ball", count=5).hits)
    5
    """

    def __init__(self, index: str | Path, model: SearchModel | None = None) -> None:
        self.collection = Collection(index)
        self.model = model or load_search_model(self.collection.model_name)
        self.collection.check_model(self.model)

    def search(
        self, text: str, count: int = 20, *, like: str | Path | None = None, only: Filter | None = None
    ) -> Answer:
        """Find the pictures that fit a query best (`deixis.search.queries` describes its grammar).

        Args:
            like: a picture that the results should resemble, too; that file itself is no result.
            only: which pictures are looked at. Whether one matches is decided as without the filter.
        """
        query = parse_query(text, needs_words=like is None)
        example = None if like is None else self.embed_picture(os.fsencode(like))
        # One picture more says whether there are more matches.
        most = count + 1 if like is None else count + 2
        (ranking,) = self.rank(self.terms([query], [example]), most, [self.passing(only)])
        hits = self._hits(ranking, count + 1, only, like)
        return Answer(
            query.text,
            hits[:count],
            *self.unknown(query),
            more_matches=any(hit.relevant for hit in hits[count:]),
            ignored_exclusions=self.ignored_exclusions(query, ranking),
        )

    def similar(self, picture: str | Path, count: int = 20, *, only: Filter | None = None) -> Answer:
        """The pictures that resemble a picture, without that file itself."""
        row = self.embed_picture(os.fsencode(picture))
        (ranking,) = self.rank([example_terms(row)], count + 2, [self.passing(only)])
        hits = self._hits(ranking, count + 1, only, picture)
        return Answer(
            shown(os.fsencode(picture)), hits[:count], [], more_matches=any(hit.relevant for hit in hits[count:])
        )

    def terms(self, queries: Sequence[Query], examples: Sequence[Floats | None]) -> list[Terms]:
        """Embed queries together.

        Args:
            examples: for each query the embedding of a picture that the results should resemble, or None.
        """
        asked = [self.phrasings(query) for query in queries]
        words = [self._words_of(phrasings) for phrasings in asked]
        # Phrases and their words together: a run of the text branch takes about as long for one text as for ten.
        parts = embed_phrases(self.model, [phrase for part in (*asked, *words) for phrase in part]).split(
            [len(part) for part in (*asked, *words)]
        )
        relevance = self.model.relevance
        terms = []
        for query, phrasings, example, embedded, word_phrasings, embedded_words in zip(
            queries, asked, examples, parts[: len(asked)], words, parts[len(asked) :], strict=True
        ):
            (rows, text_words), first = embedded
            denied = np.repeat([False, True], [len(query.phrases), len(query.without)])
            alone = example is not None and not query.phrases
            if example is not None and alone:
                rows, text_words = np.vstack([example, rows]), np.pad(text_words, ((1, 0), (0, 0), (0, 0)))
                first, denied = np.concatenate([[0], first + 1]), np.concatenate([[False], denied])
                phrasings = [Phrasing((), 0.0, False, ()), *phrasings]
            plain = Terms(
                EmbeddedPhrases(Texts(rows, text_words), first),
                denied,
                Known.of(phrasings),
                np.array([bool(phrase.unknown) for phrase in phrasings], bool),
                np.array([relevance.lower_for.get(phrase.name, 0.0) for phrase in phrasings], np.float32),
                np.array([relevance.end_for.get(phrase.name, 0.0) for phrase in phrasings], np.float32),
                self._words(phrasings, word_phrasings, embedded_words),
                _alternatives(query),
                example,
                alone,
            )
            terms.append(plain if example is None or alone else _beside(plain, example))
        return terms

    def _words_of(self, phrasings: Sequence[Phrasing]) -> list[Phrasing]:
        """The words of phrases, where the model judges phrases by them."""
        of_phrase = self.model.relevance.present_of_phrase
        if of_phrase is None or not (of_phrase.worst_word or of_phrase.noun):
            return []
        return [phrasing(word, self.model) for phrase in phrasings if not phrase.unknown for word in phrase.words]

    def _words(
        self, phrasings: Sequence[Phrasing], words: Sequence[Phrasing], embedded: EmbeddedPhrases
    ) -> Words | None:
        if not words:
            return None
        terms = [term for term, phrase in enumerate(phrasings) if not phrase.unknown for _ in phrase.words]
        relevance = self.model.relevance
        needed = needed_by_words(relevance.present_in_phrase or relevance.present, Known.of(words))
        if relevance.present_in_phrase is None:
            # Bundles of earlier versions were fitted so.
            needed = needed - np.array([relevance.lower_for.get(word.name, 0.0) for word in words], np.float32)
        return Words(embedded, needed, np.array(terms, np.intp))

    def phrasings(self, query: Query) -> list[Phrasing]:
        """How the wanted phrases are asked for, and then the denied ones."""
        wanted = [phrasing(text, self.model) for text in query.phrases]
        return [*wanted, *(phrasing(text, self.model, excluded=True) for text in query.without)]

    def passing(self, only: Filter | None) -> Ids | None:
        """The pictures that pass a filter; None where there is no filter."""
        return None if only is None or only.is_empty else np.sort(self.collection.listed(only))

    def rank(self, queries: Sequence[Terms], count: int, within: Sequence[Ids | None] | None = None) -> list[Ranking]:
        """Rank pictures; queries of one embedding are looked up together, which is faster than one by one.

        Args:
            within: for each query the pictures that are ranked, or None for all that may be among the best.
        """
        if not len(self.collection):
            return [
                Ranking(np.empty(0, np.int64), np.empty(0, np.float32), np.zeros_like(terms.denied))
                for terms in queries
            ]
        single = [_is_single(terms) for terms in queries]
        rows = [terms.phrases.texts.embeddings for terms, alone in zip(queries, single, strict=True) if alone]
        looked_up = list(self._nearest(np.concatenate(rows), max(CANDIDATES, count))) if rows else []
        nearest = iter(looked_up)
        rankings = []
        for terms, alone, within_ids in zip(queries, single, within or [None] * len(queries), strict=True):
            if alone:
                ids = next(nearest)
                rankings.append(self._ranking(terms, ids[ids >= 0], CANDIDATES, within_ids))
            else:
                rankings.append(self._ranking(terms, self._candidates(terms, count), None, within_ids))
        return rankings

    def _nearest(self, rows: Floats, count: int) -> Ids:
        """The pictures nearest to each row `(rows, count)`; -1 where there are fewer."""
        return self.collection.nearest.search(rows, min(count, len(self.collection))).ids

    def _candidates(self, terms: Terms, count: int) -> Ids:
        """Pictures that may be the best for a query, and the best ones of every term, which say where its list ends."""
        texts, most = terms.phrases.texts, max(CANDIDATES_OF_SEVERAL, count)
        wanted, asked = terms.wanted, texts.embeddings
        if terms.example is not None and not terms.example_alone:
            # Whether the words are there is decided without the example.
            asked = np.concatenate([asked, asked[wanted] - terms.example])
        best = np.unique(self._nearest(asked, CANDIDATES))
        if wanted.any():
            rows = texts.embeddings[wanted]
            ids = np.unique(self._nearest(np.concatenate([rows, rows.mean(0, keepdims=True)]), most))
        else:
            # Only what must not be there: the pictures farthest from it.
            ids = np.unique(self._nearest(-texts.embeddings, most))
        ids = np.union1d(self._nearest_of(terms, ids[ids >= 0], most), best)
        return ids[ids >= 0]

    def _nearest_of(self, terms: Terms, ids: Ids, most: int) -> Ids:
        """The `most` of these pictures whose embeddings meet a query best."""
        if len(ids) <= most:
            return ids
        texts, first = terms.phrases
        # What must not be there counts where nothing is wanted.
        counted = np.ones_like(terms.denied) if terms.denied.all() else ~terms.denied
        worst = np.empty(len(ids), np.float32)
        for start in range(0, len(ids), COMPARED):
            part = slice(start, start + COMPARED)
            whole = np.maximum.reduceat(texts.embeddings @ self.collection.embeddings_of(ids[part]).T, first, axis=0)
            met = np.where(terms.denied[:, None], -whole, whole)[counted]
            worst[part] = worst_met(met, None if terms.either is None else terms.either[counted])
        return ids[np.argpartition(-worst, most)[:most]]

    def _ranking(self, terms: Terms, ids: Ids, best: int | None = None, within: Ids | None = None) -> Ranking:
        """Rank candidates, or the pictures of `within`; the best ones of each term must be among the first `best`."""
        if within is None:
            scores = self._scores(terms, ids)
            ends, absent = self._ends(terms, scores[:, :best], ids[:best])
        else:
            ends, absent = self._ends(terms, self._scores(terms, ids[:best]), ids[:best])
            ids = self._nearest_of(terms, within, CANDIDATES_OF_FILTER)
            scores = self._scores(terms, ids)
        order, odds = ranked(scores, ends, terms.denied, self.model.relevance, terms.either)
        return Ranking(ids[order], odds, absent)

    def _scores(self, terms: Terms, ids: Ids) -> Floats:
        """`(terms, pictures)`, by embeddings, cells and words."""
        scores = np.empty((len(terms.denied), len(ids)), np.float32)
        for start in range(0, len(ids), COMPARED):
            part = ids[start : start + COMPARED]
            pictures = Pictures(self.collection.embeddings_of(part), self.collection.cells_of(part))
            scores[:, start : start + COMPARED] = terms.phrases.scores(pictures)
        return scores

    def _ends(self, terms: Terms, scores: Floats, ids: Ids) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The score where the list of matches of each term ends, and which terms no picture matches.

        Args:
            scores: `(terms, pictures)` of `ids`.
        """
        relevance, size = self.model.relevance, len(self.collection)
        by_words, without_example = scores, None
        if terms.example is not None and not terms.example_alone:
            cosines = self.collection.embeddings_of(ids) @ terms.example
            # The example itself may be in the collection; it must not count as one of the best pictures.
            if (others := cosines < SAME_PICTURE).any():
                scores, cosines, ids = scores[:, others], cosines[others], ids[others]
            by_words = np.where(terms.denied[:, None], scores, scores - cosines)
            without_example = mean_of_best(by_words, size)
        ends = list_ends(
            scores,
            mean_of_best(scores, size),
            terms.known,
            relevance,
            terms.denied,
            without_example,
            terms.lower,
            self._words_in_best(terms, by_words, ids),
            terms.moved,
        )
        if terms.example_alone:
            ends[0] = relevance.alike
        # What is unknown matches nothing and excludes nothing, but pictures without it are not found by that alone.
        unknown = np.float32(-np.inf if (terms.denied & terms.unknown).all() else np.inf)
        ends = np.where(terms.unknown, unknown, ends)
        return ends, ends > scores.max(1)

    def _words_in_best(self, terms: Terms, scores: Floats, ids: Ids) -> WordsInBest:
        worst, noun = np.zeros((2, len(scores)), np.float32)
        if terms.words is None:
            return WordsInBest(worst, noun)
        size = len(self.collection)
        word_scores = terms.words.phrases.scores(
            Pictures(self.collection.embeddings_of(ids), self.collection.cells_of(ids))
        )
        for term in np.unique(terms.words.term).tolist():
            of_term = terms.words.term == term
            worst[term], noun[term] = words_in_best(
                scores[term], word_scores[of_term], terms.words.needed[of_term], size
            )
        return WordsInBest(worst, noun)

    def _hits(self, ranking: Ranking, count: int, only: Filter | None, example: str | Path | None = None) -> list[Hit]:
        """The first hits that pass a filter, without the example's own file."""
        example_file = None if example is None else os.fsencode(os.path.realpath(example))
        hits: list[Hit] = []
        scores = likelihoods(ranking.odds).tolist()
        for picture, own_odds, score in zip(ranking.ids.tolist(), ranking.odds.tolist(), scores, strict=True):
            paths = [path for path in self.collection.paths(picture) if only is None or only.passes_path(path)]
            hits += [Hit(path, rounded_down(score), own_odds >= 0) for path in paths if path != example_file]
            if len(hits) >= count:
                break
        return hits[:count]

    def embed_picture(self, path: bytes) -> Floats:
        """The embedding of a picture file, `(dim,)`."""
        data, _ = read_file(os.path.realpath(path))
        return self.embed_bytes(data, shown(path))

    def embed_bytes(self, data: bytes, name: str, max_pixels: int = MAX_PIXELS) -> Floats:
        """The embedding of a picture from the bytes of its file; `name` is for an `InputError`."""
        at_least = self.model.identity.at_least
        picture = decode_picture(data, name=name, max_pixels=max_pixels, at_least=at_least)
        row: Floats = self.model.embed_prepared([self.model.prepare(picture)]).embeddings[0]
        return row

    def unknown(self, query: Query) -> tuple[list[str], str, list[str]]:
        """The words of a query that the model has never seen, the query with known words in their place, rare words."""
        phrasings = self.phrasings(query)
        words, rare = (
            list(dict.fromkeys(word for group in groups for word in group))
            for groups in ([phrase.unknown for phrase in phrasings], [phrase.rare for phrase in phrasings])
        )
        return words, suggestion(query.text, words, self.model.known_words), rare

    def ignored_exclusions(self, query: Query, ranking: Ranking) -> list[IgnoredExclusion]:
        """What the query excludes and no picture matches, so that none is left out by it."""
        absent = ranking.absent[len(ranking.absent) - len(query.without) :].tolist()
        return [
            IgnoredExclusion(phrase, "unknown" if phrasing(phrase, self.model, excluded=True).unknown else "absent")
            for phrase, is_absent in zip(query.without, absent, strict=True)
            if is_absent
        ]


def example_terms(row: Floats) -> Terms:
    """The query for pictures that resemble one, by its embedding."""
    no = np.array([False])
    phrases = EmbeddedPhrases(whole_texts(row[None]), np.zeros(1, np.intp))
    zero = np.zeros(1, np.float32)
    return Terms(phrases, no, Known.of([Phrasing((), 0.0, False, ())]), no, zero, zero, example=row, example_alone=True)


def _alternatives(query: Query) -> NDArray[np.intp] | None:
    """`Terms.either` of the wanted phrases and then the denied ones, of which none is an alternative."""
    if not query.either:
        return None
    after = max(query.either) + 1
    return np.array([*query.either, *range(after, after + len(query.without))], np.intp)


def _beside(terms: Terms, example: Floats) -> Terms:
    """Add an example to the wanted phrases, so that their scores are those of the words and its cosine."""
    texts, first = terms.phrases
    rows = np.where(terms.wanted[:, None], texts.embeddings + example, texts.embeddings)
    return terms._replace(phrases=EmbeddedPhrases(Texts(rows, texts.words), first))


def _is_single(terms: Terms) -> bool:
    """Whether a query is one wanted embedding, whose nearest pictures are all that is needed."""
    beside = terms.example is not None and not terms.example_alone
    return len(terms.phrases.texts.embeddings) == 1 and not terms.denied.any() and not beside


def rounded_down(score: float) -> float:
    """A score for people, with four decimals; no match is shown as 0.5 or more."""
    return math.floor(score * 10_000) / 10_000
