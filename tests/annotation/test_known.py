"""Verification questions: true of their image, balanced, and answered rightly by one who knows it."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest

from deixis.annotation.known import known_questions, right_answer
from deixis.annotation.simulation.truth import truths
from deixis.annotation.views import task_view
from deixis.annotation.workflow_records import ANSWERS, BOX, DRAWING, REQUIREMENT, SCENE, TASKS, by_id
from deixis.corpus import Box
from tests.annotation.worlds import made_up_corpus

CORPUS = made_up_corpus(60, seed=4)


@pytest.mark.parametrize("task", TASKS)
def test_a_worker_who_knows_the_image_passes_and_one_who_errs_is_caught(task: str) -> None:
    known = truths(CORPUS)
    questions = known_questions(CORPUS, 60, Random(1))[task]
    assert len(questions) == 60
    for entry in questions:
        view = task_view(entry.question, entry.document, "t", 0.0, test=False)
        truth, encoded = known[entry.document.image.id], msgspec.json.encode(entry.truth)
        assert right_answer(truth.right_answer(view), encoded)
        assert not right_answer(truth.wrong_answer(view, Random(2)), encoded)


def test_always_the_same_answer_is_wrong_half_of_the_time() -> None:
    for task, questions in known_questions(CORPUS, 60, Random(1)).items():
        if task not in (DRAWING, REQUIREMENT):
            shares = Counter(entry.truth for entry in questions)
            assert all(shares[answer] == 30 for answer in ANSWERS[task]), task


def test_a_known_question_shows_nothing_of_its_answer() -> None:
    for questions in known_questions(CORPUS, 20, Random(1)).values():
        for entry in questions:
            assert entry.document.given == ()
            assert entry.document.image.boxes == ()


def test_what_work_never_asks_is_not_asked_in_hiding() -> None:
    skipped = {"people", "clothing"}
    found = known_questions(CORPUS, 60, Random(1), skipped)
    for known in found[REQUIREMENT]:
        mentions = by_id(known.document.mentions)
        assert skipped.isdisjoint(type_ for name in known.question.mentions for type_ in mentions[name].types)
    assert {known.truth for known in found[REQUIREMENT]} == {BOX, SCENE}
    assert all(found[task] for task in TASKS)


def test_links_of_several_phrases_are_made_as_the_work_asks_them() -> None:
    known = truths(CORPUS)
    links = known_questions(CORPUS, 60, Random(1), link_together=True)["link"]
    groups = [entry for entry in links if len(entry.question.mentions) > 2]
    assert 0 < len(groups) < len(links)
    assert {entry.truth for entry in groups} == {"same", "different"}
    for entry in groups:
        view = task_view(entry.question, entry.document, "t", 0.0, test=False)
        assert known[entry.document.image.id].right_answer(view) == entry.truth
    assert not any(len(entry.question.mentions) > 2 for entry in known_questions(CORPUS, 60, Random(1))["link"])


def test_a_drawing_is_right_when_it_overlaps_the_missing_box() -> None:
    truth = msgspec.json.encode((Box(0, 0, 100, 100),))
    assert right_answer(Box(0, 0, 100, 70), truth)
    assert not right_answer(Box(0, 0, 100, 50), truth)
    assert not right_answer("no more", truth)
