"""At most N exemplars of a phrase, so that "a man" does not outweigh all rare phrases (Flickr30k Entities, 3.2)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray


def resample(phrases: Sequence[Hashable], limit: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Sorted indices of the pairs to keep: `limit` random ones of each phrase, or all if it has no more.

    Args:
        phrases: the phrase of each region-phrase pair, or an id of it.

    >>> resample(["a man", "a dog", "a man", "a man"], 1, np.random.default_rng(0)).tolist()
    [1, 2]
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    ids: dict[Hashable, int] = {}
    codes = np.fromiter((ids.setdefault(phrase, len(ids)) for phrase in phrases), np.int64, len(phrases))
    # Shuffled, then grouped by phrase: the first `limit` of a group are a random sample without replacement.
    shuffled = generator.permutation(len(codes))
    ordered = shuffled[np.argsort(codes[shuffled], kind="stable")]
    counts = np.bincount(codes, minlength=len(ids))
    index_in_group = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(ordered[index_in_group < limit])
