"""From scores of words and regions to snippets: the chain of DVSA solved exactly, and regions for number phrases.

A sentence is a chain of words, each in the state of one region; the score of word t in region i is v_i·s_t, and
neighbours of the same region add β. Words in a row with one region are a snippet. The best chain tends to the part of
a thing that tells it best, a face or a wheel; `most_shared` asks all chains instead, and takes the region that shares
most with wherever they put a word. The supplement leaves counting open (section 2): `count_regions` gives "three
people" the three best regions that are not parts of one another.
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

#: Two regions are the same thing where they share more than this of the smaller: a head is part of its person.
OVERLAP = 0.5
#: A word leaves its neighbour's region for one that it is expected to overlap by this much more (`most_shared`): else
#: words of one thing would part over nothing.
KEEP = 0.02
#: Regions among which a number phrase is counted: the best so many, so that the search is exact and quick.
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

    Exact, by dynamic programming. β = 0 gives every word its best region; what stands behind a sentence's end has no
    meaning.

    Args:
        scores: (sentences, longest, regions), −inf for a region that is not there.
        lengths: (sentences,) words of each.
        beta: at least 0.
    """
    _check(beta)
    sentences, longest, regions = scores.shape
    best, came_from = scores[:, 0], []
    own = torch.arange(regions, device=scores.device).expand(sentences, regions)
    for word in range(1, longest):
        # From the same region with β, or from the best of all without: no third way is better.
        leader = best.max(1, keepdim=True)
        stays = best + beta >= leader.values
        came_from.append(torch.where(stays, own, leader.indices))
        reached = torch.where(stays, best + beta, leader.values) + scores[:, word]
        # A sentence that is over keeps what it has, and points at itself.
        over = (lengths <= word)[:, None]
        came_from[-1] = torch.where(over, own, came_from[-1])
        best = torch.where(over, best, reached)
    path = [best.argmax(1, keepdim=True)]
    for previous in reversed(came_from):
        path.append(previous.gather(1, path[-1]))
    return torch.cat(path[::-1], 1)


def marginals(scores: Tensor, lengths: Tensor, beta: float) -> Tensor:
    """How likely each word is in each region, `(sentences, longest, regions)`, where a chain of regions is as likely as
    e to the power of what `smooth` maximizes.

    Exact, by sums forwards and backwards; arguments as those of `smooth`.
    """
    _check(beta)
    # log(e^β − 1), which overflows as it is written
    stays = beta + math.log(-math.expm1(-beta)) if beta else -math.inf

    def passed(ways: Tensor) -> Tensor:
        """From every region with weight 1, and from the same one with e^β − 1 more."""
        return torch.logaddexp(ways.logsumexp(1, keepdim=True).expand_as(ways), ways + stays)

    forwards, backwards = [scores[:, 0]], [torch.zeros_like(scores[:, 0])]
    for word in range(1, scores.shape[1]):
        forwards.append(passed(forwards[-1]) + scores[:, word])
    for word in range(scores.shape[1] - 1, 0, -1):
        over = (lengths <= word)[:, None]
        backwards.append(passed(backwards[-1] + scores[:, word]).masked_fill(over, 0))
    return (torch.stack(forwards, 1) + torch.stack(backwards[::-1], 1)).softmax(-1)


def most_shared(scores: Tensor, lengths: Tensor, overlaps: Tensor, beta: float, temperature: float) -> Tensor:
    """The regions `(sentences, longest)` of greatest expected overlap with those where words truly lie; neighbours that
    agree add `KEEP`.

    Args:
        scores, lengths, beta: as those of `smooth`.
        overlaps: (regions, regions) IoU; or (sentences, regions, regions), where sentences are of several pictures.
        temperature: what scores and β are divided by before they are taken for logarithms of weights: near 0 the best
            chain alone counts, a great one leaves the region that shares most with all others.
    """
    likely = marginals(scores / temperature, lengths, beta / temperature)
    worth = (likely @ overlaps.to(scores.dtype)).masked_fill(scores.isneginf(), -torch.inf)
    return smooth(worth, lengths, KEEP)


def phrase_scores(
    products: NDArray[Any], boxes: NDArray[Any], span: tuple[int, int], beta: float, temperature: float
) -> NDArray[Any]:
    """How well each region but the first, the whole picture, suits one of the things a phrase names: `(regions − 1,)`.

    The sum over its words of their products; with a temperature, of the overlap that is expected with wherever all
    chains put them, so that the parts of a thing speak for the thing.

    Args:
        products: (words, regions) of the sentence.
        boxes: (regions, 4).
        span: the words of the phrase.
    """
    start, end = span
    if not temperature:
        return np.asarray(products[start:end, 1:].sum(0))
    scores = torch.from_numpy(np.asarray(products)[None]) / temperature
    likely = marginals(scores, torch.tensor([len(products)]), beta / temperature)[0, start:end, 1:]
    return np.asarray(likely.sum(0).numpy() @ iou_matrix(boxes[1:], boxes[1:]))


def _check(beta: float) -> None:
    if beta < 0:
        raise DeixisError(f"neighbours that agree add β = {beta:g}; it must not be negative")


def carry_signs(tokens: Sequence[str], states: Sequence[int]) -> list[int]:
    """A full stop names nothing: signs go with the word before them."""
    carried = list(states)
    for place in range(1, len(carried)):
        if is_sign(tokens[place]):
            carried[place] = carried[place - 1]
    return carried


def is_sign(token: str) -> bool:
    return not any(map(str.isalnum, token))


def snippets_of(states: Sequence[int], scores: NDArray[Any]) -> list[Snippet]:
    """The runs of equal regions of one sentence; `scores` is `(words, regions)`."""
    edges = [t for t in range(len(states) + 1) if t in (0, len(states)) or states[t] != states[t - 1]]
    return [
        Snippet(start, end, int(states[start]), float(scores[start:end, states[start]].sum()))
        for start, end in pairwise(edges)
    ]


def number_of(phrase: Sequence[str]) -> int | None:
    """How many things a phrase says it names, where it says so; lower-case tokens.

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
    """The `number` regions of greatest total score of which no two are the same thing, best first.

    Exact among the `CANDIDATES` best. Where so many different ones are not there, as many as there are.

    Args:
        scores: (regions,) of the phrase.
        boxes: (regions, 4).
    """
    order = np.argsort(-scores, kind="stable")[:CANDIDATES]
    values, apart = scores[order], ~_same(boxes[order])
    best: tuple[int, float, list[int]] = (0, 0.0, [])

    def search(chosen: list[int], total: float, left: list[int]) -> None:
        nonlocal best
        if (len(chosen), total) > best[:2]:
            best = (len(chosen), total, chosen)
        for place, region in enumerate(left):
            wanted = number - len(chosen)
            within = left[place : place + wanted]
            reach = (len(chosen) + len(within), total + float(values[within].sum()))
            # `left` falls by score: nothing behind this place can do better.
            if not wanted or reach <= best[:2]:
                return
            rest = [other for other in left[place + 1 :] if apart[region, other]]
            search([*chosen, region], total + float(values[region]), rest)

    search([], 0.0, list(range(len(order))))
    return [int(order[region]) for region in best[2]]


def _same(boxes: NDArray[Any]) -> NDArray[np.bool_]:
    """(boxes, boxes): whether two share more than `OVERLAP` of the smaller."""
    boxes = np.asarray(boxes, np.float64)
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(-1)
    areas = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(-1)
    return np.asarray(shared > OVERLAP * np.minimum(areas[:, None], areas[None]))
