"""The smallest model that learns something: picture features → the words of its captions, by ridge regression.

It knows no word order and cannot count; the demo shows it beside chance so that every figure has a floor under it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from deixis.corpus.leak_guard import TrainingSet

Matrix = NDArray[np.float32]


class WordRegression:
    """Ridge regression from picture features to tf-idf word vectors; both sides have unit length.

    Args:
        penalties: ridge penalties to try, as multiples of the features' mean variance.
    """

    def __init__(self, penalties: Sequence[float] = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)) -> None:
        self.penalties = penalties

    def fit(
        self, features: Matrix, training: TrainingSet, validation: Matrix, validation_captions: list[list[str]]
    ) -> WordRegression:
        """Fit on one feature vector per image; the penalty is chosen on the validation images.

        Args:
            features: `(training images, dim)`.
            training: the images behind the rows.
            validation: `(validation images, dim)`.
            validation_captions: the captions of each validation image.
        """
        captions = [[caption.text for caption in image.captions] for image in training.corpus]
        documents = Counter(word for texts in captions for text in texts for word in set(_words(text)))
        total = sum(len(texts) for texts in captions)
        self._columns = {word: column for column, word in enumerate(sorted(documents))}
        self._weights = np.array([np.log(total / documents[word]) for word in self._columns], dtype=np.float32)
        self._mean = features.mean(0)
        self._scale = features.std(0) + 1e-3
        targets = np.stack([self.embed_texts(texts).mean(0) for texts in captions])
        self._target_mean = targets.mean(0)
        x = self._standardized(features)
        values, vectors = np.linalg.eigh(x.T @ x)
        projected = vectors.T @ (x.T @ (targets - self._target_mean))
        wanted = np.stack([self.embed_texts(texts).mean(0) for texts in validation_captions])
        fits = []
        for penalty in self.penalties:
            ridge = penalty * len(x)
            self._matrix = (vectors @ (projected / (np.maximum(values, 0) + ridge)[:, None])).astype(np.float32)
            fits.append((float(self._agreement(validation, wanted)), penalty, self._matrix))
        self.penalty_, self._matrix = max(fits, key=lambda fit: fit[0])[1:]
        return self

    def embed_images(self, features: Matrix) -> Matrix:
        """`(images, dim)` → `(images, words)` of unit length."""
        return _unit(self._standardized(features) @ self._matrix)

    def embed_texts(self, texts: Sequence[str]) -> Matrix:
        """Captions → `(captions, words)` of unit length; words that do not occur in training are ignored."""
        vectors = np.zeros((len(texts), len(self._columns)), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in set(_words(text)):
                if word in self._columns:
                    vectors[row, self._columns[word]] = self._weights[self._columns[word]]
        return _unit(vectors)

    def _standardized(self, features: Matrix) -> Matrix:
        return np.asarray((features - self._mean) / self._scale, dtype=np.float32)

    def _agreement(self, features: Matrix, wanted: Matrix) -> np.floating:
        """How often an image is closer to its own words than to those of another image."""
        scores = self.embed_images(features) @ wanted.T
        return np.mean(np.diag(scores)[:, None] > scores)


def _words(text: str) -> list[str]:
    return [word for word in text.lower().split() if word[0].isalnum()]


def _unit(vectors: Matrix) -> Matrix:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float32)
