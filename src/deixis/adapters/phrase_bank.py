"""Phrases for regions and pictures from a bank of phrases that people wrote (paper 2, Fig. 6).

Of the phrases that suit about as well as the best one, detailed ones come before general ones ("a white and gray cat
with a striped tail" before "a cat"), and of those that say nearly the same only the first is kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deixis.adapters.descriptions import OVERLAP, Said, SaidOfRegion, of_regions
from deixis.corpus.boxes import suppress
from deixis.errors import DeixisError
from deixis.model import Encodes, ImageFeatures, Localizes, Scores, Tokens
from deixis.text.tokens import has_content

#: A phrase suits about as well as the best where its score is below that by at most this share of the way down to the
#: bank's median.
ABOUT = 0.1
#: Phrases looked at for a region.
CANDIDATES = 200
#: Phrases that share more of their words say the same.
ALIKE = 0.6
#: Words that add no detail.
LITTLE = frozenset({
    "a", "an", "the", "this", "that", "these", "those", "some", "his", "her", "its", "their", "my", "your",
    "our", "another", "other", "one", "and", "or", "of", "to", "in", "on", "at", "by", "for", "with", "from",
    "into", "onto", "over", "under", "near", "next", "up", "down", "off", "out", "through", "across", "along",
    "around", "behind", "beside", "between", "as", "is", "are", "be", "being", "was", "were", "has", "have",
    "had", "it", "he", "she", "they", "them", "him", "who", "which", "what", "there", "while", "very",
})  # fmt: skip


@cache
def telling_words(tokens: Tokens) -> frozenset[str]:
    """The words of a phrase that tell something, both numbers of a noun as one.

    >>> sorted(telling_words(("a", "white", "and", "gray", "cat")))
    ['cat', 'gray', 'white']
    >>> sorted(telling_words(("dogs", "on", "grass")))
    ['dog', 'grass']
    """
    words = (token for token in tokens if token not in LITTLE and has_content(token))
    return frozenset(word[:-1] if len(word) > 3 and re.search("[^s]s$", word) else word for word in words)


def chosen(
    bank: Sequence[tuple[str, ...]], scores: NDArray[Any], count: int, said: Sequence[Tokens] = ()
) -> list[tuple[Tokens, float]]:
    """At most `count` phrases of a bank: detailed ones first where scores are about equal, none twice.

    Args:
        bank: phrases.
        scores: `(phrases,)`, higher is better.
        said: phrases that are not to be said again.
    """
    most = min(CANDIDATES, len(bank))
    top = np.argpartition(-scores, most - 1)[:most]
    top = top[np.lexsort((top, -scores[top]))]
    least = scores[top[0]] - ABOUT * (scores[top[0]] - np.median(scores))
    near = [number for number in top.tolist() if scores[number] >= least]
    near.sort(key=lambda number: -len(telling_words(bank[number])))
    kept: list[int] = []
    known = list(said)
    for number in [*near, *top.tolist()[len(near) :]]:
        if telling_words(bank[number]) and not any(_alike(bank[number], other) for other in known):
            kept.append(number)
            known.append(bank[number])
        if len(kept) == count:
            break
    return [(bank[number], float(scores[number])) for number in kept]


def _alike(first: Tokens, second: Tokens) -> bool:
    words, others = telling_words(first), telling_words(second)
    return len(words & others) > ALIKE * len(words | others)


def retrieved_captions(matcher: Any, image: ImageFeatures, bank: Sequence[tuple[str, ...]], count: int) -> list[Said]:
    """At most `count` texts of a bank that suit a whole picture."""
    if isinstance(matcher, Scores):
        scores = matcher.score([image], bank)[0]
    elif isinstance(matcher, Encodes):
        scores = matcher.encode_texts(bank) @ matcher.encode_images([image])[0]
    else:
        raise DeixisError("this run does not match pictures with texts")
    return [Said(" ".join(tokens), score, "retrieval") for tokens, score in chosen(bank, np.asarray(scores), count)]


def retrieved_regions(
    matcher: Any, image: ImageFeatures, bank: Sequence[tuple[str, ...]], regions: int, count: int
) -> list[SaidOfRegion]:
    """At most `count` phrases of a bank for each of at most `regions` regions that have the best ones.

    What is said of one region is not said again of the next.
    """
    if not isinstance(matcher, Localizes):
        raise DeixisError("this run does not match regions with phrases")
    boxes, scores = matcher.localize(image, bank)
    best = scores.max(0, initial=-np.inf)
    said: list[list[tuple[Tokens, float]]] = [[] for _ in boxes]
    for region in suppress(np.asarray(boxes), best, OVERLAP, regions).tolist():
        before = [tokens for own in said for tokens, _ in own]
        said[region] = chosen(bank, scores[:, region], count, before)
    return of_regions(np.asarray(boxes), said, best, regions, "retrieval")
