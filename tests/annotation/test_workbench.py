"""The workbench over a database: leases, answers counted once, trust, reviews, and tables that agree with the log."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Event
from time import sleep
from typing import Any

import pytest
from PIL import Image as PillowImage
from sqlalchemy import func, inspect, select, text, update

from deixis.annotation import desk, schema
from deixis.annotation.project import create_project
from deixis.annotation.simulation.truth import Truth, truths
from deixis.annotation.views import TaskView
from deixis.annotation.workbench import StaleTask, Workbench
from deixis.annotation.workflow_records import (
    ANSWERS,
    CHAIN,
    COVERAGE,
    DRAWING,
    LINK,
    QUALITY,
    REQUIREMENT,
    TASKS,
    AcceptFix,
    Answer,
    BoxesFix,
    ChainsFix,
    Document,
    Question,
    Settings,
    check_answer,
    check_box,
)
from deixis.corpus import Box, Corpus, open_corpus
from deixis.errors import DeixisError, InputError
from tests.annotation.conftest import Clock, MakeBench
from tests.annotation.worlds import made_up_corpus


def everything() -> dict[str, Truth]:
    return truths(made_up_corpus(10), made_up_corpus(60, seed=99, first=1000))


def answer(bench: Workbench, worker: int, view: TaskView, *, right: bool = True) -> str:
    truth = everything_known[view.image]
    said = truth.right_answer(view) if right else truth.wrong_answer(view, Random(0))
    return bench.submit(worker, view.token, said).standing


everything_known = everything()


def work(bench: Workbench, workers: list[int], limit: int = 100_000) -> int:
    """Right answers in turn until nobody finds a task."""
    done = 0
    idle = 0
    while idle < len(workers) and done < limit:
        worker = workers[0]
        workers = [*workers[1:], worker]
        view = bench.next_task(worker)
        if view is None:
            idle += 1
            continue
        idle = 0
        answer(bench, worker, view)
        done += 1
    return done


def count(bench: Workbench, table: Any) -> int:
    with schema.reading(bench.engine) as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def test_a_project_without_known_answers_comes_to_its_end_and_the_export_is_the_truth(make_bench: MakeBench) -> None:
    bench = make_bench(images=3)
    done = work(bench, [bench.add_worker(name) for name in "abc"])
    progress = bench.progress()
    assert progress.finished == progress.images == 3
    assert sum(task.judgments for task in progress.tasks.values()) == done == count(bench, schema.judgments)
    assert bench.check() == []
    assert bench.agreement() == {"coverage": 100.0, "requirement": 100.0}
    exported = bench.export()
    assert exported.unfinished == 0
    for image, truth in zip(exported.corpus, made_up_corpus(3), strict=True):
        assert chains_of(image) == chains_of(truth)


def chains_of(image: Any) -> set[tuple[frozenset[tuple[int, int, int]], frozenset[Box], bool]]:
    """Chains by what they hold, whatever their ids: mentions, boxes, scene or not."""
    spans: dict[str, set[tuple[int, int, int]]] = {}
    for number, caption in enumerate(image.captions):
        for phrase in caption.phrases:
            spans.setdefault(phrase.chain, set()).add((number, phrase.start, phrase.end))
    return {(frozenset(spans[c.id]), frozenset(image.chain_boxes(c.id)), c.scene) for c in image.chains}


def test_two_workers_never_hold_the_same_item_and_asking_again_gives_the_same_task(make_bench: MakeBench) -> None:
    bench = make_bench(images=10)
    workers = [bench.add_worker(f"w{number}") for number in range(8)]
    views = {worker: bench.next_tasks(worker, count=2) for worker in workers}
    tokens = [view.token for own in views.values() for view in own]
    questions = [(view.image, view.captions, view.task) for own in views.values() for view in own]
    assert len(set(tokens)) == len(tokens) >= 8
    assert len(set(map(repr, questions))) == len(questions)
    assert {worker: bench.next_tasks(worker, count=2) for worker in workers} == views


def test_a_worker_who_walks_away_blocks_nobody_and_may_come_back_too_late(make_bench: MakeBench, clock: Clock) -> None:
    bench = make_bench(images=1)
    first, second = bench.add_worker("first"), bench.add_worker("second")
    mine = bench.next_tasks(first, LINK, count=50)
    assert bench.next_task(second, LINK) is None
    clock.now += bench.settings.lease_seconds + 1
    theirs = bench.next_task(second, LINK)
    assert theirs is not None
    lost = next(view for view in mine if view.captions == theirs.captions)
    with pytest.raises(StaleTask):
        answer(bench, first, lost)
    answer(bench, second, theirs)
    # A lease that ran out while nobody else wanted the item is still good.
    late = [view for view in mine if view.token != lost.token]
    for view in late:
        answer(bench, first, view)
    assert bench.check() == []


def test_an_answer_sent_again_is_counted_once_and_nobody_answers_for_another(make_bench: MakeBench) -> None:
    bench = make_bench(images=2)
    worker, other = bench.add_worker("w"), bench.add_worker("o")
    view = bench.next_task(worker)
    assert view is not None
    with pytest.raises(StaleTask):
        bench.submit(other, view.token, view.answers[0])
    receipt = bench.submit(worker, view.token, view.answers[0])
    assert bench.submit(worker, view.token, view.answers[0]) == receipt
    assert count(bench, schema.judgments) == 1
    with pytest.raises(StaleTask):
        bench.submit(other, view.token, view.answers[0])


def test_an_answer_that_does_not_fit_leaves_the_task_with_the_worker(make_bench: MakeBench) -> None:
    bench = make_bench(images=2)
    worker = bench.add_worker("w")
    view = bench.next_task(worker, DRAWING)
    while view is None:
        other = bench.next_task(worker)
        assert other is not None
        answer(bench, worker, other)
        view = bench.next_task(worker, DRAWING)
    for nonsense in ("maybe", Box(5, 5, 5, 5), Box(9, 9, 1, 1), Box(600, 600, 700, 700), Box(float("nan"), 0, 9, 9)):
        with pytest.raises(DeixisError):
            bench.submit(worker, view.token, nonsense)
    assert bench.next_task(worker, DRAWING) == view
    bench.submit(worker, view.token, Box(-5, 400, 90, 900))
    with pytest.raises(DeixisError, match="at least 2 pixels wide and high"):
        check_box(Box(1e9, 0, 1e300, 50), 0, 0)
    drawn = bench.export().corpus
    assert all(box.y2 <= 500 and box.x1 >= 0 for image in drawn for box in image.boxes)


def test_a_task_given_back_goes_to_another(make_bench: MakeBench) -> None:
    bench = make_bench(images=1)
    first, second = bench.add_worker("first"), bench.add_worker("second")
    mine = bench.next_tasks(first, LINK, count=50)
    bench.release(first, mine[0].token)
    theirs = bench.next_task(second, LINK)
    assert theirs is not None
    assert theirs.captions == mine[0].captions
    bench.release(second, theirs.token)
    assert bench.next_task(second, LINK) is None, "who gave it back does not get it again"
    assert bench.check() == []


def test_a_task_given_back_does_not_return_when_others_have_answered_it(make_bench: MakeBench) -> None:
    bench = make_bench(images=3)
    skipper, others = bench.add_worker("skipper"), [bench.add_worker(f"w{number}") for number in range(3)]
    while (view := bench.next_task(skipper, REQUIREMENT)) is None:
        work(bench, others, limit=1)
    bench.release(skipper, view.token)
    seen = bench.next_task(others[0], REQUIREMENT)
    assert seen is not None
    assert seen.captions == view.captions
    bench.submit(others[0], seen.token, "no box")
    second = bench.next_task(others[1], REQUIREMENT)
    assert second is not None
    assert second.captions == view.captions, "a second opinion is wanted"
    bench.release(others[1], second.token)
    again = bench.next_tasks(skipper, REQUIREMENT, count=50)
    assert view.captions not in [other.captions for other in again]


def test_skipping_does_not_reveal_a_verification_question(make_bench: MakeBench) -> None:
    bench = make_bench(images=3, known=60, test_questions=2, first_items=4)
    worker = bench.add_worker("w")
    for _ in range(2):
        test = bench.next_task(worker, LINK)
        assert test is not None
        assert test.test
        with pytest.raises(DeixisError, match="test questions cannot be skipped"):
            bench.release(worker, test.token)
        with pytest.raises(DeixisError, match="test questions cannot be skipped"):
            bench.report(worker, test.token, "too hard")
        answer(bench, worker, test)
    hidden = bench.next_task(worker, LINK)
    assert hidden is not None
    assert not hidden.test
    bench.release(worker, hidden.token)
    after = bench.next_task(worker, LINK)
    assert after is not None
    assert after.token != hidden.token
    assert after.captions != hidden.captions


def test_a_skipped_verification_question_is_shown_once_and_replaced_by_another(make_bench: MakeBench) -> None:
    bench = make_bench(images=3, known=60, test_questions=0, first_items=4)
    worker = bench.add_worker("w")
    with schema.reading(bench.engine) as connection:
        pool = connection.execute(select(func.count()).where(schema.known.c.task == LINK)).scalar_one()
    seen = []
    for number in range(pool + 5):
        view = bench.next_task(worker, LINK)
        assert view is not None
        with schema.reading(bench.engine) as connection:
            asked = select(schema.items.c.known_id).where(schema.items.c.token == view.token)
            seen.append(connection.execute(asked).scalar_one())
        if number % 2:
            bench.release(worker, view.token)
        else:
            bench.report(worker, view.token, "too hard")
    assert None not in seen, "before the first items are answered there is no work"
    assert len(set(seen[:pool])) == pool


def test_a_verification_question_that_waited_too_long_comes_again_as_any_task_does(
    make_bench: MakeBench, clock: Clock
) -> None:
    bench = make_bench(images=3, known=60, test_questions=0, first_items=4)
    worker = bench.add_worker("w")
    hidden = bench.next_task(worker, LINK)
    assert hidden is not None
    clock.now += bench.settings.lease_seconds + 1
    again = bench.next_task(worker, LINK)
    assert again is not None
    assert (again.image, again.captions) == (hidden.image, hidden.captions)
    assert again.token != hidden.token
    assert again.expires > clock.now
    with pytest.raises(StaleTask):
        bench.submit(worker, hidden.token, "same")
    bench.submit(worker, again.token, "same")


def test_tests_loaded_ahead_are_gone_once_the_test_is_passed(make_bench: MakeBench) -> None:
    bench = make_bench(images=3, known=60, test_questions=2, first_items=4)
    worker = bench.add_worker("w")
    for _ in range(2):
        answer(bench, worker, bench.next_tasks(worker, LINK, count=2)[0])
    assert not any(view.test for view in bench.next_tasks(worker, LINK, count=2))


def test_a_report_goes_to_the_reviewers_and_the_task_to_another(make_bench: MakeBench) -> None:
    bench = make_bench(images=1)
    worker, other, reviewer = bench.add_worker("w"), bench.add_worker("o"), bench.add_worker("r", "reviewer")
    views = bench.next_tasks(worker, LINK, count=50)
    with pytest.raises(DeixisError, match="needs a comment"):
        bench.report(worker, views[0].token, "  ")
    bench.report(worker, views[0].token, "the caption is of another picture")
    bench.report(worker, views[0].token, "the caption is of another picture")
    assert [waiting.reason for waiting in bench.review_queue()] == ["the caption is of another picture"]
    assert views[0].captions not in [view.captions for view in bench.next_tasks(worker, LINK, count=50)]
    assert views[0].captions in [view.captions for view in bench.next_tasks(other, LINK, count=50)]
    seen = bench.inspect_image(views[0].image)
    assert [event.comment for event in seen.history] == ["the caption is of another picture"]
    assert sum(task.judgments for task in bench.progress().tasks.values()) == 0, "a report is no answer"
    assert bench.check() == []
    bench.fix(reviewer, views[0].image, AcceptFix(seen.reviews[0].key), seen.version)
    assert bench.review_queue() == []


def test_a_worker_learns_of_a_test_how_far_it_is_and_no_more(make_bench: MakeBench) -> None:
    bench = make_bench(images=3, known=60, test_questions=4, first_items=4)
    worker = bench.add_worker("w")
    view = bench.next_task(worker, LINK)
    assert view is not None
    answer(bench, worker, view)
    standing = bench.standings(worker)[LINK]
    assert (standing.standing, standing.answered, standing.test_answered, standing.test_questions) == ("test", 1, 1, 4)
    assert bench.standings(worker)[DRAWING].test_answered == 0


@pytest.mark.parametrize("task", [LINK, CHAIN, QUALITY, COVERAGE])
def test_a_worker_with_one_constant_answer_fails_the_test(make_bench: MakeBench, task: str) -> None:
    bench = make_bench(images=3, known=60, test_questions=6, test_attempts=2, first_items=4)
    for constant in ANSWERS[task]:
        for number in range(3):
            worker = bench.add_worker(f"{constant} {number}")
            standing = ""
            while (view := bench.next_task(worker, task)) is not None:
                assert view.test
                standing = bench.submit(worker, view.token, constant).standing
            assert standing == "failed the test"
    log, known = schema.judgments, schema.known
    with schema.reading(bench.engine) as connection:
        query = select(log.c.worker_id, known.c.truth).join(known, known.c.id == log.c.known_id).order_by(log.c.id)
        rows = connection.execute(query).all()
    for worker in {row.worker_id for row in rows}:
        truths = [row.truth for row in rows if row.worker_id == worker]
        assert set(Counter(truths[:6]).values()) == set(Counter(truths[6:]).values()) == {3}


def test_the_first_test_is_of_a_task_that_has_open_questions(make_bench: MakeBench) -> None:
    bench = make_bench(images=3, known=60, test_questions=2, first_items=4)
    worker = bench.add_worker("w")
    open_tasks = {task for task, state in bench.progress().tasks.items() if state.open}
    assert 0 < len(open_tasks) < len(TASKS)
    view = bench.next_task(worker)
    assert view is not None
    assert (view.task in open_tasks, view.test) == (True, True)
    # Other tests can be taken ahead, by choice or when there is nothing else to do.
    later = next(task for task in TASKS if task not in open_tasks)
    ahead = bench.next_task(worker, later)
    assert ahead is not None
    assert ahead.test


def test_workers_are_tested_then_watched_in_their_first_items_and_then_now_and_then(make_bench: MakeBench) -> None:
    bench = make_bench(images=10, known=60, test_questions=4, first_items=6, hidden_share=0.25)
    worker = bench.add_worker("w")
    standings = []
    tests = 0
    for _ in range(60):
        view = bench.next_task(worker, LINK)
        if view is None:
            break
        tests += view.test
        standings.append(answer(bench, worker, view))
    assert tests == 4
    assert [standing for standing, _ in Counter(standings).items()] == ["test", "first items", "trusted"]
    assert Counter(standings)["test"] == 3
    assert Counter(standings)["first items"] == 6
    links = bench.progress().tasks[LINK]
    later = links.verification - 10
    assert 0 < later < links.judgments, "hidden questions stand among the work, and are not all of it"
    assert bench.workers()[0].accuracy[LINK] == 1.0


def test_a_worker_who_fails_the_test_gets_no_work_and_may_be_reinstated(make_bench: MakeBench) -> None:
    bench = make_bench(images=3, known=60, test_questions=4, first_items=6)
    worker = bench.add_worker("w")
    for _ in range(4 * bench.settings.test_attempts):
        view = bench.next_task(worker, LINK)
        assert view is not None
        assert view.test
        standing = answer(bench, worker, view, right=False)
    assert standing == "failed the test"
    assert bench.next_task(worker, LINK) is None
    assert bench.progress().tasks[LINK].judgments == 0
    bench.reinstate(worker, LINK, "had a bad day")
    view = bench.next_task(worker, LINK)
    assert view is not None
    assert view.test
    assert [decision.standing for decision in bench.decisions()] == ["failed the test", "test"]


def test_a_reinstatement_does_not_replace_the_test(make_bench: MakeBench) -> None:
    bench = make_bench(images=3, known=60, test_questions=2, first_items=4)
    worker = bench.add_worker("w")
    standings = []
    for _ in range(4):
        bench.suspend(worker, LINK, "by hand")
        bench.reinstate(worker, LINK, "by hand")
        standings.append(bench.standings(worker)[LINK].standing)
        view = bench.next_task(worker, LINK)
        assert view is not None
        answer(bench, worker, view)
        if len(standings) == 2:
            view = bench.next_task(worker, LINK)
            assert view is not None
            answer(bench, worker, view)
            view = bench.next_task(worker, LINK)
            assert view is not None
            assert not view.test
            answer(bench, worker, view)
    assert standings == ["test", "test", "first items", "first items"]


def test_a_worker_who_turns_bad_is_suspended_and_the_answers_are_asked_again(make_bench: MakeBench) -> None:
    bench = make_bench(images=10, known=60, test_questions=2, first_items=4, hidden_share=0.3)
    worker = bench.add_worker("w")
    standing = ""
    answered = 0
    while standing != "suspended":
        view = bench.next_task(worker, LINK)
        assert view is not None, "ran out of work before being caught"
        answered += 1
        standing = answer(bench, worker, view, right=answered <= 12)
    before = bench.progress().tasks[LINK]
    assert before.judgments == before.voided > 0
    assert bench.next_task(worker, LINK) is None
    bench.refresh()
    assert bench.progress().links_asked == 0
    assert bench.check() == []
    helper = bench.add_worker("helper")
    work(bench, [helper], limit=60)
    assert bench.progress().links_asked > 0


def test_an_answer_on_its_way_is_counted_once_and_void_if_its_worker_is_suspended_meanwhile(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(images=1)
    worker = bench.add_worker("w")
    view = bench.next_task(worker, LINK)
    assert view is not None
    recording, go_on = Event(), Event()

    def check_slowly(*given: Any) -> Answer:
        recording.set()
        assert go_on.wait(10)
        return check_answer(*given)

    monkeypatch.setattr(desk, "check_answer", check_slowly)
    with ThreadPoolExecutor(3) as threads:
        sent = [threads.submit(bench.submit, worker, view.token, "same")]
        assert recording.wait(10)
        sent.append(threads.submit(bench.submit, worker, view.token, "same"))
        suspended = threads.submit(bench.suspend, worker, LINK, "by hand")
        sleep(0.3)  # Both are at the database and wait for the first.
        go_on.set()
        assert len({answered.result().judgment for answered in sent}) == 1
        suspended.result()
    bench.refresh()
    links = bench.progress().tasks[LINK]
    assert (links.judgments, links.voided) == (1, 1)
    assert bench.check() == []


def test_drawers_are_judged_by_box_quality_and_good_boxes_outlive_their_drawer(make_bench: MakeBench) -> None:
    bench = make_bench(images=10, first_items=5)
    helpers = [bench.add_worker(name) for name in "abc"]
    bad = bench.add_worker("bad")
    for drawn in range(2000):
        for helper in helpers:
            for task in TASKS:
                view = bench.next_task(helper, task) if task != DRAWING else None
                if view is not None:
                    answer(bench, helper, view)
        view = bench.next_task(bad, DRAWING)
        if view is None:
            break
        right = drawn < 3
        said = everything_known[view.image].right_answer(view) if right else Box(480, 480, 490, 490)
        if bench.submit(bad, view.token, said).standing == "suspended":
            break
    report = next(report for report in bench.workers() if report.id == bad)
    assert report.standings[DRAWING] == "suspended"
    kept = {box for image in bench.export().corpus for box in image.boxes}
    assert Box(480, 480, 490, 490) not in kept
    assert len(kept) >= 1
    bench.refresh()
    assert bench.check() == []


def test_reviewers_settle_comments_and_fix_by_hand_with_history(make_bench: MakeBench) -> None:
    bench = make_bench(images=1)
    worker, reviewer = bench.add_worker("w"), bench.add_worker("r", "reviewer")
    view = bench.next_task(worker)
    assert view is not None
    bench.submit(worker, view.token, view.answers[0], "this is no phrase")
    (waiting,) = bench.review_queue()
    assert (waiting.image, waiting.reason) == (view.image, "this is no phrase")
    assert bench.next_task(worker, None) is not None
    with pytest.raises(DeixisError, match="not a task of worker"):
        bench.next_task(worker, "review")
    seen = bench.inspect_image(view.image)
    with pytest.raises(DeixisError, match="only reviewers"):
        bench.fix(worker, view.image, AcceptFix(waiting.key), seen.version)
    bench.fix(reviewer, view.image, AcceptFix(waiting.key), seen.version, "it is one")
    assert bench.review_queue() == []
    # The image has changed since: a fix made for what was seen before is refused.
    with pytest.raises(DeixisError, match="changed since"):
        bench.fix(reviewer, view.image, AcceptFix(waiting.key), seen.version)
    now = bench.inspect_image(view.image)
    ids = [mention.id for mention in now.document.mentions]
    bench.fix(reviewer, view.image, ChainsFix((tuple(ids),)), now.version)
    now = bench.inspect_image(view.image)
    assert [chain.mentions for chain in now.chains] == [tuple(ids)]
    bench.fix(reviewer, view.image, BoxesFix(ids[0], (Box(1, 1, 50, 50),)), now.version)
    done = bench.inspect_image(view.image)
    assert done.finished
    assert [event.what for event in done.history if event.what == "fix"] == ["fix"] * 3
    assert done.history[0].comment == "this is no phrase"
    assert bench.check() == []
    (image,) = bench.export().corpus
    assert image.boxes == (Box(1, 1, 50, 50),)


@pytest.mark.parametrize(
    "fix",
    [
        ChainsFix((("9:9-9",),)),
        BoxesFix("9:9-9", (Box(1, 1, 9, 9),)),
        BoxesFix("0:0-2", (), "box"),
        AcceptFix("nonsense"),
    ],
)
def test_a_fix_that_does_not_fit_its_image_is_refused(make_bench: MakeBench, fix: Any) -> None:
    bench = make_bench(images=1)
    reviewer = bench.add_worker("r", "reviewer")
    with pytest.raises(DeixisError, match="image0"):
        bench.fix(reviewer, "image0", fix, bench.inspect_image("image0").version)
    assert count(bench, schema.fixes) == 0


def test_chains_that_are_split_in_a_correction_get_ids_that_no_other_has(make_bench: MakeBench, tmp_path: Path) -> None:
    first = make_bench(images=3)
    work(first, [first.add_worker(f"w{number}") for number in range(5)])
    annotated = first.export().corpus
    # In another order, so that new chains of one image are numbered as the imported ones of another were.
    create_project(tmp_path / "again.db", annotated.with_images(annotated.images[::-1]), start="boxes", durable=False)
    with Workbench(tmp_path / "again.db", durable=False) as again:
        reviewer = again.add_worker("r", "reviewer")
        for image in annotated.images[:2]:
            seen = again.inspect_image(image.id)
            apart = tuple((mention.id,) for mention in seen.document.mentions)
            again.fix(reviewer, image.id, ChainsFix(apart), seen.version)
        corrected = again.export().corpus
    names = [chain.id for image in corrected for chain in image.chains]
    assert len(set(names)) == len(names)


def test_a_question_that_everybody_has_answered_waits_for_a_reviewer(make_bench: MakeBench) -> None:
    bench = make_bench(images=2)
    only = bench.add_worker("only")
    work(bench, [only])
    assert bench.progress().finished < 2
    assert {entry.reason for entry in bench.review_queue()} == {"no worker is left to ask"}
    bench.add_worker("another")
    assert bench.review_queue() == []


def test_a_question_whose_last_worker_lost_the_task_waits_for_a_reviewer(make_bench: MakeBench) -> None:
    bench = make_bench(images=2)
    first, second = bench.add_worker("first"), bench.add_worker("second")
    view = bench.next_task(first, LINK)
    assert view is not None
    bench.release(first, view.token)
    assert bench.review_queue() == []
    bench.suspend(second, LINK, "by hand")
    (waiting,) = bench.review_queue()
    highlights = [(caption.tokens, span) for caption in view.captions for span in caption.highlights]
    phrases = ", ".join(f"“{' '.join(tokens[start:end])}”" for tokens, (start, end) in highlights)
    assert (waiting.image, waiting.summary) == (view.image, f"Same thing? {phrases}: no worker is left to ask")
    bench.reinstate(second, LINK, "by hand")
    assert bench.review_queue() == []


def test_the_check_finds_a_table_that_disagrees_with_the_log(make_bench: MakeBench) -> None:
    bench = make_bench(images=2)
    assert bench.check() == []
    with schema.writing(bench.engine) as connection:
        connection.execute(update(schema.items).where(schema.items.c.id == 1).values(key="link nobody nowhere"))
    assert len(bench.check()) == 1


class FirstAnswer:
    """Proposes the first answer of every question with words."""

    def propose(self, question: Question, document: Document) -> Answer | None:
        return "same" if question.task == LINK else None


def test_the_share_of_accepted_proposals_is_recorded(make_bench: MakeBench, place: str) -> None:
    make_bench(images=5).close()
    with Workbench(place, assistant=FirstAnswer(), durable=False) as bench:
        worker = bench.add_worker("w")
        for said in ("same", "different", "same"):
            view = bench.next_task(worker, LINK)
            assert view is not None
            assert view.proposal == "same"
            bench.submit(worker, view.token, said)
        links = bench.progress().tasks[LINK]
        assert (links.proposed, links.accepted) == (3, 2)


def test_a_newer_schema_is_refused_and_an_older_one_is_brought_up(
    make_bench: MakeBench, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bench(images=1).close()
    ran = []
    step = lambda connection: ran.append(connection.dialect.name)  # noqa: E731
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, step))
    Workbench(place).close()
    Workbench(place).close()
    assert len(ran) == 1
    monkeypatch.undo()
    with pytest.raises(InputError, match="newer"):
        Workbench(place)


def test_hours_count_the_time_between_answers_without_breaks(make_bench: MakeBench, clock: Clock) -> None:
    bench = make_bench(images=2, link_together=False)
    ann = bench.add_worker("ann")
    bench.add_worker("bob")
    for pause in (0, 10, 20, 3000, 30):
        clock.now += pause
        view = bench.next_task(ann, "link")
        assert view is not None
        bench.submit(ann, view.token, "different")
    ann_report, bob_report = bench.workers()
    assert ann_report.seconds == {"link": 20.0}
    assert ann_report.hours == round(60 / 3600, 2)
    assert ann_report.last_seen == clock.now
    assert (bob_report.seconds, bob_report.hours, bob_report.last_seen) == ({}, 0.0, 0.0)


def test_the_list_of_images_counts_disagreement(make_bench: MakeBench) -> None:
    bench = make_bench(images=3)
    people = [bench.add_worker(name) for name in ("ann", "bob", "cleo")]
    chance = Random(3)
    for _ in range(200):
        worker = chance.choice(people)
        view = bench.next_task(worker)
        if view is not None:
            bench.submit(worker, view.token, chance.choice(view.answers))
    listed = bench.list_images("disputed").images
    assert [image.disputed for image in listed] == sorted((image.disputed for image in listed), reverse=True)
    assert listed[0].disputed > 0
    assert set(listed[0].workers) <= {"ann", "bob", "cleo"}
    assert sum(image.answers for image in bench.list_images().images) == sum(
        task.judgments - task.voided for task in bench.progress().tasks.values()
    )
    assert bench.neighbours(listed[0].id, "disputed").place == 1
    assert bench.check() == []


def test_a_project_of_version_1_goes_on_as_it_began(make_bench: MakeBench, place: str) -> None:
    bench = make_bench(images=2, known=20, link_together=False, test_questions=0, first_items=0, hidden_share=0.0)
    ann = bench.add_worker("ann")
    view = bench.next_task(ann, "link")
    assert view is not None
    bench.submit(ann, view.token, "same")
    with schema.writing(bench.engine) as connection:
        for statement in (
            "ALTER TABLE images DROP COLUMN waiting",
            "ALTER TABLE images DROP COLUMN disputed",
            "ALTER TABLE known DROP COLUMN evidence",
            "DROP TABLE voided",
            "CREATE TABLE voided (judgment_id INTEGER PRIMARY KEY REFERENCES judgments (id), "
            "decision_id INTEGER NOT NULL REFERENCES decisions (id))",
            "UPDATE project SET value = '1' WHERE key = 'schema'",
            "UPDATE project SET value = '{\"test_questions\": 0, \"first_items\": 0}' WHERE key = 'settings'",
        ):
            connection.exec_driver_sql(statement)
    bench.close()
    with Workbench(place) as opened:
        assert opened.settings == Settings(link_together=False, test_questions=0, first_items=0)
        assert opened.refresh() == 2
        assert opened.check() == []
        assert len(opened.take_back(ann, view.token)) == 1
        assert opened.check() == []


def test_a_project_is_made_once_and_wholly_or_not_at_all(place: str) -> None:
    with pytest.raises(DeixisError, match="at least one image"):
        create_project(place, Corpus([]))
    with pytest.raises(DeixisError, match="questions for"):
        create_project(place, made_up_corpus(2), start="mentions", known=made_up_corpus(1), durable=False)
    assert "://" in place or not Path(place).exists()
    create_project(place, made_up_corpus(2), start="mentions", durable=False)
    with pytest.raises(InputError, match="already"):
        create_project(place, made_up_corpus(3), start="mentions", durable=False)
    with Workbench(place) as bench:
        assert bench.progress().images == 2, "the project that was there is untouched"


def test_a_database_of_something_else_is_never_touched(place: str) -> None:
    engine = schema.open_engine(place)
    with schema.writing(engine) as connection:
        connection.execute(text("CREATE TABLE images (photo TEXT)"))
        connection.execute(text("INSERT INTO images VALUES ('dear')"))
    with pytest.raises(InputError, match="already has tables named images"):
        create_project(place, made_up_corpus(2), start="mentions", durable=False)
    with schema.reading(engine) as connection:
        assert connection.execute(text("SELECT photo FROM images")).scalars().all() == ["dear"]
        assert inspect(connection).get_table_names() == ["images"]
    with schema.writing(engine) as connection:
        connection.execute(text("DROP TABLE images"))
        connection.execute(text("CREATE TABLE others (photo TEXT)"))
    with pytest.raises(DeixisError, match="questions for"):
        create_project(place, made_up_corpus(2), start="mentions", known=made_up_corpus(1), durable=False)
    assert inspect(engine).get_table_names() == ["others"], "of a project that could not be made nothing is left"
    create_project(place, made_up_corpus(2), start="mentions", durable=False)
    engine.dispose()


def test_sizes_that_the_corpus_lacks_are_those_of_the_pictures(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    PillowImage.new("RGB", (300, 200)).save(photos / "a.jpg")
    (photos / "b.jpg").write_bytes(b"no picture")
    (photos / "captions.csv").write_text("image,caption\na.jpg,A man with a dog.\nb.jpg,A man with a dog.\n")
    create_project(tmp_path / "project.db", open_corpus(photos), durable=False)
    with Workbench(tmp_path / "project.db") as bench:
        worker = bench.add_worker("w")
        sizes = {image.file: (image.width, image.height) for image in bench.export().corpus}
        assert sizes == {"a.jpg": (300, 200), "b.jpg": (0, 0)}
        view = bench.next_task(worker, DRAWING)
        assert view is not None
        assert (view.width, view.height) == (300, 200)
        bench.submit(worker, view.token, Box(-10, 5, 1e6, 1e300))
        judged = bench.next_task(bench.add_worker("other"), "quality")
        assert judged is not None
        assert judged.box == Box(0, 5, 300, 200)


def test_what_is_no_project_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DeixisError, match="deixis annotate init"):
        Workbench(tmp_path / "missing.db")
    (tmp_path / "text.db").write_text("not a database, but long enough to look like a file of one" * 20)
    with pytest.raises(InputError, match="cannot be opened"):
        Workbench(tmp_path / "text.db")
    (tmp_path / "empty.db").touch()
    with pytest.raises(InputError, match="is not an annotation project"):
        Workbench(tmp_path / "empty.db")
    with pytest.raises(DeixisError, match="neither a file nor a database") as printed:
        Workbench("nonsense://me:secret@there/db")
    assert "secret" not in str(printed.value)


def test_a_database_server_that_does_not_answer_is_no_damaged_project() -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with pytest.raises(InputError, match="check that the server runs") as raised:
        Workbench("postgresql://me:secret@127.0.0.1:1/project")
    assert "backup" not in str(raised.value)
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_settings_come_back_as_they_were_given(make_bench: MakeBench) -> None:
    assert make_bench(images=1, solo=True, cycle_limit=7).settings == Settings(solo=True, cycle_limit=7)


def test_one_person_alone_can_finish(make_bench: MakeBench) -> None:
    bench = make_bench(images=2, solo=True)
    work(bench, [bench.add_worker("me")])
    assert bench.progress().finished == 2
    assert bench.check() == []


def test_a_box_that_is_sent_again_is_recognised_as_it_was_sent(make_bench: MakeBench) -> None:
    bench = make_bench(images=2, solo=True)
    worker = bench.add_worker("ann")
    answers = {"link": "different", "chain": "same", "requirement": "box"}
    while (view := bench.next_task(worker)) is not None and view.task != DRAWING:
        bench.submit(worker, view.token, answers[view.task])
    assert view is not None
    beyond = Box(-10, -10, 100, 100)
    receipt = bench.submit(worker, view.token, beyond)
    assert bench.submit(worker, view.token, beyond) == receipt
    assert bench.submit(worker, view.token, Box(0, 0, 100, 100)) == receipt
    for other in (Box(0, 0, 90, 100), Box(0, 0, 0, 0), "none"):
        with pytest.raises(StaleTask, match="answered differently"):
            bench.submit(worker, view.token, other)
