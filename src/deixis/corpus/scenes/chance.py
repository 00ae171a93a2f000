"""Seeded choices that come out alike on every machine and Python: all rest on `random.Random.random` alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Chance:
    """A stream of choices for one purpose, named by its seed words."""

    def __init__(self, *seed: object) -> None:
        self.random = random.Random(" ".join(map(str, seed))).random

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def maybe(self, probability: float) -> bool:
        return self.random() < probability

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.random()

    def shuffled(self, options: Sequence[T]) -> list[T]:
        """All of them, in an order of chance (Fisher-Yates)."""
        items = list(options)
        for last in range(len(items) - 1, 0, -1):
            other = int(self.random() * (last + 1))
            items[last], items[other] = items[other], items[last]
        return items
