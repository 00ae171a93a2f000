"""The four box tasks, answer by answer, as section 2.2 of the Entities paper describes them."""

from __future__ import annotations

import pytest

from deixis.annotation.answers import Answers
from deixis.annotation.box_steps import BoxState, BoxSteps
from deixis.annotation.workflow_records import AcceptFix, Judgment, Settings
from deixis.corpus import Box

BOX, OTHER = Box(0, 0, 10, 10), Box(20, 20, 30, 30)


def follow(*said: tuple[int, str | Box], skip: bool = False, settings: Settings | None = None) -> BoxState:
    """Give answers to whatever is asked next, each with the worker who gives it."""
    log: list[Judgment] = []
    state = BoxSteps("m", Answers(log), settings or Settings()).run(skip)
    for worker, answer in said:
        assert state.question is not None, f"nothing is asked when {answer} should be said"
        assert worker not in state.question.barred
        log.append(Judgment(len(log) + 1, state.question.task, state.question.key, worker, answer))
        state = BoxSteps("m", Answers(log), settings or Settings()).run(skip)
    return state


def task_of(state: BoxState) -> str:
    return state.question.task if state.question else str(state.verdict)


@pytest.mark.parametrize(
    ("answers", "next_task"),
    [
        (["box"], "drawing"),
        (["no box"], "requirement"),
        (["no box", "no box"], "no box"),
        (["scene", "scene"], "scene"),
        (["no box", "box"], "requirement"),
        (["no box", "box", "box"], "drawing"),
        (["no box", "box", "no box"], "no box"),
        (["scene", "no box"], "requirement"),
        (["scene", "no box", "scene"], "scene"),
        (["scene", "no box", "box"], "scene"),
    ],
)
def test_one_box_goes_to_drawing_and_a_negative_needs_agreement(answers: list[str], next_task: str) -> None:
    assert task_of(follow(*enumerate(answers, start=1))) == next_task


def test_people_clothing_and_body_parts_start_at_drawing() -> None:
    assert task_of(follow(skip=True)) == "drawing"


def test_a_drawn_box_goes_to_quality_a_bad_one_back_and_a_good_one_to_coverage() -> None:
    assert task_of(follow((1, BOX), skip=True)) == "quality"
    bad = follow((1, BOX), (2, "bad"), skip=True)
    assert (task_of(bad), bad.boxes, bad.passed) == ("drawing", [], {1: False})
    good = follow((1, BOX), (2, "good"), skip=True)
    assert (task_of(good), good.boxes, good.passed) == ("coverage", [BOX], {1: True})


def test_the_drawer_does_not_judge_the_box_and_the_one_who_drew_a_bad_one_does_not_draw_it_again() -> None:
    drawn = follow((1, BOX), skip=True)
    assert drawn.question is not None
    assert drawn.question.barred == (1,)
    again = follow((1, BOX), (2, "bad"), skip=True)
    assert again.question is not None
    assert again.question.barred == (1,)


@pytest.mark.parametrize(
    ("opinions", "next_task"),
    [
        (["more"], "drawing"),
        (["all"], "coverage"),
        (["all", "all"], "box"),
        (["all", "more"], "coverage"),
        (["all", "more", "all"], "box"),
        (["all", "more", "more"], "drawing"),
    ],
)
def test_coverage_asks_a_second_and_a_third(opinions: list[str], next_task: str) -> None:
    state = follow((1, BOX), (2, "good"), *enumerate(opinions, start=3), skip=True)
    assert task_of(state) == next_task


def test_each_new_box_is_covered_anew() -> None:
    state = follow((1, BOX), (2, "good"), (3, "more"), (4, OTHER), (2, "good"), (3, "all"), (5, "all"), skip=True)
    assert (state.verdict, state.boxes) == ("box", [BOX, OTHER])


def test_nothing_to_draw_returns_to_requirement_without_boxes_and_to_coverage_with_some() -> None:
    empty = follow((1, "no more"), skip=True)
    assert task_of(empty) == "requirement"
    assert empty.question is not None
    assert empty.question.barred == (1,)
    assert task_of(follow((1, "no more"), (2, "no box"), skip=True)) == "no box"
    assert task_of(follow((1, "no more"), (2, "box"), (3, "box"), skip=True)) == "drawing"
    some = follow((1, BOX), (2, "good"), (3, "more"), (4, "no more"), skip=True)
    assert task_of(some) == "coverage"
    # The drawer who saw nothing to draw stands against the one who wanted more: a third decides.
    assert task_of(follow((1, BOX), (2, "good"), (3, "more"), (4, "no more"), (5, "all"), skip=True)) == "box"


def test_chains_that_cycle_go_to_review_and_can_be_accepted_as_they_stand() -> None:
    said: list[tuple[int, str | Box]] = [(1, BOX), (2, "good"), (3, "more")]
    worker = 4
    for _ in range(Settings().cycle_limit):
        said += [(worker, "no more"), (worker + 1, "more")]
        worker += 2
    said += [(worker, "no more")]
    state = follow(*said, skip=True)
    assert task_of(state) == "review"
    assert state.question is not None
    log: list[Judgment] = []
    replayed = BoxSteps("m", Answers([]), Settings()).run(True)
    for number, (who, answer) in enumerate(said, start=1):
        assert replayed.question is not None
        log.append(Judgment(number, replayed.question.task, replayed.question.key, who, answer))
        replayed = BoxSteps("m", Answers(log), Settings()).run(True)
    accepted = BoxSteps("m", Answers(log, [AcceptFix(state.question.key)]), Settings()).run(True)
    assert (accepted.verdict, accepted.boxes, accepted.question) == ("box", [BOX], None)


def test_bad_boxes_one_after_the_other_go_to_review() -> None:
    limit = Settings().bad_box_limit
    said: list[tuple[int, str | Box]] = []
    for attempt in range(limit):
        said += [(attempt + 1, BOX), (100, "bad")]
    assert task_of(follow(*said, skip=True)) == "review"
    assert task_of(follow(*said[:-2], skip=True)) == "drawing"


def test_one_person_alone_settles_everything() -> None:
    alone = Settings(solo=True)
    state = follow((1, "box"), (1, BOX), (1, "good"), (1, "all"), settings=alone)
    assert (state.verdict, state.boxes) == ("box", [BOX])
    assert follow((1, "no box"), settings=alone).verdict == "no box"
    assert task_of(follow((1, BOX), (1, "bad"), (1, OTHER), (1, "good"), skip=True, settings=alone)) == "coverage"
