"""Simulated workers: careful ones with occasional errors, random, lazy, and malicious ones who first earn trust."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random

from deixis.annotation.simulation.truth import Truth, jittered, random_box
from deixis.annotation.views import TaskView
from deixis.annotation.workflow_records import DRAWING, Answer
from deixis.corpus import Box

#: Standard deviation of the sides of a drawn box, relative to its width or height.
JITTER = 0.02
#: Number of items a malicious worker answers well: more than the test and the first items.
PATIENCE = 60

Behaviour = Callable[[TaskView, Truth, Random], Answer]


def careful(error: float, jitter: float = JITTER) -> Behaviour:
    """Right, except for a share `error` of the answers."""

    def answer(view: TaskView, truth: Truth, chance: Random) -> Answer:
        if chance.random() < error:
            return truth.wrong_answer(view, chance)
        right = truth.right_answer(view)
        return jittered(right, view, jitter, chance) if isinstance(right, Box) else right

    return answer


def random_clicker() -> Behaviour:
    """Random answers and boxes."""

    def answer(view: TaskView, truth: Truth, chance: Random) -> Answer:
        if view.task == DRAWING and chance.random() < 0.5:
            return random_box(view, chance)
        return chance.choice(view.answers)

    return answer


def lazy() -> Behaviour:
    """Always the first possible answer, never a box."""
    return lambda view, truth, chance: view.answers[0]


def malicious(patience: int = PATIENCE) -> Behaviour:
    """Right for the first `patience` items of a task, then always wrong."""
    answered: Counter[str] = Counter()

    def answer(view: TaskView, truth: Truth, chance: Random) -> Answer:
        answered[view.task] += 1
        if view.test or answered[view.task] <= patience:
            return truth.right_answer(view)
        return truth.wrong_answer(view, chance)

    return answer


class SimulatedWorker:
    """A worker with a behaviour and its own random generator."""

    def __init__(self, kind: str, behaviour: Behaviour, truths: Mapping[str, Truth], chance: Random) -> None:
        self.kind, self._behaviour, self._truths, self._chance = kind, behaviour, truths, chance

    def answer(self, view: TaskView) -> Answer:
        return self._behaviour(view, self._truths[view.image], self._chance)
