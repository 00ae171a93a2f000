"""Describe regions and pictures with phrases from a bank of phrases that people wrote (HM-LSTM, Fig. 6).

Among phrases with about the best score, detailed ones come before general ones ("a white and gray cat with a striped
tail" before "a cat"). Of phrases that say nearly the same, only the first is used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deixis.corpus.boxes import suppress
from deixis.errors import InputError
from deixis.files import read_utf8
from deixis.model import Description, ImageInput, Model, Tokens, as_box
from deixis.text.tokens import has_content, tokens_of

#: A phrase has about the best score if it is within this share of the distance between the best score and the bank's
#: median score.
ABOUT = 0.1
#: Number of best phrases considered for a region.
CANDIDATES = 200
#: Of regions that overlap more than this, only the one with the best description is used.
OVERLAP = 0.5
#: Two phrases say the same if they share more than this part of their content words.
ALIKE = 0.6
#: Words without content.
LITTLE = frozenset({
    "a", "an", "the", "this", "that", "these", "those", "some", "his", "her", "its", "their", "my", "your",
    "our", "another", "other", "one", "and", "or", "of", "to", "in", "on", "at", "by", "for", "with", "from",
    "into", "onto", "over", "under", "near", "next", "up", "down", "off", "out", "through", "across", "along",
    "around", "behind", "beside", "between", "as", "is", "are", "be", "being", "was", "were", "has", "have",
    "had", "it", "he", "she", "they", "them", "him", "who", "which", "what", "there", "while", "very",
})  # fmt: skip


@cache
def telling_words(tokens: Tokens) -> frozenset[str]:
    """The content words of a phrase, singular and plural of a noun as one.

    >>> sorted(telling_words(("a", "white", "and", "gray", "cat")))
    ['cat', 'gray', 'white']
    >>> sorted(telling_words(("dogs", "on", "grass")))
    ['dog', 'grass']
    """
    words = (token for token in tokens if token not in LITTLE and has_content(token))
    return frozenset(word[:-1] if len(word) > 3 and re.search("[^s]s$", word) else word for word in words)


def chosen(
    bank: Sequence[tuple[str, ...]], scores: NDArray[Any], count: int, used: Sequence[Tokens] = ()
) -> list[tuple[Tokens, float]]:
    """At most `count` phrases of a bank, detailed ones first if scores are about equal, without repetitions.

    Args:
        bank: phrases.
        scores: `(phrases,)`, higher is better.
        used: phrases that must not be used again.
    """
    most = min(CANDIDATES, len(bank))
    top = np.argpartition(-scores, most - 1)[:most]
    top = top[np.lexsort((top, -scores[top]))]
    least = scores[top[0]] - ABOUT * (scores[top[0]] - np.median(scores))
    near = [entry for entry in top.tolist() if scores[entry] >= least]
    near.sort(key=lambda entry: -len(telling_words(bank[entry])))
    picked: list[int] = []
    known = list(used)
    for entry in [*near, *top.tolist()[len(near) :]]:
        if telling_words(bank[entry]) and not any(_alike(bank[entry], other) for other in known):
            picked.append(entry)
            known.append(bank[entry])
        if len(picked) == count:
            break
    return [(bank[entry], float(scores[entry])) for entry in picked]


def _alike(first: Tokens, second: Tokens) -> bool:
    words, others = telling_words(first), telling_words(second)
    return len(words & others) > ALIKE * len(words | others)


def read_bank(file: Path) -> list[tuple[str, ...]]:
    """The phrases of a text file, one per line."""
    lines = read_utf8(file).splitlines()
    phrases = list(dict.fromkeys(tokens for line in lines if (tokens := tokens_of(line))))
    if not phrases:
        raise InputError(file, "has no phrase")
    return phrases


def retrieved_captions(
    model: Model, image: ImageInput, bank: Sequence[tuple[str, ...]], count: int
) -> list[Description]:
    """At most `count` texts of a bank for a whole picture."""
    scores = np.asarray(model.score([image], bank)[0])
    return [Description(" ".join(tokens), score, "retrieval") for tokens, score in chosen(bank, scores, count)]


def retrieved_regions(
    model: Model, image: ImageInput, bank: Sequence[tuple[str, ...]], count: int, most: int
) -> list[list[Description]]:
    """At most `count` phrases of a bank for each of the `most` regions with the best scores.

    A phrase is used for one region only.
    """
    boxes, scores = model.localize(image, bank)
    best = scores.max(0, initial=-np.inf)
    described: list[list[Description]] = [[] for _ in boxes]
    used: list[Tokens] = []
    for region in suppress(np.asarray(boxes), best, OVERLAP, most).tolist():
        phrases = chosen(bank, scores[:, region], count, used)
        used += [tokens for tokens, _ in phrases]
        box = as_box(boxes[region])
        described[region] = [Description(" ".join(tokens), score, "retrieval", box) for tokens, score in phrases]
    return best_regions(np.asarray(boxes), described, best, most)


def best_regions(
    boxes: NDArray[Any], described: Sequence[list[Description]], scores: NDArray[Any], most: int
) -> list[list[Description]]:
    """The descriptions of the best regions that overlap little, best first; regions without a description are left out.

    Args:
        boxes: `(regions, 4)`.
        scores: `(regions,)` of the descriptions.
    """
    worth = np.array([region for region, descriptions in enumerate(described) if descriptions], np.int64)
    picked = worth[suppress(boxes[worth], scores[worth], OVERLAP, most)]
    return [described[region] for region in picked.tolist()]
