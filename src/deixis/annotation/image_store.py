"""Between the pure workflow and the database: load what an image has got, write what is open now.

Whoever changes an image takes its row first (`take_image`), so changes of one image come one after the other, and
images do not wait for each other.
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
from deixis.annotation.workflow_records import DRAWING, Answer, Document, Fix, Judgment, Question, Settings

Value = TypeVar("Value")
RETRIES = 10
#: Documents kept decoded for each open project.
KEPT_DOCUMENTS = 2000
#: PostgreSQL's codes: could not be serialized, deadlock, another wrote the same key.
_GIVEN_UP = ("40001", "40P01", "23505")

_encode = msgspec.json.Encoder().encode
_document = msgspec.json.Decoder(Document)
_question = msgspec.json.Decoder(Question)
_answer: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
_fix: msgspec.json.Decoder[Fix] = msgspec.json.Decoder(Fix)


def with_retries(engine: Engine, attempt: Callable[[Connection], Value]) -> Value:
    """Run a writing transaction, again where PostgreSQL gave it up for another that came in between."""
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
    """An image's document. It never changes, so those of an open project are kept."""
    kept = _documents.setdefault(connection.engine, {})
    document = kept.get(image_id)
    if document is None:
        document = _document.decode(connection.execute(_DOCUMENT, {"image": image_id}).scalar_one())
        if len(kept) >= KEPT_DOCUMENTS:
            kept.clear()
        kept[image_id] = document
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
    """The judgments that count, of the images numbered `first` to `last`."""
    found: dict[int, list[Judgment]] = {}
    for row in connection.execute(_VALID, {"first": first, "last": last}):
        found.setdefault(row.image_id, []).append(
            Judgment(row.id, row.task, row.key, row.worker_id, _answer.decode(row.answer), row.comment)
        )
    return found


def all_fixes(connection: Connection, first: int, last: int) -> dict[int, list[Fix]]:
    found: dict[int, list[Fix]] = {}
    for row in connection.execute(_FIXES, {"first": first, "last": last}):
        found.setdefault(row.image_id, []).append(_fix.decode(row.fix))
    return found


def load_state(connection: Connection, image_id: int, settings: Settings) -> tuple[Document, ImageState]:
    document = load_document(connection, image_id)
    judgments = valid_judgments(connection, image_id, image_id).get(image_id, [])
    fixes = all_fixes(connection, image_id, image_id).get(image_id, [])
    return document, image_state(document, judgments, fixes, settings)


_TAKE = (
    update(schema.images)
    .where(schema.images.c.id == bindparam("image"))
    .values(version=schema.images.c.version + 1)
    .returning(schema.images.c.version)
)
_SUMMARIZE = (
    update(schema.images)
    .where(schema.images.c.id == bindparam("image"))
    .values({name: bindparam(f"new_{name}") for name in ("finished", "mentions", "chains", "links")})
)

_FRESH = delete(schema.stale).where(schema.stale.c.image_id == bindparam("image"))


def take_image(connection: Connection, image_id: int) -> int:
    """Hold an image until the transaction ends, and raise its version; what is read afterwards is the latest."""
    return int(connection.execute(_TAKE, {"image": image_id}).scalar_one())


def refresh_image(connection: Connection, image_id: int, settings: Settings) -> set[int]:
    """Derive a taken image anew and write its open questions; returns the drawers whose record changed."""
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
    """Make an image's items those of the questions that are open; one that stays as it was keeps its lease."""
    present = {row.key: (row.id, row.question) for row in connection.execute(_ITEMS, {"image": image_id})}
    wanted = {question.key: question for question in questions}
    for key, (number, _) in present.items():
        if key not in wanted:
            connection.execute(_CLOSE, {"number": number})
    for key, question in wanted.items():
        encoded = _encode(question)
        if key not in present:
            values = {"image_id": image_id, "task": question.task, "key": key, "question": encoded}
            number = connection.execute(_OPEN, values).scalar_one()
            _bar(connection, number, question.barred)
        elif present[key][1] != encoded:
            number, before = present[key]
            connection.execute(_CHANGE, {"number": number, "new": encoded})
            # Those who gave the question back stay barred, whatever others have said to it since.
            for worker in set(decode_question(before).barred) - set(question.barred):
                connection.execute(_UNBAR, {"number": number, "worker": worker})
            kept = set(connection.execute(_BARRED, {"number": number}).scalars())
            _bar(connection, number, sorted(set(question.barred) - kept))


def _bar(connection: Connection, number: int, workers: Sequence[int]) -> None:
    if workers:
        connection.execute(_BAR, [{"item_id": number, "worker_id": worker} for worker in workers])


def write_outcomes(connection: Connection, image_id: int, state: ImageState) -> set[int]:
    """Record which drawings passed Box Quality; returns the workers for whom that is news."""
    table = schema.outcomes
    changed = set()
    for row in connection.execute(_DRAWN, {"image": image_id}).all() if state.passed else ():
        now = state.passed.get(row.id)
        if now is None or now == row.correct:
            continue
        changed.add(row.worker_id)
        if row.correct is None:
            values = {"judgment_id": row.id, "worker_id": row.worker_id, "task": DRAWING, "test": False}
            connection.execute(insert(table).values(correct=now, **values))
        else:
            connection.execute(update(table).where(table.c.judgment_id == row.id).values(correct=now))
    return changed


def decode_question(data: bytes) -> Question:
    return _question.decode(data)


def decode_document(data: bytes) -> Document:
    return _document.decode(data)


def decode_answer(data: bytes) -> Answer:
    return _answer.decode(data)
