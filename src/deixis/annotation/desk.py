"""What happens to one task inside a transaction: it is shown, answered, and its image brought up to date."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row, bindparam, delete, exists, insert, select, update

from deixis.annotation import schema, standing_store
from deixis.annotation.image_store import (
    all_fixes,
    decode_answer,
    decode_document,
    decode_question,
    load_document,
    refresh_image,
    take_image,
)
from deixis.annotation.known import right_answer
from deixis.annotation.standing_store import Rules, Standings
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
)
from deixis.errors import DeixisError

# Most images are never corrected by hand: whether one was, is told along, so that others cost no question.
_ITEM_AND_FIXED = select(
    schema.items, exists().where(schema.fixes.c.image_id == schema.items.c.image_id).label("fixed")
)
_ITEM = _ITEM_AND_FIXED.where(schema.items.c.id == bindparam("number"))
_OWN_ITEM = _ITEM_AND_FIXED.where(
    schema.items.c.token == bindparam("token"), schema.items.c.worker_id == bindparam("worker")
)
# Held until the transaction ends: a suspension that comes in between waits, or has taken the item before.
_HOLD_OWN_ITEM = _OWN_ITEM.with_for_update(of=schema.items)
_KNOWN = select(schema.known.c.document, schema.known.c.truth, schema.known.c.test).where(
    schema.known.c.id == bindparam("number")
)
_RECORD = insert(schema.judgments).returning(schema.judgments.c.id)


class StaleTask(DeixisError):
    """The task is no longer the worker's: its lease ran out and another answered, or it is not needed any more."""


class Receipt(msgspec.Struct, frozen=True):
    """An answer that was recorded: the judgment's number, and the worker's standing in the task after it."""

    judgment: int
    standing: str


class Shown(NamedTuple):
    """A task as it is shown, and what a model that proposes answers gets to see of it."""

    view: TaskView
    question: Question
    document: Document


class Desk:
    """The rules and the clock by which tasks are handled; every method works in the transaction it is given."""

    def __init__(self, rules: Rules, clock: Callable[[], float]) -> None:
        self._rules, self._clock = rules, clock

    def own_item(self, connection: Connection, worker: int, token: str) -> Row[Any] | None:
        return connection.execute(_OWN_ITEM, {"token": token, "worker": worker}).one_or_none()

    def show(self, connection: Connection, number: int) -> Shown:
        """The task of an item."""
        item = connection.execute(_ITEM, {"number": number}).one()
        question = decode_question(item.question)
        document, test = self.document_of(connection, item)
        proposal = None if item.proposal is None else decode_answer(item.proposal)
        view = task_view(question, document, item.token, item.leased_until, test=test, proposal=proposal)
        return Shown(view, question, document)

    def document_of(self, connection: Connection, item: Row[Any]) -> tuple[Document, bool]:
        """The document behind an item, with mentions as reviewers left them, and whether it is for the test."""
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
        """Record an answer and all that follows from it."""
        item = self.own_item(connection, worker, token)
        if item is None:
            return self._repeated(connection, worker, token)
        if item.task == REVIEW:
            raise DeixisError("a review is answered with a fix")
        if item.image_id is not None:
            take_image(connection, item.image_id)
            # Whoever held the image before may have closed the question, or it was this very answer, sent twice.
            if self._hold(connection, worker, token) is None:
                return self._repeated(connection, worker, token)
        image = self.document_of(connection, item)[0].image
        checked = check_answer(decode_question(item.question), answer, image.width, image.height)
        judgment = self._record(connection, item, worker, checked, comment)
        if item.known_id is not None:
            standing = self._settle_known(connection, item, judgment, worker, checked)
        else:
            connection.execute(schema.RELEASE, {"number": item.id})
            self.renew(connection, item.image_id)
            standing = Standings(connection, worker, self._rules).of(item.task)
        return Receipt(judgment, str(standing))

    def report(self, connection: Connection, worker: int, token: str, comment: str) -> None:
        """Give a task back with a word to the reviewers, which is kept in the log."""
        item = self.own_item(connection, worker, token)
        if item is None:
            self._repeated(connection, worker, token)
            return
        self._refuse_in_test(connection, item)
        if item.image_id is not None:
            take_image(connection, item.image_id)
            if self._hold(connection, worker, token) is None:
                self._repeated(connection, worker, token)
                return
        values = {"image_id": item.image_id, "known_id": item.known_id, "token": item.token, "worker_id": worker}
        values |= {"task": REPORT, "key": f"{REPORT} {item.key}", "answer": msgspec.json.encode("")}
        connection.execute(_RECORD, values | {"comment": comment.strip(), "created": self._clock()})
        self._put_back(connection, item, worker)
        if item.image_id is not None:
            self.renew(connection, item.image_id)

    def release(self, connection: Connection, worker: int, token: str) -> None:
        """Give a task back unanswered."""
        item = self._hold(connection, worker, token)
        if item is not None:
            self._refuse_in_test(connection, item)
            self._put_back(connection, item, worker)

    def _hold(self, connection: Connection, worker: int, token: str) -> Row[Any] | None:
        return connection.execute(_HOLD_OWN_ITEM, {"token": token, "worker": worker}).one_or_none()

    def _refuse_in_test(self, connection: Connection, item: Row[Any]) -> None:
        if self.document_of(connection, item)[1]:
            raise DeixisError("the questions of the test cannot be skipped")

    def _put_back(self, connection: Connection, item: Row[Any], worker: int) -> None:
        """An item goes to others, not to this worker again; nor does the copy of a verification question come again."""
        if item.known_id is not None:
            kept = update(schema.items).where(schema.items.c.id == item.id)
            connection.execute(kept.values(token=None, leased_until=0.0, proposal=None))
            return
        connection.execute(schema.RELEASE, {"number": item.id})
        connection.execute(insert(schema.barred).values(item_id=item.id, worker_id=worker))

    def renew(self, connection: Connection, image_id: int) -> None:
        """Write what a taken image's log gives now, and judge those anew whose boxes were judged."""
        for drawer in sorted(refresh_image(connection, image_id, self._rules.settings)):
            standing_store.judge_anew(connection, drawer, DRAWING, self._rules, self._clock())

    def _repeated(self, connection: Connection, worker: int, token: str) -> Receipt:
        """The receipt of an answer that is here already, or `StaleTask`."""
        log = schema.judgments
        row = connection.execute(
            select(log.c.id, log.c.task).where(log.c.token == token, log.c.worker_id == worker)
        ).one_or_none()
        if row is None:
            raise StaleTask("this task went to somebody else or is no longer needed; there is a next one")
        return Receipt(row.id, str(Standings(connection, worker, self._rules).of(row.task)))

    def _record(self, connection: Connection, item: Row[Any], worker: int, answer: Answer, comment: str) -> int:
        values = {name: getattr(item, name) for name in ("image_id", "known_id", "task", "key", "proposal", "token")}
        values |= {"worker_id": worker, "answer": msgspec.json.encode(answer), "comment": comment.strip()}
        values["created"] = self._clock()
        return int(connection.execute(_RECORD, values).scalar_one())

    def _settle_known(
        self, connection: Connection, item: Row[Any], judgment: int, worker: int, answer: Answer
    ) -> Standing:
        known = connection.execute(_KNOWN, {"number": item.known_id}).one()
        connection.execute(delete(schema.items).where(schema.items.c.id == item.id))
        values = {"judgment_id": judgment, "worker_id": worker, "task": item.task, "test": known.test}
        connection.execute(insert(schema.outcomes).values(correct=right_answer(answer, known.truth), **values))
        return standing_store.judge_anew(connection, worker, item.task, self._rules, self._clock())
