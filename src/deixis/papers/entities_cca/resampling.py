"""At most N exemplars a phrase, so that "a man" does not outweigh all rare phrases (section 3.2; Table 4)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray


def resample(phrases: Sequence[Hashable], limit: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Positions of the pairs to keep, rising: of each phrase `limit` at random, or all where it has no more.

    Args:
        phrases: the phrase of each region-phrase pair, as the string or its number.

    >>> resample(["a man", "a dog", "a man", "a man"], 1, np.random.default_rng(0)).tolist()
    [1, 2]
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    numbers: dict[Hashable, int] = {}
    codes = np.fromiter((numbers.setdefault(phrase, len(numbers)) for phrase in phrases), np.int64, len(phrases))
    # Shuffled, then brought together by phrase: the first `limit` of each run are a draw without return.
    shuffled = generator.permutation(len(codes))
    ordered = shuffled[np.argsort(codes[shuffled], kind="stable")]
    counts = np.bincount(codes, minlength=len(numbers))
    place = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(ordered[place < limit])
