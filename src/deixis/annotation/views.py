"""Views for the web pages: a task with its captions, highlights and boxes, without anything hidden from workers.

After a test, a worker also learns which answers were wrong, the right ones, and boxes that show why.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, select

from deixis.annotation import schema
from deixis.annotation.image_store import decode_answer, decode_document, decode_question
from deixis.annotation.known import decode_truth
from deixis.annotation.standing_store import Rules, Standings
from deixis.annotation.workflow_records import ANSWERS, BOX, Answer, Document, Question, by_id
from deixis.corpus import Box


class CaptionView(msgspec.Struct, frozen=True):
    """Caption `number` of the image, as tokens. `highlights` are token spans, end exclusive."""

    number: int
    tokens: tuple[str, ...]
    highlights: tuple[tuple[int, int], ...]


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A task leased to a worker; answer it with `Workbench.submit` and its token before `expires` (Unix time).

    `test` is true in a qualification test. Hidden verification questions look like any other question.
    """

    token: str
    task: str
    test: bool
    image: str
    answers: tuple[str, ...]
    width: int
    height: int
    captions: tuple[CaptionView, ...]
    boxes: tuple[Box, ...]
    box: Box | None
    reason: str
    expires: float
    proposal: Answer | None = None


def task_view(
    question: Question, document: Document, token: str, expires: float, *, test: bool, proposal: Answer | None = None
) -> TaskView:
    known = by_id(document.mentions)
    spans: dict[int, list[tuple[int, int]]] = {}
    for name in question.mentions:
        if name in known:
            spans.setdefault(known[name].caption, []).append((known[name].start, known[name].end))
    shown = spans or {index: [] for index in range(len(document.image.captions))}
    captions = [
        CaptionView(index, document.image.captions[index].tokens, tuple(sorted(shown[index])))
        for index in sorted(shown)
    ]
    return TaskView(
        token=token,
        task=question.task,
        test=test,
        image=document.image.id,
        answers=ANSWERS.get(question.task, ()),
        width=document.image.width,
        height=document.image.height,
        captions=tuple(captions),
        boxes=question.boxes,
        box=question.box,
        reason=question.reason,
        expires=expires,
        proposal=proposal,
    )


_boxes = msgspec.json.Decoder(tuple[Box, ...])


class Mistake(msgspec.Struct, frozen=True):
    """A wrong answer in a test. `right` is the word that would have been right, `evidence` are boxes that show why.

    The picture is that of the task with the token of the view.
    """

    view: TaskView
    answer: Answer
    right: str
    evidence: tuple[Box, ...]


def wrong_test_answers(connection: Connection, worker: int, task: str, rules: Rules) -> list[Mistake]:
    """The wrong answers of the worker's last finished attempt at the test of a task."""
    log, known, outcomes = schema.judgments, schema.known, schema.outcomes
    since = Standings(connection, worker, rules).since(task)
    query = (
        select(log.c.answer, log.c.token, outcomes.c.correct)
        .add_columns(known.c.document, known.c.question, known.c.truth, known.c.evidence)
        .join(outcomes, outcomes.c.judgment_id == log.c.id)
        .join(known, known.c.id == log.c.known_id)
        .where(outcomes.c.worker_id == worker, outcomes.c.task == task, outcomes.c.test, log.c.id > since)
        .order_by(log.c.id)
    )
    rows = connection.execute(query).all()
    length = rules.settings.test_questions
    if not rules.settings.test_explained or not length or len(rows) < length:
        return []
    end = len(rows) // length * length
    mistakes = []
    for row in rows[end - length : end]:
        if not row.correct:
            document, truth = decode_document(row.document), decode_truth(row.truth)
            view = task_view(decode_question(row.question), document, row.token, 0.0, test=True)
            evidence = _boxes.decode(row.evidence) if row.evidence is not None else ()
            right = truth if isinstance(truth, str) else BOX
            mistakes.append(Mistake(view, decode_answer(row.answer), right, evidence))
    return mistakes


def tested_document(connection: Connection, worker: int, token: str) -> Document | None:
    """The document of a test question that the worker has answered, or None."""
    log, known = schema.judgments, schema.known
    query = select(known.c.document).join(log, log.c.known_id == known.c.id)
    document = connection.execute(query.where(log.c.token == token, log.c.worker_id == worker, known.c.test)).scalar()
    return None if document is None else decode_document(document)
