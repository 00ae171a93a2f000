"""Answers to queries over a collection: a few candidates of every phrase, then all terms exactly."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from deixis.search.collection import Collection
from deixis.search.encoders import Encoder, Rows, load_encoder
from deixis.search.queries import Query, parse_query
from deixis.search.relevance import likelihoods, log_odds
from deixis.search.vector_index import Ids
from deixis.search.walking import read_file, shown
from deixis.vision.reading import decode_picture

#: Candidates of each phrase; a picture that meets all phrases of a query is near each of them.
CANDIDATES = 2000


class Hit(NamedTuple):
    #: As the system has it; it need not be text.
    path: bytes
    #: From 0 to 1: how surely the picture is what was asked for.
    score: float
    relevant: bool


class Answer(NamedTuple):
    query: str
    hits: list[Hit]
    #: Words of the query that the encoder has never seen.
    unknown: list[str]

    @property
    def absent(self) -> bool:
        """Whether nothing in the collection seems to be what was asked for."""
        return not any(hit.relevant for hit in self.hits)

    def as_data(self) -> dict[str, Any]:
        hits = [{"path": shown(hit.path), "score": hit.score, "relevant": hit.relevant} for hit in self.hits]
        return {"query": self.query, "hits": hits, "absent": self.absent, "unknown_words": self.unknown}


class SearchEngine:
    """A collection and its encoder.

    Args:
        index: the index' folder.
        encoder: an open encoder; None opens the one that the index was made with.
    """

    def __init__(self, index: str | Path, encoder: Encoder | None = None) -> None:
        self.collection = Collection(index)
        self.encoder = encoder or load_encoder(self.collection.encoder_name)
        self.collection.check_encoder(self.encoder)

    def search(self, text: str, count: int = 20, *, like: str | Path | None = None) -> Answer:
        """The pictures that fit a query best (`deixis.search.queries` tells its grammar).

        Args:
            like: a picture that what is found should resemble, too.
        """
        query = parse_query(text, needs_phrase=like is None)
        terms = self.encoder.encode_texts([*query.phrases, *query.without])
        if like is not None:
            terms = np.concatenate([self.encode_picture(os.fsencode(like))[None], terms])
        kinds = np.repeat([0, 1, 2], [int(like is not None), len(query.phrases), len(query.without)])
        ids, odds = self._scored(terms, kinds == 0, kinds == 2, count)
        return Answer(query.text, self._hits(ids, odds, count), self._unknown(query))

    def similar(self, picture: str | Path, count: int = 20) -> Answer:
        """The pictures that resemble a picture, without that file itself."""
        row = self.encode_picture(os.fsencode(picture))
        ids, odds = self._scored(row[None], np.array([True]), np.array([False]), count + 1)
        own = os.fsencode(os.path.realpath(picture))
        hits = [hit for hit in self._hits(ids, odds, count + 1) if hit.path != own]
        return Answer(shown(os.fsencode(picture)), hits[:count], [])

    def _scored(
        self, terms: Rows, examples: NDArray[np.bool_], denied: NDArray[np.bool_], count: int
    ) -> tuple[Ids, Rows]:
        """Pictures and their log odds, best first."""
        if not len(self.collection):
            return np.empty(0, np.int64), np.empty(0, np.float32)
        wanted = terms[~denied]
        if len(terms) == 1:
            found = self.collection.nearest.search(wanted, min(count, len(self.collection)))
            ids, scores = found.ids[0], found.scores
        else:
            among = np.concatenate([wanted, wanted.mean(0, keepdims=True)])
            limit = min(max(CANDIDATES, count), len(self.collection))
            ids = np.unique(self.collection.nearest.search(among, limit).ids)
            scores = terms @ self.collection.rows_of(ids).T
        odds = log_odds(scores, examples, denied, self.encoder.relevance)
        order = np.argsort(-odds, kind="stable")
        return ids[order], odds[order]

    def _hits(self, ids: Ids, odds: Rows, count: int) -> list[Hit]:
        hits: list[Hit] = []
        for picture, own_odds, score in zip(ids.tolist(), odds.tolist(), likelihoods(odds).tolist(), strict=True):
            hits += [Hit(path, round(score, 4), own_odds > 0) for path in self.collection.paths(picture)]
            if len(hits) >= count:
                break
        return hits[:count]

    def encode_picture(self, path: bytes) -> Rows:
        """The row of a picture file, `(dim,)`."""
        data, _ = read_file(os.path.realpath(path))
        at_least = int(self.encoder.identity.preprocessing.get("at_least", 0))
        prepared = self.encoder.prepare(decode_picture(data, name=shown(path), at_least=at_least))
        row: Rows = self.encoder.encode_pictures(prepared[None])[0]
        return row

    def _unknown(self, query: Query) -> list[str]:
        found = [word for phrase in (*query.phrases, *query.without) for word in self.encoder.unknown_words(phrase)]
        return list(dict.fromkeys(found))
