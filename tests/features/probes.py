"""What a linear probe can read out of features: the average precision of words, next to what chance would give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import Ridge
from sklearn.metrics import average_precision_score

from deixis.corpus import Image


class Probed(NamedTuple):
    """Average precision of a word on pictures the probe did not see, and the share of them that it is said of."""

    precision: float
    chance: float


def probe_words(
    features: NDArray[np.float32],
    images: Sequence[Image],
    learn_from: NDArray[np.bool_],
    words: Sequence[str],
    *,
    penalty: float = 300.0,
) -> dict[str, Probed]:
    """Ridge regression from features `(images, dim)` to whether a word is in an image's captions."""
    seen = features[learn_from]
    standardized = (features - seen.mean(0)) / (seen.std(0) + 1e-3)
    said = [{token.lower() for caption in image.captions for token in caption.tokens} for image in images]
    probed = {}
    for word in words:
        labels = np.array([word in own for own in said])
        ridge = Ridge(alpha=penalty).fit(standardized[learn_from], labels[learn_from].astype(np.float32))
        scores = ridge.predict(standardized[~learn_from])
        unseen = labels[~learn_from]
        probed[word] = Probed(float(average_precision_score(unseen, scores)), float(unseen.mean()))
    return probed


def nearest_labels(
    seen: NDArray[np.float32], labels: NDArray[np.int64], unseen: NDArray[np.float32]
) -> NDArray[np.int64]:
    """For each row the label of the row seen before that has the largest cosine with it."""
    seen, unseen = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (seen, unseen))
    return labels[(unseen @ seen.T).argmax(1)]
