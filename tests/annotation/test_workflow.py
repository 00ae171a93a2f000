"""The workflow as a pure function: nothing is lost, nobody is asked twice, it always ends, and the log is the state."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deixis.annotation.mentions import given_document
from deixis.annotation.workflow import ImageState, image_state
from deixis.annotation.workflow_records import (
    ANSWERS,
    DRAWING,
    LINK,
    REVIEW,
    AcceptFix,
    BoxesFix,
    ChainsFix,
    Document,
    Fix,
    Judgment,
    Mention,
    MentionsFix,
    Question,
    Settings,
)
from deixis.corpus import Box
from tests.annotation.worlds import made_up_image


def answered(
    document: Document, chance: Random, workers: int, settings: Settings, begun: Sequence[Judgment] = ()
) -> tuple[ImageState, list[Judgment]]:
    """Answer open questions at random, each by a worker who is allowed to, until none is left; reviews are accepted."""
    log = list(begun)
    fixes: list[Fix] = []
    state = image_state(document, log, fixes, settings)
    # Every question that comes up is counted against a bound that a workflow without end would break.
    for _ in range(20_000):
        if not state.questions:
            return state, log
        question = chance.choice(state.questions)
        if question.task == REVIEW:
            fixes.append(AcceptFix(question.key))
        else:
            free = [worker for worker in range(1, workers + 1) if worker not in question.barred]
            if not free:
                workers += 1
                free = [workers]
            log.append(
                Judgment(
                    len(log) + 10_000, question.task, question.key, chance.choice(free), an_answer(question, chance)
                )
            )
        state = image_state(document, log, fixes, settings)
    raise AssertionError("the workflow does not end")


def an_answer(question: Question, chance: Random) -> str | Box:
    if question.task == DRAWING and chance.random() < 0.6:
        left, top = chance.randint(0, 400), chance.randint(0, 400)
        return Box(left, top, left + chance.randint(5, 90), top + chance.randint(5, 90))
    return chance.choice(ANSWERS[question.task])


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 6), st.booleans())
def test_any_answers_lead_to_an_end_where_every_mention_has_one_chain(seed: int, workers: int, solo: bool) -> None:
    chance = Random(seed)
    document = given_document(made_up_image(0, chance), "mentions")
    state, log = answered(document, chance, workers, Settings(solo=solo, box_limit=3))
    placed = [mention for chain in state.chains for mention in chain.mentions]
    assert sorted(m.id for m in placed) == sorted(m.id for m in document.mentions)
    assert all(chain.verdict is not None for chain in state.chains)
    if not solo:
        asked = [(judgment.worker, judgment.key) for judgment in log]
        assert len(set(asked)) == len(asked), "a worker was asked the same question twice"
        assert state.unused == 0


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.booleans())
def test_links_are_asked_across_captions_within_types_and_at_most_once_a_chain(seed: int, together: bool) -> None:
    chance = Random(seed)
    document = given_document(made_up_image(0, chance), "mentions")
    state, log = answered(document, chance, 5, Settings(box_limit=3, link_together=together))
    mentions = {mention.id: mention for mention in document.mentions}
    links = [judgment.key.split()[1:] for judgment in log if judgment.task == LINK]
    for names in links:
        assert together or len(names) == 2
        for first, second in combinations(names, 2):
            assert mentions[first].caption != mentions[second].caption
            assert set(mentions[first].types) & set(mentions[second].types)
    for chain in state.chains:
        captions = [mention.caption for mention in chain.mentions]
        assert len(set(captions)) == len(captions)
    assert state.links == len(links) <= len(mentions) ** 2


@settings(max_examples=12)
@given(st.integers(0, 10_000))
def test_the_state_depends_on_the_log_alone_and_not_on_the_order_of_unrelated_answers(seed: int) -> None:
    chance = Random(seed)
    document = given_document(made_up_image(0, chance), "mentions")
    options = Settings(box_limit=3)
    _, log = answered(document, chance, 6, options)
    cut = log[: chance.randint(0, len(log))]
    mixed = cut.copy()
    chance.shuffle(mixed)
    by_key: dict[str, list[Judgment]] = {}
    for judgment in cut:
        by_key.setdefault(judgment.key, []).append(judgment)
    # Answers to one question stay in their order, the questions are mixed.
    mixed = [by_key[judgment.key].pop(0) for judgment in mixed]
    assert image_state(document, cut, (), options) == image_state(document, mixed, (), options)


@settings(max_examples=12)
@given(st.integers(0, 10_000))
def test_answers_that_are_taken_away_are_asked_again_and_the_others_are_kept(seed: int) -> None:
    chance = Random(seed)
    document = given_document(made_up_image(0, chance), "mentions")
    options = Settings(box_limit=3)
    _, log = answered(document, chance, 4, options)
    left = [judgment for judgment in log if judgment.worker != 1]
    state, again = answered(document, chance, 8, options, left)
    assert again[: len(left)] == left
    placed = [mention.id for chain in state.chains for mention in chain.mentions]
    assert sorted(placed) == sorted(mention.id for mention in document.mentions)
    asked = [(judgment.worker, judgment.key) for judgment in again]
    assert len(set(asked)) == len(asked), "a worker was asked the same question twice"


def test_a_reviewer_can_change_mentions_chains_and_boxes_and_has_the_last_word() -> None:
    document = given_document(made_up_image(0, Random(5)), "mentions")
    first, second = document.mentions[0], document.mentions[1]
    shorter = Mention(first.caption, first.end - 1, first.end, first.text.split()[-1], ("other",))
    fixes: list[Fix] = [MentionsFix((shorter, second))]
    state = image_state(document, (), fixes, Settings())
    assert state.mentions == (shorter, second)
    fixes += [ChainsFix(((shorter.id, second.id),))]
    state = image_state(document, (), fixes, Settings())
    assert [chain.mentions for chain in state.chains] == [(shorter, second)]
    fixes += [BoxesFix(second.id, (Box(1, 2, 30, 40),)), BoxesFix(shorter.id, (), "scene")]
    state = image_state(document, (), fixes, Settings())
    assert state.finished
    assert state.chains[0].verdict == "scene"
    fixes += [ChainsFix(((second.id,),))]
    state = image_state(document, (), fixes, Settings())
    assert [(c.mentions, c.verdict) for c in state.chains] == [((shorter,), "scene"), ((second,), "box")]


@pytest.mark.parametrize("start", ["chains", "boxes"])
def test_imported_annotations_are_verified_and_keep_their_ids(start: str) -> None:
    image = made_up_image(0, Random(9))
    document = given_document(image, start)  # type: ignore[arg-type]
    state = image_state(document, (), (), Settings())
    tasks = {question.task for question in state.questions}
    assert LINK not in tasks
    if start == "boxes":
        log: list[Judgment] = []
        good = {"chain": "same", "quality": "good", "coverage": "all", "requirement": "scene"}
        for worker in range(1, 60):
            for question in state.questions:
                log.append(Judgment(len(log) + 1, question.task, question.key, worker, good[question.task]))
            state = image_state(document, log, (), Settings())
        assert state.finished
        found = {chain.given: chain.boxes for chain in state.chains}
        assert found == {chain.id: image.chain_boxes(chain.id) for chain in image.chains}


def test_a_comment_waits_for_a_reviewer_and_holds_up_nobody_else() -> None:
    document = given_document(made_up_image(0, Random(5)), "mentions")
    question = image_state(document, (), (), Settings()).questions[0]
    said = Judgment(1, question.task, question.key, 1, ANSWERS[question.task][0], "not a phrase")
    state = image_state(document, [said], (), Settings())
    assert [q.reason for q in state.questions if q.task == REVIEW] == ["not a phrase"]
    assert [q for q in state.questions if q.task != REVIEW]
    accepted = image_state(document, [said], [AcceptFix("review comment 1")], Settings())
    assert not [q for q in accepted.questions if q.task == REVIEW]
