"""Trusted workers (Entities, section 2.3): a worker's standing in a task as a pure function of the worker's record.

A record lists, in order, whether each answer that could be checked was right. For drawing, these are the verdicts of
Box Quality; for all other tasks, the answers to verification questions. Workers take a test, then have to do well on
their first items, and are checked continuously after that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from deixis.annotation.workflow_records import DRAWING, Settings


class Standing(StrEnum):
    """A worker's standing in a task."""

    TEST = "test"
    FIRST_ITEMS = "first items"
    TRUSTED = "trusted"
    FAILED = "failed the test"
    SUSPENDED = "suspended"


class OutcomeInTest(NamedTuple):
    """A question of a test: its right answer, and whether the worker gave it."""

    truth: str
    correct: bool


def standing_in_test(outcomes: Sequence[OutcomeInTest], settings: Settings) -> Standing:
    """The standing after these answers to the qualification test, all attempts concatenated."""
    length = settings.test_questions
    if length == 0:
        return Standing.FIRST_ITEMS
    attempts = [outcomes[start : start + length] for start in range(0, len(outcomes), length)]
    finished = [attempt for attempt in attempts if len(attempt) == length]
    if any(_passes(attempt, settings) for attempt in finished):
        return Standing.FIRST_ITEMS
    return Standing.FAILED if len(finished) >= settings.test_attempts else Standing.TEST


def _passes(attempt: Sequence[OutcomeInTest], settings: Settings) -> bool:
    """Enough right answers in all, and among the questions of each right answer."""

    def enough(outcomes: Sequence[OutcomeInTest], share: float) -> bool:
        return sum(outcome.correct for outcome in outcomes) >= share * len(outcomes) - 1e-9

    by_truth = [[one for one in attempt if one.truth == truth] for truth in {outcome.truth for outcome in attempt}]
    return enough(attempt, settings.test_share) and all(enough(part, settings.test_share_each) for part in by_truth)


def standing_at_work(task: str, outcomes: Sequence[bool], settings: Settings) -> Standing:
    """The standing after a passed test, given the outcomes of the first items and all later ones."""
    first, later = outcomes[: settings.first_items], outcomes[settings.first_items :]
    share = settings.first_share_drawing if task == DRAWING else settings.first_share
    wrong = len(first) - sum(first)
    # Suspend as soon as the required share cannot be reached any more.
    if wrong > (1 - share) * settings.first_items + 1e-9:
        return Standing.SUSPENDED
    if len(first) < settings.first_items:
        return Standing.FIRST_ITEMS
    return Standing.SUSPENDED if alarmed(task, later, settings) else Standing.TRUSTED


def alarmed(task: str, outcomes: Sequence[bool], settings: Settings) -> bool:
    """Page's CUSUM test: whether recent outcomes show that the worker now makes too many errors."""
    usual = settings.usual_error_drawing if task == DRAWING else settings.usual_error
    limit = math.log(settings.alarm_drawing if task == DRAWING else settings.alarm)
    wrong, right = math.log(settings.bad_error / usual), math.log((1 - settings.bad_error) / (1 - usual))
    evidence = 0.0
    for outcome in outcomes:
        evidence = max(0.0, evidence + (right if outcome else wrong))
        if evidence >= limit:
            return True
    return False
