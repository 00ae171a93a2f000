"""Schedules follow their closed forms, and a setting that makes no sense is refused by name."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from deixis.training.schedule import Schedule


def schedule(**settings: Any) -> Schedule:
    return msgspec.convert({"epochs": 4, "learning_rate": 0.1, **settings}, Schedule)


def factors(made: Schedule, steps: int = 10) -> list[float]:
    return [made.rate_factor(epoch, step, steps) for epoch in range(1, 5) for step in range(1, steps + 1)]


def test_constant_is_constant() -> None:
    assert factors(schedule()) == [1.0] * 40


def test_step_decay_falls_after_every_so_many_epochs() -> None:
    found = factors(schedule(decay={"kind": "step", "every": 2, "factor": 0.5}))
    assert found == [1.0] * 20 + [0.5] * 20


def test_warm_up_rises_linearly_and_no_step_stands_still() -> None:
    found = factors(schedule(decay={"kind": "constant", "warm_up": 2.0}))
    assert found[:20] == pytest.approx([(number + 0.5) / 20 for number in range(20)])
    assert found[20:] == [1.0] * 20


def test_cosine_falls_from_the_full_rate_after_the_warm_up_to_the_final_one() -> None:
    found = factors(schedule(decay={"kind": "cosine", "warm_up": 1.0, "final": 0.2}))
    shares = [(number + 0.5) / 30 for number in range(30)]
    assert found[10:] == pytest.approx([0.2 + 0.8 * (1 + math.cos(math.pi * share)) / 2 for share in shares])
    assert min(found) > 0
    assert sum(factors(schedule(decay={"kind": "cosine"}))) == pytest.approx(20)


def test_time_runs_in_epochs_whatever_the_number_of_steps() -> None:
    made = schedule(decay={"kind": "cosine", "warm_up": 0.5})
    assert made.rate_factor(3, 1, 1) == made.rate_factor(3, 2, 3) == made.rate_factor(3, 50, 99)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"decay": {"kind": "cosine", "warm_up": 4.0}}, "warm_up of 4 epochs does not end within 4"),
        ({"patience": 3}, "patience needs a validation figure"),
        ({"momentum": 0.9}, "adam has no momentum"),
        ({"epochs": 0}, r">= 1 - at `\$.epochs`"),
        ({"optimizer": "lion"}, r"at `\$.optimizer`"),
        ({"clip": {"kind": "norm", "at": -1}}, r"at `\$.clip.at`"),
        ({"decay": {"kind": "sine"}}, r"'sine' - at `\$.decay.kind`"),
        ({"learning_rate": 1e38}, r"<= 1000.0 - at `\$.learning_rate`"),
        ({"weight_decay": 1e39}, r"at `\$.weight_decay`"),
        ({"groups": [{"prefix": "0", "rate": 1e38}]}, r"at `\$.groups\[0\].rate`"),
        ({"learningrate": 1}, "unknown field `learningrate`"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        schedule(**settings)


def test_the_last_epoch_is_always_validated() -> None:
    made = schedule(epochs=7, validate_every=3)
    assert [epoch for epoch in range(1, 8) if made.validates(epoch)] == [3, 6, 7]
