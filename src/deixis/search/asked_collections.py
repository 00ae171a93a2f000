"""Collections of captioned pictures that queries are asked of, for calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from deixis.adapters.phrasing import HARDLY_KNOWN, Phrasing, embed_phrases, phrasing, telling_words
from deixis.adapters.search_model import Floats, Pictures, SearchModel
from deixis.corpus import Image
from deixis.search.caption_queries import Bools, Tokens, caption_matches, head_counts
from deixis.search.relevance import Best, Known, mean_of_best
from deixis.text.tokens import tokens_of

#: Pictures of the smaller collection that is drawn from a corpus.
SMALLER = 200


class Asked(NamedTuple):
    """Queries asked of a collection."""

    #: `(queries, pictures)`.
    scores: Floats
    matches: Bools
    #: Which captions mention the query's noun, its last word.
    nouns: Bools
    #: `(queries,)`: the images with a noun phrase that ends in the query's last word.
    heads: NDArray[np.int64]
    #: `(queries,)`: the mean scores of the best pictures, and what is known of the words.
    best: Best
    known: Known

    @property
    def size(self) -> int:
        return int(self.scores.shape[1])

    @property
    def mentioned(self) -> Bools:
        """Whether any caption of the collection mentions the noun."""
        return np.asarray(self.nouns.any(1))

    def of(self, chosen: Bools | NDArray[np.intp] | slice) -> Asked:
        scores, matches, nouns, heads, best, known = self
        return Asked(
            scores[chosen], matches[chosen], nouns[chosen], heads[chosen], best.rows(chosen), known.rows(chosen)
        )


class Collection(NamedTuple):
    """Queries asked of a collection, and the words of the queries, each by itself."""

    asked: Asked
    words: Asked

    def of_pictures(self, some: NDArray[np.intp]) -> Collection:
        """The same questions asked of some of the pictures."""
        return Collection(*(of_pictures(asked, some) for asked in self))


class Labelled(NamedTuple):
    """Pictures of which all is known that they show of some labels."""

    pictures: Pictures
    labels: list[str]
    #: `(labels, pictures)`.
    shown: Bools


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
    rare = np.flatnonzero([not phrase.several and phrase.rarity >= HARDLY_KNOWN for phrase in asked])
    collections = []
    for both, own_images in zip(scores, images, strict=True):
        nouns = caption_matches(own_images, [query[-1:] for query in queries])
        matches, heads = caption_matches(own_images, queries), head_counts(own_images, queries)
        # One caption that has a rare word is often a slip.
        matches[rare] = caption_matches(own_images, [queries[row] for row in rare.tolist()], captions=2)
        word_matches = caption_matches(own_images, single)
        collections.append(
            Collection(
                _asked(asked, both[: len(asked)], matches, nouns, heads),
                _asked(of_words, both[len(asked) :], word_matches, word_matches),
            )
        )
    return collections


def ask_labels(model: SearchModel, labelled: Labelled) -> Collection:
    """Ask for labels and for their words."""
    asked = [phrasing(label, model) for label in labelled.labels]
    words = [phrasing(word, model) for word in label_words(labelled.labels)]
    nothing = np.zeros((len(words), labelled.shown.shape[1]), bool)
    return Collection(
        _asked(asked, query_scores(model, asked, labelled.pictures), labelled.shown, labelled.shown),
        _asked(words, query_scores(model, words, labelled.pictures), nothing, nothing),
    )


def label_words(labels: Sequence[str]) -> list[str]:
    return sorted({word for label in labels for word in telling_words(tokens_of(label))})


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
        Known.of(asked),
    )


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


def of_pictures(asked: Asked, some: NDArray[np.intp]) -> Asked:
    """The same queries asked of some of the pictures."""
    scores, matches, nouns = asked.scores[:, some], asked.matches[:, some], asked.nouns[:, some]
    return asked._replace(scores=scores, matches=matches, nouns=nouns, best=mean_of_best(scores, len(some)))
