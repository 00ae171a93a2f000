"""Simple text features: tf-idf and the mean of word vectors, both from token lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.feature_extraction.text import TfidfVectorizer

from deixis.text.tokens import has_content
from deixis.text.word_vectors import WordVectors


def tfidf(**options: Any) -> TfidfVectorizer:
    r"""scikit-learn's tf-idf on token lists; `options` are those of `TfidfVectorizer`.

    A word t of a caption counts :math:`\mathrm{tf} \cdot (1 + \ln\frac{1 + n}{1 + \mathrm{df}_t})`, rows have norm 1.
    The result is a sparse array. In two-branch networks (section 4.2) it is nearly as good as Fisher vectors.

    >>> features = tfidf().fit([("a", "dog"), ("a", "cat")])
    >>> features.transform([("a", "dog", "dog")]).toarray().round(2).tolist()
    [[0.34, 0.0, 0.94]]
    """
    return TfidfVectorizer(analyzer=_as_they_are, **options)


def _as_they_are(tokens: Sequence[str]) -> Sequence[str]:
    return tokens


class MeanVectors(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""A caption as the mean :math:`\frac1T \sum_t v(t)` of the vectors of its words with content.

    Words without a vector are left out; a caption without any vector is all zeros.

    Parameters
    ----------
    vectors : WordVectors

    References
    ----------
    G. Lev, B. Klein, L. Wolf. "In Defense of Word Embedding for Generic Text Representation", NLDB 2015.

    Examples
    --------
    >>> vectors = WordVectors(np.eye(2, dtype=np.float32), {"dog": 0, "runs": 1}.get)
    >>> MeanVectors(vectors).fit_transform([("a", "dog", "runs", "."), ()]).tolist()
    [[0.5, 0.5], [0.0, 0.0]]
    """

    def __init__(self, vectors: WordVectors) -> None:
        self.vectors = vectors

    def fit(self, token_lists: Sequence[Sequence[str]], y: Any = None) -> Self:
        """Nothing is learned."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def transform(self, token_lists: Sequence[Sequence[str]]) -> NDArray[np.float32]:
        """Mean vectors, (captions, dimension)."""
        words = sorted({token for tokens in token_lists for token in tokens if has_content(token)})
        array, has_vector = self.vectors.look_up(words)
        rows = {word: row for row, word in enumerate(words) if has_vector[row]}
        means = np.zeros((len(token_lists), self.vectors.dimension), dtype=np.float32)
        for mean, tokens in zip(means, token_lists, strict=True):
            chosen = [rows[token] for token in tokens if token in rows]
            if chosen:
                mean[:] = array[chosen].mean(axis=0)
        return means
