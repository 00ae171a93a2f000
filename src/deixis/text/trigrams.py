"""A trigram language model: how likely a sentence is, for one who sees no picture.

Probabilities of Witten and Bell (1991): counts of three words, mixed with those of two and of one.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

#: Around every sentence.
_START, _END = "<s>", "</s>"


class Trigrams:
    """Fitted to sentences, each a sequence of tokens.

    >>> model = Trigrams([("a", "red", "bus"), ("a", "red", "bus"), ("a", "blue", "bus")])
    >>> model.log_probability(("a", "red", "bus")) > model.log_probability(("a", "blue", "bus"))
    True
    """

    def __init__(self, sentences: Iterable[Sequence[str]]) -> None:
        self._counts: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for sentence in sentences:
            for history, word in _steps(sentence):
                for length in range(len(history) + 1):
                    self._counts[history[length:]][word] += 1
        self._totals = {history: counts.total() for history, counts in self._counts.items()}
        self._words = len(self._counts[()]) + 1

    def log_probability(self, sentence: Sequence[str]) -> float:
        """log p(sentence), its end included."""
        return sum(math.log(self._probability(history, word)) for history, word in _steps(sentence))

    def _probability(self, history: tuple[str, ...], word: str) -> float:
        shorter = self._probability(history[1:], word) if history else 1 / self._words
        counts = self._counts.get(history)
        if not counts:
            return shorter
        return (counts[word] + len(counts) * shorter) / (self._totals[history] + len(counts))


def _steps(sentence: Sequence[str]) -> Iterable[tuple[tuple[str, str], str]]:
    """Every word with the two before it."""
    padded = (_START, _START, *sentence, _END)
    return (((padded[index - 2], padded[index - 1]), padded[index]) for index in range(2, len(padded)))
