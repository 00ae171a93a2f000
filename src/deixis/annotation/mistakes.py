"""What a worker learns after a test: which answers were wrong, the right ones, and boxes that show why."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, select

from deixis.annotation import schema
from deixis.annotation.image_store import decode_answer, decode_document, decode_question
from deixis.annotation.known import decode_truth
from deixis.annotation.standing_store import Rules, Standings
from deixis.annotation.views import TaskView, task_view
from deixis.annotation.workflow_records import BOX, Answer, Document
from deixis.corpus import Box

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
