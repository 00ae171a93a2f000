"""Connects the workflow to the database: loads the answers of an image, writes its open questions.

A transaction that changes an image locks its row first (`lock_image`). Changes of one image are therefore serialized,
and different images do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

import msgspec
from sqlalchemy import Connection, Engine, bindparam, delete, insert, select, update
from sqlalchemy.exc import DBAPIError

from deixis.annotation import schema
from deixis.annotation.workflow import ImageState, image_state
from deixis.annotation.workflow_records import (
    DRAWING,
    REVIEW,
    Answer,
    Document,
    Fix,
    Judgment,
    Question,
    Settings,
)

Value = TypeVar("Value")
RETRIES = 10
#: Size of the cache of decoded documents, per open project.
CACHED_DOCUMENTS = 2000
#: PostgreSQL error codes: serialization failure, deadlock, unique violation.
_GIVEN_UP = ("40001", "40P01", "23505")

_encode = msgspec.json.Encoder().encode
_document = msgspec.json.Decoder(Document)
_question = msgspec.json.Decoder(Question)
_answer: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
_fix: msgspec.json.Decoder[Fix] = msgspec.json.Decoder(Fix)


def with_retries(engine: Engine, attempt: Callable[[Connection], Value]) -> Value:
    """Run a write transaction, and retry it if PostgreSQL aborted it because of a concurrent one."""
    for _ in range(RETRIES):
        try:
            with schema.writing(engine) as connection:
                return attempt(connection)
        except DBAPIError as fault:
            if getattr(fault.orig, "sqlstate", None) not in _GIVEN_UP:
                raise
    with schema.writing(engine) as connection:
        return attempt(connection)


def load_document(connection: Connection, image_id: int) -> Document:
    """An image's document, cached because it never changes."""
    cache = _documents.setdefault(connection.engine, {})
    document = cache.get(image_id)
    if document is None:
        document = _document.decode(connection.execute(_DOCUMENT, {"image": image_id}).scalar_one())
        if len(cache) >= CACHED_DOCUMENTS:
            cache.clear()
        cache[image_id] = document
    return document


_documents: WeakKeyDictionary[Engine, dict[int, Document]] = WeakKeyDictionary()
_DOCUMENT = select(schema.images.c.document).where(schema.images.c.id == bindparam("image"))
_VALID = (
    select(*(schema.judgments.c[name] for name in ("id", "image_id", "task", "key", "worker_id", "answer", "comment")))
    .outerjoin(schema.voided, schema.voided.c.judgment_id == schema.judgments.c.id)
    .where(
        schema.judgments.c.image_id.between(bindparam("first"), bindparam("last")),
        schema.voided.c.judgment_id.is_(None),
    )
    .order_by(schema.judgments.c.image_id, schema.judgments.c.id)
)
_FIXES = (
    select(schema.fixes.c.image_id, schema.fixes.c.fix)
    .where(schema.fixes.c.image_id.between(bindparam("first"), bindparam("last")))
    .order_by(schema.fixes.c.image_id, schema.fixes.c.id)
)


def valid_judgments(connection: Connection, first: int, last: int) -> dict[int, list[Judgment]]:
    """Judgments that are not voided, by image, for image ids `first` to `last`."""
    judgments: dict[int, list[Judgment]] = {}
    for row in connection.execute(_VALID, {"first": first, "last": last}):
        judgments.setdefault(row.image_id, []).append(
            Judgment(row.id, row.task, row.key, row.worker_id, _answer.decode(row.answer), row.comment)
        )
    return judgments


def all_fixes(connection: Connection, first: int, last: int) -> dict[int, list[Fix]]:
    fixes: dict[int, list[Fix]] = {}
    for row in connection.execute(_FIXES, {"first": first, "last": last}):
        fixes.setdefault(row.image_id, []).append(_fix.decode(row.fix))
    return fixes


def load_state(connection: Connection, image_id: int, settings: Settings) -> tuple[Document, ImageState]:
    document = load_document(connection, image_id)
    judgments = valid_judgments(connection, image_id, image_id).get(image_id, [])
    fixes = all_fixes(connection, image_id, image_id).get(image_id, [])
    return document, image_state(document, judgments, fixes, settings)


#: Columns of an image that are computed from its answers (`summary`).
SUMMARY = ("finished", "mentions", "chains", "links", "waiting", "disputed")
_TAKE = (
    update(schema.images)
    .where(schema.images.c.id == bindparam("image"))
    .values(version=schema.images.c.version + 1)
    .returning(schema.images.c.version)
)
_SUMMARIZE = (
    update(schema.images)
    .where(schema.images.c.id == bindparam("image"))
    .values({name: bindparam(f"new_{name}") for name in SUMMARY})
)

_FRESH = delete(schema.stale).where(schema.stale.c.image_id == bindparam("image"))


def lock_image(connection: Connection, image_id: int) -> int:
    """Lock an image until the transaction ends and increase its version. Returns the new version."""
    return int(connection.execute(_TAKE, {"image": image_id}).scalar_one())


def refresh_image(connection: Connection, image_id: int, settings: Settings) -> set[int]:
    """Recompute a locked image and write its open questions. Returns the workers whose drawings got new verdicts."""
    _, state = load_state(connection, image_id, settings)
    write_items(connection, image_id, state.questions)
    drawers = write_outcomes(connection, image_id, state)
    values = {f"new_{name}": value for name, value in summary(state).items()}
    connection.execute(_SUMMARIZE, {"image": image_id, **values})
    connection.execute(_FRESH, {"image": image_id})
    return drawers


def summary(state: ImageState) -> dict[str, int | bool]:
    return {
        "finished": state.finished,
        "mentions": len(state.mentions),
        "chains": len(state.chains),
        "links": state.links,
        "waiting": sum(question.task == REVIEW for question in state.questions),
        "disputed": state.disputed,
    }


_ITEMS = select(schema.items.c.id, schema.items.c.key, schema.items.c.question).where(
    schema.items.c.image_id == bindparam("image")
)
_BARRED = select(schema.barred.c.worker_id).where(schema.barred.c.item_id == bindparam("number"))
_UNBAR = delete(schema.barred).where(
    schema.barred.c.item_id == bindparam("number"), schema.barred.c.worker_id == bindparam("worker")
)
_CLOSE = delete(schema.items).where(schema.items.c.id == bindparam("number"))
_OPEN = insert(schema.items).returning(schema.items.c.id)
_CHANGE = (
    update(schema.items)
    .where(schema.items.c.id == bindparam("number"))
    .values(question=bindparam("new"), **schema.FREE)
)
_BAR = insert(schema.barred)
_DRAWN = (
    select(schema.judgments.c.id, schema.judgments.c.worker_id, schema.outcomes.c.correct)
    .outerjoin(schema.outcomes, schema.outcomes.c.judgment_id == schema.judgments.c.id)
    .where(schema.judgments.c.image_id == bindparam("image"), schema.judgments.c.task == DRAWING)
)


def write_items(connection: Connection, image_id: int, questions: Sequence[Question]) -> None:
    """Replace an image's items by its open questions. An unchanged question keeps its lease."""
    present = {row.key: (row.id, row.question) for row in connection.execute(_ITEMS, {"image": image_id})}
    wanted = {question.key: question for question in questions}
    for key, (item_id, _) in present.items():
        if key not in wanted:
            connection.execute(_CLOSE, {"number": item_id})
    for key, question in wanted.items():
        encoded = _encode(question)
        if key not in present:
            values = {"image_id": image_id, "task": question.task, "key": key, "question": encoded}
            item_id = connection.execute(_OPEN, values).scalar_one()
            _bar(connection, item_id, question.barred)
        elif present[key][1] != encoded:
            item_id, old_question = present[key]
            connection.execute(_CHANGE, {"number": item_id, "new": encoded})
            # Workers who gave the question back stay barred.
            for worker in set(decode_question(old_question).barred) - set(question.barred):
                connection.execute(_UNBAR, {"number": item_id, "worker": worker})
            already_barred = set(connection.execute(_BARRED, {"number": item_id}).scalars())
            _bar(connection, item_id, sorted(set(question.barred) - already_barred))


def _bar(connection: Connection, item_id: int, workers: Sequence[int]) -> None:
    if workers:
        connection.execute(_BAR, [{"item_id": item_id, "worker_id": worker} for worker in workers])


def write_outcomes(connection: Connection, image_id: int, state: ImageState) -> set[int]:
    """Record which drawings passed Box Quality. Returns the workers whose outcomes changed."""
    table = schema.outcomes
    changed = set()
    for row in connection.execute(_DRAWN, {"image": image_id}).all() if state.passed else ():
        passed = state.passed.get(row.id)
        if passed is None or passed == row.correct:
            continue
        changed.add(row.worker_id)
        if row.correct is None:
            values = {"judgment_id": row.id, "worker_id": row.worker_id, "task": DRAWING, "test": False}
            connection.execute(insert(table).values(correct=passed, **values))
        else:
            connection.execute(update(table).where(table.c.judgment_id == row.id).values(correct=passed))
    return changed


def decode_question(data: bytes) -> Question:
    return _question.decode(data)


def decode_document(data: bytes) -> Document:
    return _document.decode(data)


def decode_answer(data: bytes) -> Answer:
    return _answer.decode(data)
