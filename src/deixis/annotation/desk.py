"""Showing, answering, reporting, releasing and taking back one task, inside a transaction."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row, bindparam, delete, exists, insert, select, update

from deixis.annotation import schema, standing_store, taking_back
from deixis.annotation.image_store import (
    all_fixes,
    decode_answer,
    decode_document,
    decode_question,
    load_document,
    lock_image,
    refresh_image,
)
from deixis.annotation.known import right_answer
from deixis.annotation.standing_store import Rules, Standings
from deixis.annotation.taking_back import StaleTask
from deixis.annotation.trust import Standing
from deixis.annotation.views import TaskView, task_view
from deixis.annotation.workflow_records import (
    DRAWING,
    REPORT,
    REVIEW,
    Answer,
    Document,
    MentionsFix,
    Question,
    check_answer,
    check_box,
)
from deixis.errors import DeixisError

# Most images have no fixes. `fixed` is part of the query, so that those need no second one.
_ITEM_AND_FIXED = select(
    schema.items, exists().where(schema.fixes.c.image_id == schema.items.c.image_id).label("fixed")
)
_ITEM = _ITEM_AND_FIXED.where(schema.items.c.id == bindparam("number"))
_HELD_ITEM = _ITEM_AND_FIXED.where(
    schema.items.c.token == bindparam("token"), schema.items.c.worker_id == bindparam("worker")
)
# Locked until the transaction ends, so that a suspension comes entirely before or after it.
_LOCK_HELD_ITEM = _HELD_ITEM.with_for_update(of=schema.items)
_KNOWN = select(schema.known.c.document, schema.known.c.truth, schema.known.c.test).where(
    schema.known.c.id == bindparam("number")
)
_RECORD = insert(schema.judgments).returning(schema.judgments.c.id)


class Receipt(msgspec.Struct, frozen=True):
    """A recorded answer: the judgment's id, and the worker's standing in the task after it."""

    judgment: int
    standing: str


class ShownTask(NamedTuple):
    """A task as shown to a worker, and the question and document that an assistant needs to propose an answer."""

    view: TaskView
    question: Question
    document: Document


class Desk:
    """Handles tasks by a project's rules. Every method works in the transaction of its connection."""

    def __init__(self, rules: Rules, clock: Callable[[], float]) -> None:
        self._rules, self._clock = rules, clock

    def held_item(self, connection: Connection, worker: int, token: str) -> Row[Any] | None:
        return connection.execute(_HELD_ITEM, {"token": token, "worker": worker}).one_or_none()

    def show(self, connection: Connection, number: int) -> ShownTask:
        """The view of an item's task."""
        item = connection.execute(_ITEM, {"number": number}).one()
        question = decode_question(item.question)
        document, test = self.document_of(connection, item)
        proposal = None if item.proposal is None else decode_answer(item.proposal)
        view = task_view(question, document, item.token, item.leased_until, test=test, proposal=proposal)
        return ShownTask(view, question, document)

    def document_of(self, connection: Connection, item: Row[Any]) -> tuple[Document, bool]:
        """The document of an item, with the mentions of the latest fix, and whether it is a test question."""
        if item.known_id is not None:
            known = connection.execute(_KNOWN, {"number": item.known_id}).one()
            return decode_document(known.document), known.test
        document = load_document(connection, item.image_id)
        if not item.fixed:
            return document, False
        fixes = all_fixes(connection, item.image_id, item.image_id).get(item.image_id, [])
        changed = next((fix.mentions for fix in reversed(fixes) if isinstance(fix, MentionsFix)), None)
        return (document if changed is None else msgspec.structs.replace(document, mentions=changed)), False

    def answer(self, connection: Connection, worker: int, token: str, answer: Answer, comment: str) -> Receipt:
        """Record an answer, then update the image and the worker's standing."""
        item = self.held_item(connection, worker, token)
        if item is None:
            return self._earlier_receipt(connection, worker, token, answer)
        if item.task == REVIEW:
            raise DeixisError("a review is answered with a fix")
        if item.image_id is not None:
            lock_image(connection, item.image_id)
            # The transaction that held the image before may have closed the question or recorded this same answer.
            if self._lock_item(connection, worker, token) is None:
                return self._earlier_receipt(connection, worker, token, answer)
        image = self.document_of(connection, item)[0].image
        checked = check_answer(decode_question(item.question), answer, image.width, image.height)
        judgment = self._record(connection, item, worker, checked, comment)
        if item.known_id is not None:
            standing = self._check_known(connection, item, judgment, worker, checked)
        else:
            connection.execute(schema.RELEASE, {"number": item.id})
            self.update_image(connection, item.image_id)
            standing = Standings(connection, worker, self._rules).of(item.task)
        return Receipt(judgment, str(standing))

    def report(self, connection: Connection, worker: int, token: str, comment: str) -> None:
        """Give a task back with a comment for the reviewers, which is added to the log."""
        item = self.held_item(connection, worker, token)
        if item is None:
            self._earlier_receipt(connection, worker, token)
            return
        self._refuse_test_question(connection, item)
        if item.image_id is not None:
            lock_image(connection, item.image_id)
            if self._lock_item(connection, worker, token) is None:
                self._earlier_receipt(connection, worker, token)
                return
        values = {"image_id": item.image_id, "known_id": item.known_id, "token": item.token, "worker_id": worker}
        values |= {"task": REPORT, "key": f"{REPORT} {item.key}", "answer": msgspec.json.encode("")}
        connection.execute(_RECORD, values | {"comment": comment.strip(), "created": self._clock()})
        self._put_back(connection, item, worker)
        if item.image_id is not None:
            self.update_image(connection, item.image_id)

    def release(self, connection: Connection, worker: int, token: str) -> None:
        """Give a task back unanswered."""
        item = self._lock_item(connection, worker, token)
        if item is not None:
            self._refuse_test_question(connection, item)
            self._put_back(connection, item, worker)

    def take_back(self, connection: Connection, worker: int, token: str) -> int | None:
        """Take back the worker's last answer. Returns the item that asks the question again, leased to this worker."""
        answer = taking_back.void_last_answer(connection, worker, token, self._rules)
        if answer.image_id is not None:
            self.update_image(connection, answer.image_id)
        return taking_back.lease_again(connection, worker, answer, self._clock(), self._rules.settings.lease_seconds)

    def _lock_item(self, connection: Connection, worker: int, token: str) -> Row[Any] | None:
        return connection.execute(_LOCK_HELD_ITEM, {"token": token, "worker": worker}).one_or_none()

    def _refuse_test_question(self, connection: Connection, item: Row[Any]) -> None:
        if self.document_of(connection, item)[1]:
            raise DeixisError("test questions cannot be skipped")

    def _put_back(self, connection: Connection, item: Row[Any], worker: int) -> None:
        """Release an item for other workers; this worker does not get it, or this verification question, again."""
        if item.known_id is not None:
            change = update(schema.items).where(schema.items.c.id == item.id)
            connection.execute(change.values(token=None, leased_until=0.0, proposal=None))
            return
        connection.execute(schema.RELEASE, {"number": item.id})
        connection.execute(insert(schema.barred).values(item_id=item.id, worker_id=worker))

    def update_image(self, connection: Connection, image_id: int) -> None:
        """Recompute a locked image from the log, and the standing of workers whose boxes were judged."""
        for drawer in sorted(refresh_image(connection, image_id, self._rules.settings)):
            standing_store.update_standing(connection, drawer, DRAWING, self._rules, self._clock())

    def _earlier_receipt(self, connection: Connection, worker: int, token: str, sent: Answer | None = None) -> Receipt:
        """The receipt of an answer that was recorded before. `StaleTask` if there is none, or if `sent` is another."""
        log = schema.judgments
        columns = (log.c.id, log.c.task, log.c.answer, log.c.image_id, log.c.known_id)
        row = connection.execute(select(*columns).where(log.c.token == token, log.c.worker_id == worker)).one_or_none()
        if row is None:
            raise StaleTask("this task went to somebody else or is no longer needed; ask for the next one")
        if sent is not None and not self._is_recorded(connection, row, sent):
            raise StaleTask("this task was answered differently before; ask for the next one")
        return Receipt(row.id, str(Standings(connection, worker, self._rules).of(row.task)))

    def _is_recorded(self, connection: Connection, row: Any, sent: Answer) -> bool:
        """Whether the answer of a judgment is this one. Boxes are clipped before they are recorded."""
        recorded = decode_answer(row.answer)
        if isinstance(sent, str) or isinstance(recorded, str):
            return sent == recorded
        if row.known_id is None:
            image = load_document(connection, row.image_id).image
        else:
            image = decode_document(connection.execute(_KNOWN, {"number": row.known_id}).one().document).image
        with suppress(DeixisError):
            return check_box(sent, image.width, image.height) == recorded
        return False

    def _record(self, connection: Connection, item: Row[Any], worker: int, answer: Answer, comment: str) -> int:
        values = {name: getattr(item, name) for name in ("image_id", "known_id", "task", "key", "proposal", "token")}
        values |= {"worker_id": worker, "answer": msgspec.json.encode(answer), "comment": comment.strip()}
        values["created"] = self._clock()
        return int(connection.execute(_RECORD, values).scalar_one())

    def _check_known(
        self, connection: Connection, item: Row[Any], judgment: int, worker: int, answer: Answer
    ) -> Standing:
        known = connection.execute(_KNOWN, {"number": item.known_id}).one()
        connection.execute(delete(schema.items).where(schema.items.c.id == item.id))
        values = {"judgment_id": judgment, "worker_id": worker, "task": item.task, "test": known.test}
        connection.execute(insert(schema.outcomes).values(correct=right_answer(answer, known.truth), **values))
        return standing_store.update_standing(connection, worker, item.task, self._rules, self._clock())
