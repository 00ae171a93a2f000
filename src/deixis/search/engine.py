"""Answers to queries over a collection: candidates of every phrase by their embeddings, then all terms exactly."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from deixis.adapters.scoring import scores
from deixis.adapters.search_model import Pictures, Rows, SearchModel, Texts, whole_texts
from deixis.loading import load_search_model
from deixis.search.collection import Collection
from deixis.search.phrasing import Phrasing, embed_phrases, phrasing
from deixis.search.queries import Query, parse_query
from deixis.search.relevance import likelihoods, list_ends, log_odds, mean_of_best
from deixis.search.spelling import suggestion
from deixis.search.stores.exact import Ids
from deixis.vision.picture_files import read_file, shown
from deixis.vision.reading import MAX_PIXELS, decode_picture

#: Pictures whose cells are compared with the words of a query of one phrase: the nearest by their embeddings.
CANDIDATES = 300
#: The same of a query of several terms: a picture that meets all phrases is near each of them, and what must not be
#: there may be in many.
CANDIDATES_OF_SEVERAL = 1000


class Hit(NamedTuple):
    #: As the system has it; it need not be text.
    path: bytes
    #: From 0 to 1: how surely the picture matches; 0.5 is where the list of matches ends.
    score: float
    relevant: bool


class Terms(NamedTuple):
    """A query as the model has it: texts, which of them are pictures without words, and which must not be there."""

    texts: Texts
    examples: NDArray[np.bool_]
    denied: NDArray[np.bool_]
    #: What is known of the words of each (`Phrasing`); those with words that the model does not know match nothing.
    commonness: NDArray[np.float32]
    several: NDArray[np.bool_]
    unknown: NDArray[np.bool_]


class Ranking(NamedTuple):
    """Pictures and their log odds, best first."""

    ids: Ids
    odds: Rows


class Answer(NamedTuple):
    query: str
    hits: list[Hit]
    #: Words of the query that the model has never seen: with one of them nothing is a match.
    unknown: list[str]
    #: The query with known words in their place, where there are some like them.
    suggestion: str = ""

    @property
    def absent(self) -> bool:
        """Whether nothing in the collection matches."""
        return not any(hit.relevant for hit in self.hits)

    def as_data(self) -> dict[str, Any]:
        hits = [{"path": shown(hit.path), "score": hit.score, "relevant": hit.relevant} for hit in self.hits]
        return {
            "query": self.query,
            "hits": hits,
            "absent": self.absent,
            "unknown_words": self.unknown,
            "suggestion": self.suggestion,
        }


class SearchEngine:
    """A collection and its model.

    Args:
        index: the index' folder.
        model: an open model; None opens the one that the index was made with.
    """

    def __init__(self, index: str | Path, model: SearchModel | None = None) -> None:
        self.collection = Collection(index)
        self.model = model or load_search_model(self.collection.model_name)
        self.collection.check_model(self.model)

    def search(self, text: str, count: int = 20, *, like: str | Path | None = None) -> Answer:
        """The pictures that fit a query best (`deixis.search.queries` tells its grammar).

        Args:
            like: a picture that what is found should resemble, too.
        """
        query = parse_query(text, needs_phrase=like is None)
        example = None if like is None else self.embed_picture(os.fsencode(like))
        (ranking,) = self.rank(self.terms([query], [example]), count)
        return Answer(query.text, self._hits(ranking, count), *self.unknown(query))

    def similar(self, picture: str | Path, count: int = 20) -> Answer:
        """The pictures that resemble a picture, without that file itself."""
        row = self.embed_picture(os.fsencode(picture))
        (ranking,) = self.rank([example_terms(row)], count + 1)
        own = os.fsencode(os.path.realpath(picture))
        hits = [hit for hit in self._hits(ranking, count + 1) if hit.path != own]
        return Answer(shown(os.fsencode(picture)), hits[:count], [])

    def terms(self, queries: Sequence[Query], examples: Sequence[Rows | None]) -> list[Terms]:
        """Queries, each with the row of a picture that what is found should resemble or None, encoded together."""
        asked = [self.phrasings(query) for query in queries]
        texts = embed_phrases(self.model, [each for own in asked for each in own])
        terms, place = [], 0
        for query, own, example in zip(queries, asked, examples, strict=True):
            mine = slice(place, place := place + len(own))
            rows, words = texts.rows[mine], texts.words[mine]
            if example is not None:
                rows, words = np.vstack([example, rows]), np.pad(words, ((1, 0), (0, 0), (0, 0)))
                own = [Phrasing((), 0.0, False, ()), *own]
            kinds = np.repeat([0, 1, 2], [example is not None, len(query.phrases), len(query.without)])
            terms.append(
                Terms(
                    Texts(rows, words),
                    kinds == 0,
                    kinds == 2,
                    np.array([each.commonness for each in own], np.float32),
                    np.array([each.several for each in own], bool),
                    np.array([bool(each.unknown) for each in own], bool),
                )
            )
        return terms

    def phrasings(self, query: Query) -> list[Phrasing]:
        """How its phrases are asked, and then those of what must not be there."""
        return [phrasing(text, self.model) for text in (*query.phrases, *query.without)]

    def rank(self, queries: Sequence[Terms], count: int) -> list[Ranking]:
        """Answer queries; those of one term are looked up together, which costs less than one by one."""
        if not len(self.collection):
            return [Ranking(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
        plain = [terms.texts.rows for terms in queries if len(terms.examples) == 1]
        found = iter(self._nearest(np.concatenate(plain), max(CANDIDATES, count)) if plain else ())
        rankings = []
        for terms in queries:
            alone = len(terms.examples) == 1
            nearest = next(found)[None] if alone else self._nearest(terms.texts.rows, CANDIDATES)
            rankings.append(self._ranking(terms, nearest, count))
        return rankings

    def _nearest(self, rows: Rows, count: int) -> Ids:
        """The pictures nearest to each row `(rows, count)`; -1 where there are fewer."""
        return self.collection.nearest.search(rows, min(count, len(self.collection))).ids

    def _candidates(self, terms: Terms, count: int) -> Ids:
        """Of what is near any of several terms, those whose embeddings meet the worst met one best."""
        wanted, most = terms.texts.rows[~terms.denied], max(CANDIDATES_OF_SEVERAL, count)
        ids = np.unique(self._nearest(np.concatenate([wanted, wanted.mean(0, keepdims=True)]), most))
        ids = ids[ids >= 0]
        if len(ids) <= most:
            return ids
        worst = (wanted @ self.collection.rows_of(ids).T).min(0)
        kept: Ids = np.sort(ids[np.argpartition(-worst, most)[:most]])
        return kept

    def _ranking(self, terms: Terms, nearest: Ids, count: int) -> Ranking:
        """Rank the candidates of a query.

        Args:
            nearest: the pictures nearest to each term `(terms, pictures)`, which the term's best are among; for a query
                of one term they are also the candidates.
        """
        ids = nearest[0] if len(nearest) == 1 else np.union1d(self._candidates(terms, count), nearest)
        ids = ids[ids >= 0]
        found = scores(terms.texts, Pictures(self.collection.rows_of(ids), self.collection.cells_of(ids)))
        ends = self._ends(terms, found if len(nearest) > 1 else found[:, :CANDIDATES])
        odds = log_odds(found, ends, terms.denied, self.model.relevance.slope)
        order = np.argsort(-odds, kind="stable")
        return Ranking(ids[order], odds[order])

    def _ends(self, terms: Terms, found: Rows) -> NDArray[np.float32]:
        """Where the list of matches of each term ends."""
        relevance, best = self.model.relevance, mean_of_best(found, len(self.collection))
        ends = list_ends(found, best, terms.commonness, terms.several, relevance)
        ends = np.where(terms.examples, np.float32(relevance.alike), ends)
        return np.where(terms.unknown, np.float32(np.inf), ends)

    def _hits(self, ranking: Ranking, count: int) -> list[Hit]:
        hits: list[Hit] = []
        scores = likelihoods(ranking.odds).tolist()
        for picture, own_odds, score in zip(ranking.ids.tolist(), ranking.odds.tolist(), scores, strict=True):
            hits += [Hit(path, rounded_down(score), own_odds >= 0) for path in self.collection.paths(picture)]
            if len(hits) >= count:
                break
        return hits[:count]

    def embed_picture(self, path: bytes) -> Rows:
        """The row of a picture file, `(dim,)`."""
        data, _ = read_file(os.path.realpath(path))
        return self.embed_bytes(data, shown(path))

    def embed_bytes(self, data: bytes, name: str, max_pixels: int = MAX_PIXELS) -> Rows:
        """The row of a picture from the bytes of its file; `name` is what an `InputError` calls it."""
        at_least = self.model.identity.at_least
        picture = decode_picture(data, name=name, max_pixels=max_pixels, at_least=at_least)
        row: Rows = self.model.embed_prepared([self.model.prepare(picture)]).rows[0]
        return row

    def unknown(self, query: Query) -> tuple[list[str], str]:
        """The words of a query that the model has never seen, and the query with known words in their place."""
        words = list(dict.fromkeys(word for each in self.phrasings(query) for word in each.unknown))
        return words, suggestion(query.text, words, self.model.known_words)


def example_terms(row: Rows) -> Terms:
    """The query for what resembles a picture, by its row."""
    no = np.array([False])
    return Terms(whole_texts(row[None]), ~no, no, np.zeros(1, np.float32), no, no)


def rounded_down(score: float) -> float:
    """A score for people, with four decimals; what is no match stays below 0.5."""
    return math.floor(score * 10_000) / 10_000
