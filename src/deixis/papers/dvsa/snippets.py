"""From scores of words and regions to snippets: the Markov chain of DVSA, solved exactly, and counted phrases.

Each word of a sentence is assigned to a region. Word t in region i scores v_i·s_t, and neighbouring words in the same
region add β. Consecutive words in one region are a snippet. The best assignment (`smooth`) tends to the most telling
part of a thing, a face or a wheel; `most_shared` takes the region with the largest expected overlap over all
assignments instead. The supplement leaves counting open (section 2): `count_regions` gives "three people" the three
best regions of which none is part of another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deixis.corpus.boxes import iou_matrix
from deixis.errors import DeixisError

#: Two regions are the same thing if they share more than this part of the smaller: a head is part of its person.
OVERLAP = 0.5
#: In `most_shared`, a word leaves its neighbour's region only for one whose expected overlap is larger by this much, so
#: that the words of one thing stay together.
KEEP = 0.02
#: Number of best regions among which a counted phrase chooses, so that the search is exact and fast.
CANDIDATES = 24
NUMBERS = {
    "two": 2, "both": 2, "couple": 2, "pair": 2, "three": 3, "trio": 3, "four": 4, "five": 5, "six": 6, "seven": 7,
    "eight": 8, "nine": 9, "ten": 10,
}  # fmt: skip


class Snippet(NamedTuple):
    """Words `start` to `end` (exclusive) of a sentence, their region, and the sum of their products with it."""

    start: int
    end: int
    region: int
    score: float


def smooth(scores: Tensor, lengths: Tensor, beta: float) -> Tensor:
    """The regions `(sentences, longest)` that maximize Σ_t scores[t, a_t] + β Σ_t [a_t = a_{t+1}].

    Exact, by dynamic programming (Viterbi). β = 0 gives every word its best region. Entries after the end of a
    sentence are meaningless.

    Args:
        scores: `(sentences, longest, regions)`, −∞ for missing regions.
        lengths: `(sentences,)` number of words.
        beta: at least 0.
    """
    _check(beta)
    sentences, longest, regions = scores.shape
    best, came_from = scores[:, 0], []
    itself = torch.arange(regions, device=scores.device).expand(sentences, regions)
    for word in range(1, longest):
        # The best predecessor is the same region, with β, or the best region of all.
        leader = best.max(1, keepdim=True)
        stays = best + beta >= leader.values
        came_from.append(torch.where(stays, itself, leader.indices))
        reached = torch.where(stays, best + beta, leader.values) + scores[:, word]
        # A sentence that has ended keeps its scores.
        over = (lengths <= word)[:, None]
        came_from[-1] = torch.where(over, itself, came_from[-1])
        best = torch.where(over, best, reached)
    path = [best.argmax(1, keepdim=True)]
    for previous in reversed(came_from):
        path.append(previous.gather(1, path[-1]))
    return torch.cat(path[::-1], 1)


def marginals(scores: Tensor, lengths: Tensor, beta: float) -> Tensor:
    """Posterior of each word's region, `(sentences, longest, regions)`; the log-likelihood is what `smooth` maximizes.

    Exact, by the forward-backward algorithm. Arguments as in `smooth`.
    """
    _check(beta)
    # log(e^β − 1), without overflow
    stays = beta + math.log(-math.expm1(-beta)) if beta else -math.inf

    def passed(messages: Tensor) -> Tensor:
        """Weight 1 from every region, and e^β − 1 more from the same one."""
        return torch.logaddexp(messages.logsumexp(1, keepdim=True).expand_as(messages), messages + stays)

    forwards, backwards = [scores[:, 0]], [torch.zeros_like(scores[:, 0])]
    for word in range(1, scores.shape[1]):
        forwards.append(passed(forwards[-1]) + scores[:, word])
    for word in range(scores.shape[1] - 1, 0, -1):
        over = (lengths <= word)[:, None]
        backwards.append(passed(backwards[-1] + scores[:, word]).masked_fill(over, 0))
    return (torch.stack(forwards, 1) + torch.stack(backwards[::-1], 1)).softmax(-1)


def most_shared(scores: Tensor, lengths: Tensor, overlaps: Tensor, beta: float, temperature: float) -> Tensor:
    """The regions `(sentences, longest)` with the largest expected overlap under the posterior; neighbours that agree
    add `KEEP`.

    Args:
        scores, lengths, beta: as in `smooth`.
        overlaps: `(regions, regions)` IoU, or `(sentences, regions, regions)` for sentences of several pictures.
        temperature: scores and β are divided by it. Near 0 only the best assignment counts; a high temperature gives
            the region that overlaps all others most.
    """
    posterior = marginals(scores / temperature, lengths, beta / temperature)
    expected = (posterior @ overlaps.to(scores.dtype)).masked_fill(scores.isneginf(), -torch.inf)
    return smooth(expected, lengths, KEEP)


def phrase_scores(
    products: NDArray[Any], boxes: NDArray[Any], span: tuple[int, int], beta: float, temperature: float
) -> NDArray[Any]:
    """Scores of all regions but the first (the whole picture) for one of the things a phrase names: `(regions − 1,)`.

    The sum of the products of its words; with a temperature, the sum of their expected overlaps under the posterior, so
    that the parts of a thing count for the thing.

    Args:
        products: `(words, regions)` of the sentence.
        boxes: `(regions, 4)`.
        span: first word of the phrase, and one past the last.
    """
    start, end = span
    if not temperature:
        return np.asarray(products[start:end, 1:].sum(0))
    scores = torch.from_numpy(np.asarray(products)[None]) / temperature
    posterior = marginals(scores, torch.tensor([len(products)]), beta / temperature)[0, start:end, 1:]
    return np.asarray(posterior.sum(0).numpy() @ iou_matrix(boxes[1:], boxes[1:]))


def _check(beta: float) -> None:
    if beta < 0:
        raise DeixisError(f"β = {beta:g} must not be negative")


def carry_signs(tokens: Sequence[str], states: Sequence[int]) -> list[int]:
    """Give punctuation the region of the word before it."""
    carried = list(states)
    for index in range(1, len(carried)):
        if is_sign(tokens[index]):
            carried[index] = carried[index - 1]
    return carried


def is_sign(token: str) -> bool:
    return not any(map(str.isalnum, token))


def snippets_of(states: Sequence[int], scores: NDArray[Any]) -> list[Snippet]:
    """The runs of words with the same region; `scores` is `(words, regions)`."""
    edges = [t for t in range(len(states) + 1) if t in (0, len(states)) or states[t] != states[t - 1]]
    return [
        Snippet(start, end, int(states[start]), float(scores[start:end, states[start]].sum()))
        for start, end in pairwise(edges)
    ]


def number_of(phrase: Sequence[str]) -> int | None:
    """The number that a phrase of lower-case tokens contains, or None.

    >>> number_of(("three", "people")), number_of(("the", "2", "dogs")), number_of(("people",))
    (3, 2, None)
    """
    for word in phrase:
        if word in NUMBERS:
            return NUMBERS[word]
        if word.isdecimal() and 2 <= int(word) <= max(NUMBERS.values()):
            return int(word)
    return None


def count_regions(scores: NDArray[Any], boxes: NDArray[Any], number: int) -> list[int]:
    """The `number` regions with the largest total score of which no two are the same thing, best first.

    Exact among the `CANDIDATES` best. If there are fewer different ones, all of these.

    Args:
        scores: `(regions,)` of the phrase.
        boxes: `(regions, 4)`.
    """
    order = np.argsort(-scores, kind="stable")[:CANDIDATES]
    values, apart = scores[order], ~_same(boxes[order])
    best: tuple[int, float, list[int]] = (0, 0.0, [])

    def search(chosen: list[int], total: float, left: list[int]) -> None:
        nonlocal best
        if (len(chosen), total) > best[:2]:
            best = (len(chosen), total, chosen)
        for index, region in enumerate(left):
            wanted = number - len(chosen)
            within = left[index : index + wanted]
            bound = (len(chosen) + len(within), total + float(values[within].sum()))
            # `left` is sorted by score: no later region can do better.
            if not wanted or bound <= best[:2]:
                return
            rest = [other for other in left[index + 1 :] if apart[region, other]]
            search([*chosen, region], total + float(values[region]), rest)

    search([], 0.0, list(range(len(order))))
    return [int(order[region]) for region in best[2]]


def _same(boxes: NDArray[Any]) -> NDArray[np.bool_]:
    """`(boxes, boxes)`: whether two share more than `OVERLAP` of the smaller."""
    boxes = np.asarray(boxes, np.float64)
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(-1)
    areas = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(-1)
    return np.asarray(shared > OVERLAP * np.minimum(areas[:, None], areas[None]))
