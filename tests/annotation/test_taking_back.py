"""Taking back the last answer: until somebody builds on it, once, and alike for verification questions."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select

from deixis.annotation import schema
from deixis.annotation.reviews import ImageView
from deixis.annotation.simulation.truth import truths
from deixis.annotation.views import TaskView
from deixis.annotation.workbench import StaleTask, Workbench
from deixis.annotation.workflow_records import AcceptFix
from deixis.corpus import Box
from tests.annotation.conftest import Clock, MakeBench
from tests.annotation.worlds import made_up_corpus


def next_task(bench: Workbench, worker: int, task: str | None = None) -> TaskView:
    view = bench.next_task(worker, task)
    assert view is not None
    return view


def image_of(bench: Workbench, view: TaskView) -> ImageView:
    return bench.inspect_image(view.image)


def test_an_answer_is_asked_again_and_the_new_one_counts(make_bench: MakeBench) -> None:
    bench = make_bench(images=1)
    ann = bench.add_worker("ann")
    view = next_task(bench, ann)
    before = image_of(bench, view).chains
    bench.submit(ann, view.token, view.answers[-1])
    (again,) = bench.take_back(ann, view.token)
    assert (again.task, again.captions, again.boxes) == (view.task, view.captions, view.boxes)
    assert again.token != view.token
    assert image_of(bench, view).chains == before
    assert bench.standings(ann)[view.task].answered == 0
    bench.submit(ann, again.token, view.answers[0])
    history = [(event.content, event.void) for event in image_of(bench, view).history]
    assert [void for _, void in history] == [True, False], "both are in the log, one counts"
    assert bench.progress().tasks[view.task].voided == 1
    assert bench.check() == []


def test_taking_back_twice_after_a_lost_reply_counts_once(make_bench: MakeBench) -> None:
    bench = make_bench(images=1)
    ann = bench.add_worker("ann")
    view = next_task(bench, ann)
    bench.submit(ann, view.token, view.answers[0])
    first, second = bench.take_back(ann, view.token), bench.take_back(ann, view.token)
    assert [again.captions for again in first] == [again.captions for again in second]
    with schema.reading(bench.engine) as connection:
        assert connection.execute(select(func.count()).select_from(schema.voided)).scalar_one() == 1


def test_one_answer_after_another_can_be_taken_back_but_only_the_last(make_bench: MakeBench) -> None:
    bench = make_bench(images=1, solo=True)
    ann = bench.add_worker("ann")
    views = []
    for _ in range(4):
        views.append(next_task(bench, ann))
        bench.submit(ann, views[-1].token, views[-1].answers[0])
    with pytest.raises(StaleTask, match="only your last"):
        bench.take_back(ann, views[0].token)
    for view in reversed(views):
        (again,) = bench.take_back(ann, view.token)
        assert again.captions == view.captions
        bench.release(ann, again.token)
    assert bench.progress().tasks["link"].judgments == bench.progress().tasks["link"].voided
    with pytest.raises(StaleTask, match="no such answer"):
        bench.take_back(bench.add_worker("bob"), views[0].token)


def drawn_box(bench: Workbench) -> tuple[int, TaskView]:
    """A worker who has just drawn a right box."""
    truth = truths(made_up_corpus(1))
    ann = bench.add_worker("ann")
    for _ in range(100):
        view = next_task(bench, ann)
        answer = truth[view.image].right_answer(view)
        bench.submit(ann, view.token, answer)
        if isinstance(answer, Box):
            return ann, view
    raise AssertionError("no box was asked for")


def test_a_box_that_was_judged_cannot_be_taken_back(make_bench: MakeBench) -> None:
    bench = make_bench(images=1, link_together=False)
    ann, view = drawn_box(bench)
    bob = bench.add_worker("bob")
    judged = next_task(bench, bob, "quality")
    # Somebody looks at the box already, but has not answered: the question is gone for them.
    (again,) = bench.take_back(ann, view.token)
    with pytest.raises(StaleTask):
        bench.submit(bob, judged.token, "good")
    assert judged.box is not None
    bench.submit(ann, again.token, judged.box)
    bench.submit(bob, next_task(bench, bob, "quality").token, "good")
    with pytest.raises(StaleTask, match="built on"):
        bench.take_back(ann, again.token)
    assert bench.check() == []


def test_an_image_that_a_reviewer_corrected_keeps_its_answers(make_bench: MakeBench, clock: Clock) -> None:
    bench = make_bench(images=1)
    ann, ray = bench.add_worker("ann"), bench.add_worker("ray", "reviewer")
    view = next_task(bench, ann)
    bench.submit(ann, view.token, view.answers[0], "odd")
    clock.now += 1
    (review,) = image_of(bench, view).reviews
    bench.fix(ray, view.image, AcceptFix(review.key), image_of(bench, view).version)
    with pytest.raises(StaleTask, match="built on"):
        bench.take_back(ann, view.token)


def test_hidden_questions_are_taken_back_like_any_other(make_bench: MakeBench) -> None:
    bench = make_bench(images=3, known=20, test_questions=0, first_items=5, hidden_share=0.0)
    ann = bench.add_worker("ann")
    view = next_task(bench, ann, "link")
    assert bench.picture_of(ann, view.token)[1], "the first items are verification questions"
    bench.submit(ann, view.token, "same")
    again, ahead = bench.take_back(ann, view.token, "link", 2)
    assert again.captions == view.captions
    assert ahead.token != again.token
    bench.submit(ann, again.token, "different")
    with schema.reading(bench.engine) as connection:
        assert connection.execute(select(func.count()).select_from(schema.outcomes)).scalar_one() == 1


def test_a_finished_test_stays_finished(make_bench: MakeBench) -> None:
    bench = make_bench(images=3, known=20, test_questions=2, test_attempts=2, test_share=1.0)
    ann = bench.add_worker("ann")
    first = next_task(bench, ann, "link")
    bench.submit(ann, first.token, "same")
    (again,) = bench.take_back(ann, first.token, "link")
    assert (again.captions, again.test) == (first.captions, True)
    assert bench.standings(ann)["link"].test_answered == 0
    bench.submit(ann, again.token, "same")
    last = next_task(bench, ann, "link")
    bench.submit(ann, last.token, "same")
    with pytest.raises(StaleTask, match="any more"):
        bench.take_back(ann, last.token)


def test_answers_of_a_suspended_worker_are_not_taken_back(make_bench: MakeBench) -> None:
    bench = make_bench(images=1)
    ann = bench.add_worker("ann")
    view = next_task(bench, ann)
    bench.submit(ann, view.token, view.answers[0])
    bench.suspend(ann, view.task, "by hand")
    with pytest.raises(StaleTask, match="discarded"):
        bench.take_back(ann, view.token)
