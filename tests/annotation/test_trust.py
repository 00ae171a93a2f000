"""Standings from records: tests passed and failed, first items, and the watch that follows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from random import Random

import pytest

from deixis.annotation.trust import OutcomeInTest, Standing, alarmed, standing_at_work, standing_in_test
from deixis.annotation.workflow_records import DRAWING, LINK, Settings

SETTINGS = Settings()


def record(right: int, wrong: int) -> list[bool]:
    return [False] * wrong + [True] * right


@pytest.mark.parametrize(
    ("outcomes", "standing"),
    [
        ([], Standing.TEST),
        (record(7, 0), Standing.TEST),
        (record(8, 2), Standing.FIRST_ITEMS),
        (record(7, 3), Standing.TEST),
        (record(7, 3) + record(8, 2), Standing.FIRST_ITEMS),
        (record(7, 3) + record(7, 3), Standing.FAILED),
    ],
)
def test_the_qualification_test_can_be_tried_twice(outcomes: list[bool], standing: Standing) -> None:
    asked = [OutcomeInTest(*pair) for pair in zip(cycle(("same", "different")), outcomes, strict=False)]
    assert standing_in_test(asked, SETTINGS) == standing


def test_nobody_passes_without_the_rarer_answer() -> None:
    rare = [OutcomeInTest("same", True)] * 9 + [OutcomeInTest("different", False)]
    assert standing_in_test(rare, SETTINGS) == Standing.TEST
    assert standing_in_test(rare, Settings(test_share_each=0.0)) == Standing.FIRST_ITEMS


def test_how_many_pass_the_test() -> None:
    """A simulation with as many questions of each answer, both attempts together."""
    chance = Random(1)

    def passed(answer: Callable[[str], str], trials: int = 2000) -> float:
        count = 0
        for _ in range(trials):
            truths = [truth for _ in range(2) for truth in chance.sample(["same"] * 5 + ["different"] * 5, 10)]
            outcomes = [OutcomeInTest(truth, answer(truth) == truth) for truth in truths]
            count += standing_in_test(outcomes, SETTINGS) == Standing.FIRST_ITEMS
        return count / trials

    def erring(error: float) -> Callable[[str], str]:
        return lambda truth: truth if chance.random() >= error else "wrong"

    assert passed(lambda truth: "same") == 0.0
    assert passed(lambda truth: "different") == 0.0
    # Whoever guesses must also get through the first items.
    assert passed(lambda truth: chance.choice(("same", "different"))) == pytest.approx(0.106, abs=0.03)
    assert passed(erring(0.05)) > 0.99


@pytest.mark.parametrize(
    ("task", "outcomes", "standing"),
    [
        (LINK, record(29, 0), Standing.FIRST_ITEMS),
        (LINK, record(24, 6), Standing.TRUSTED),
        (LINK, record(0, 6), Standing.FIRST_ITEMS),
        (LINK, record(0, 7), Standing.SUSPENDED),
        (DRAWING, record(20, 10), Standing.TRUSTED),
        (DRAWING, record(0, 11), Standing.SUSPENDED),
    ],
)
def test_the_first_items_earn_trust(task: str, outcomes: list[bool], standing: Standing) -> None:
    assert standing_at_work(task, outcomes, SETTINGS) == standing


def test_a_worker_who_turns_bad_is_caught_within_three_hidden_questions() -> None:
    good = record(30, 0) + record(40, 0)
    assert standing_at_work(LINK, good + record(0, 2), SETTINGS) == Standing.TRUSTED
    assert standing_at_work(LINK, good + record(0, 3), SETTINGS) == Standing.SUSPENDED


def test_honest_workers_are_seldom_suspended_and_clickers_always() -> None:
    chance = Random(1)

    def suspended(error: float, answers: int, task: str = LINK) -> float:
        trials = 300
        return (
            sum(alarmed(task, [chance.random() >= error for _ in range(answers)], SETTINGS) for _ in range(trials))
            / trials
        )

    # A hundred hidden questions are five thousand answers.
    assert suspended(0.02, 100) < 0.01
    assert suspended(0.05, 100) < 0.06
    assert suspended(0.5, 100) > 0.99
    assert suspended(0.1, 300, DRAWING) < 0.02
    assert suspended(0.5, 300, DRAWING) > 0.99


def test_without_tests_everybody_starts_at_the_first_items() -> None:
    assert standing_in_test([], Settings(test_questions=0)) == Standing.FIRST_ITEMS
