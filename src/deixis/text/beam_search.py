"""Beam search with a next-word model, for many pictures at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

#: Tensors with one row per partial sentence.
State = tuple[Tensor, ...]
#: From the last words `(rows,)` and their states: log-probabilities of the next word `(rows, words)`, and new states.
NextWord = Callable[[Tensor, State], tuple[Tensor, State]]


class Spoken(NamedTuple):
    """The word ids of a sentence, without start and end, and its log-probability."""

    words: list[int]
    score: float


@torch.no_grad()
def beam_search(step: NextWord, state: State, *, start: int, end: int, width: int, longest: int) -> list[list[Spoken]]:
    """At most `width` sentences for every row of `state`, best first.

    The score of a sentence is the sum of the log-probabilities of its words and of the end, without length
    normalization. A sentence can end only if the end is among the `width` most likely next words; otherwise very short
    sentences, which have few factors, would win. A beam as wide as the number of prefixes finds the best sentence.

    Args:
        step: scores the next word; −∞ for forbidden words.
        state: the initial state.
        start, end: ids of the words that begin and end a sentence.
        width: number of partial sentences kept.
        longest: maximum number of words, not counting the end.
    """
    pictures, device = len(state[0]), state[0].device
    state = tuple(part.repeat_interleave(width, 0) for part in state)
    first = torch.arange(pictures, device=device)[:, None] * width
    scores = torch.full((pictures, width), -torch.inf, device=device)
    scores[:, 0] = 0.0
    # Words so far; rows of one sentence are filled up with `end`.
    words = torch.full((pictures, width, longest), end, device=device)
    done_words, done_scores = words, torch.full_like(scores, -torch.inf)
    last = torch.full((pictures * width,), start, device=device)
    for length in range(longest + 1):
        log_probabilities, state = step(last, state)
        if length < longest:
            better = (log_probabilities > log_probabilities[:, [end]]).sum(1)
            log_probabilities[better >= width, end] = -torch.inf
        following = scores[..., None] + log_probabilities.view(pictures, width, -1)
        done_scores, best = torch.cat([done_scores, following[..., end]], 1).topk(width)
        done_words = torch.cat([done_words, words], 1).gather(1, best[..., None].expand(-1, -1, longest))
        following[..., end] = -torch.inf
        scores, chosen = following.flatten(1).topk(width)
        # Scores only decrease, so a partial sentence worse than every finished one cannot win.
        if length == longest or bool((scores[:, 0] <= done_scores[:, -1]).all()):
            break
        origin, word = chosen // following.shape[-1], chosen % following.shape[-1]
        words = words.gather(1, origin[..., None].expand(-1, -1, longest)).clone()
        words[..., length] = word
        state = tuple(part[(first + origin).flatten()] for part in state)
        last = word.flatten()
    return [
        [
            Spoken(row[: row.index(end)] if end in row else row, score)
            for row, score in zip(rows, beam_scores, strict=True)
            if score > -torch.inf
        ]
        for rows, beam_scores in zip(done_words.tolist(), done_scores.tolist(), strict=True)
    ]
