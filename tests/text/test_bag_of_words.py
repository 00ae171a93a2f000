"""tf-idf and mean vectors take token lists, as Fisher vectors do."""

from __future__ import annotations

import pickle

import numpy as np

from deixis.text.vector_features import MeanVectors, tfidf
from deixis.text.word_vectors import WordVectors

CAPTIONS = [("a", "dog", "runs"), ("a", "cat"), ("the", "dog", "and", "dog", "sit", ".")]


def test_tfidf_is_term_frequency_times_smoothed_inverse_document_frequency() -> None:
    features = tfidf().fit(CAPTIONS)
    matrix = features.transform([*CAPTIONS, ("unheard-of",)]).toarray()
    words = list(features.get_feature_names_out())
    expected = np.zeros_like(matrix)
    for row, tokens in enumerate(CAPTIONS):
        for token in tokens:
            holding = sum(token in caption for caption in CAPTIONS)
            expected[row, words.index(token)] += 1 + np.log((1 + len(CAPTIONS)) / (1 + holding))
    expected[:3] /= np.linalg.norm(expected[:3], axis=1, keepdims=True)
    np.testing.assert_allclose(matrix, expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(features)).transform(CAPTIONS).toarray(), matrix[:3])  # noqa: S301


def test_mean_vectors_are_means_over_known_words_with_content() -> None:
    table = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    vectors = WordVectors(table, {"dog": 0, "cat": 1, "a": 2, ".": 3}.get)
    means = MeanVectors(vectors).transform([*CAPTIONS, (), ("unheard-of",)])
    np.testing.assert_allclose(means, [table[0], table[1], table[0], [0, 0, 0], [0, 0, 0]], rtol=1e-6)
    means = MeanVectors(vectors).transform([("cat", "dog", "dog")])
    np.testing.assert_allclose(means, [(table[1] + 2 * table[0]) / 3], rtol=1e-6)
