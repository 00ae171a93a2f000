"""Trusted workers (the Entities paper, section 2.3): what a worker's record in a task entitles to, as pure functions.

A record is the outcomes, right or wrong and in order, of the answers whose truth is known: in the binary tasks (and box
requirement) those to verification questions, in drawing the verdicts of Box Quality. A test comes first, then the first
items, then a watch that never ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from deixis.annotation.workflow_records import DRAWING, Settings


class Standing(StrEnum):
    """What a worker is in a task."""

    TEST = "test"
    FIRST_ITEMS = "first items"
    TRUSTED = "trusted"
    FAILED = "failed the test"
    SUSPENDED = "suspended"


def standing_in_test(outcomes: Sequence[bool], settings: Settings) -> Standing:
    """After these answers to the qualification test, in all attempts one after the other."""
    length = settings.test_questions
    if length == 0:
        return Standing.FIRST_ITEMS
    attempts = [outcomes[start : start + length] for start in range(0, len(outcomes), length)]
    if any(len(a) == length and sum(a) >= settings.test_share * length for a in attempts):
        return Standing.FIRST_ITEMS
    finished = sum(len(attempt) == length for attempt in attempts)
    return Standing.FAILED if finished >= settings.test_attempts else Standing.TEST


def standing_at_work(task: str, outcomes: Sequence[bool], settings: Settings) -> Standing:
    """After a passed test, with these outcomes of the first items and of all that came later."""
    first, later = outcomes[: settings.first_items], outcomes[settings.first_items :]
    share = settings.first_share_drawing if task == DRAWING else settings.first_share
    wrong = len(first) - sum(first)
    # Nobody is kept at it who can no longer reach the share.
    if wrong > (1 - share) * settings.first_items + 1e-9:
        return Standing.SUSPENDED
    if len(first) < settings.first_items:
        return Standing.FIRST_ITEMS
    return Standing.SUSPENDED if alarmed(task, later, settings) else Standing.TRUSTED


def alarmed(task: str, outcomes: Sequence[bool], settings: Settings) -> bool:
    """Page's cumulative sum: the evidence, since it last was at its lowest, that the worker now errs too often."""
    usual = settings.usual_error_drawing if task == DRAWING else settings.usual_error
    limit = math.log(settings.alarm_drawing if task == DRAWING else settings.alarm)
    wrong, right = math.log(settings.bad_error / usual), math.log((1 - settings.bad_error) / (1 - usual))
    evidence = 0.0
    for outcome in outcomes:
        evidence = max(0.0, evidence + (right if outcome else wrong))
        if evidence >= limit:
            return True
    return False
