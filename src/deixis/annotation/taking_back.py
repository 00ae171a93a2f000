"""Taking back the last answer, until somebody builds on it.

The answer stays in the log, but is void like those of a suspended worker.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, or_, select, update

from deixis.annotation import schema
from deixis.annotation.image_store import all_fixes, load_document, lock_image, valid_judgments
from deixis.annotation.queue import new_token
from deixis.annotation.standing_store import BARRED, Rules, Standings
from deixis.annotation.workflow import image_state
from deixis.annotation.workflow_records import REPORT, Settings
from deixis.errors import DeixisError

_ANSWERS = (
    select(schema.judgments, schema.voided.c.judgment_id.label("void"), schema.voided.c.decision_id)
    .outerjoin(schema.voided, schema.voided.c.judgment_id == schema.judgments.c.id)
    .where(schema.judgments.c.worker_id == bindparam("worker"), schema.judgments.c.task != REPORT)
)
_ANSWER = _ANSWERS.where(schema.judgments.c.token == bindparam("token"))
_LATEST = _ANSWERS.where(schema.voided.c.judgment_id.is_(None)).order_by(schema.judgments.c.id.desc()).limit(1)


class StaleTask(DeixisError):
    """The worker no longer holds the task, or can no longer take back the answer."""


def void_last_answer(connection: Connection, worker: int, token: str, rules: Rules) -> Row[Any]:
    """Make the worker's last answer void and return its row. If it was taken back before, nothing changes.

    The answer's image is locked; its questions are not updated yet.
    """
    answer = _load(connection, worker, token)
    if answer.image_id is not None:
        lock_image(connection, answer.image_id)
        answer = _load(connection, worker, token)
    if answer.decision_id is not None:
        raise StaleTask("this answer was discarded; it cannot be taken back")
    if answer.void is not None:
        return answer
    if connection.execute(_LATEST, {"worker": worker}).one().id != answer.id:
        raise StaleTask("only your last answer can be taken back")
    if answer.image_id is None:
        _forget_outcome(connection, worker, answer, rules)
    elif _is_built_on(connection, answer, rules.settings):
        raise StaleTask("somebody has built on this answer; it cannot be taken back any more")
    connection.execute(insert(schema.voided).values(judgment_id=answer.id))
    return answer


def _load(connection: Connection, worker: int, token: str) -> Row[Any]:
    answer = connection.execute(_ANSWER, {"worker": worker, "token": token}).one_or_none()
    if answer is None:
        raise StaleTask("there is no such answer of yours")
    return answer


def _is_built_on(connection: Connection, answer: Row[Any], settings: Settings) -> bool:
    """Whether an answer is used only because of this one, or a reviewer has corrected the image since."""
    image_id, fixes = answer.image_id, schema.fixes
    corrected = select(fixes.c.id).where(fixes.c.image_id == image_id, fixes.c.created >= answer.created).limit(1)
    if connection.execute(corrected).first() is not None:
        return True
    document = load_document(connection, image_id)
    judgments = valid_judgments(connection, image_id, image_id).get(image_id, [])
    image_fixes = all_fixes(connection, image_id, image_id).get(image_id, [])
    others = [judgment for judgment in judgments if judgment.id != answer.id]
    used = image_state(document, judgments, image_fixes, settings).used
    return bool(used - {answer.id} - image_state(document, others, image_fixes, settings).used)


def _forget_outcome(connection: Connection, worker: int, answer: Row[Any], rules: Rules) -> None:
    """Delete the outcome of a verification question. Refused if it ended a test, or the worker lost the task."""
    standings, outcomes = Standings(connection, worker, rules), schema.outcomes
    outcome = connection.execute(select(outcomes.c.test).where(outcomes.c.judgment_id == answer.id)).one_or_none()
    ended = standings.of(answer.task) in BARRED or outcome is None
    if outcome is not None and outcome.test:
        tests = (outcomes.c.worker_id == worker, outcomes.c.task == answer.task, outcomes.c.test)
        count = select(func.count()).where(*tests, outcomes.c.judgment_id > standings.since(answer.task))
        ended |= connection.execute(count).scalar_one() % rules.settings.test_questions == 0
    if ended:
        raise StaleTask("this answer cannot be taken back any more")
    connection.execute(delete(outcomes).where(outcomes.c.judgment_id == answer.id))


def lease_again(connection: Connection, worker: int, answer: Row[Any], now: float, lease_seconds: float) -> int | None:
    """Lease the question of an answer that was taken back to its worker. Returns the item, or None if it is gone."""
    items = schema.items
    lease = {"worker_id": worker, "token": new_token(), "leased_until": now + lease_seconds}
    if answer.image_id is not None:
        free = or_(items.c.leased_until <= now, items.c.worker_id == worker)
        same = (items.c.image_id == answer.image_id, items.c.key == answer.key)
        return connection.execute(update(items).where(*same, free).values(lease).returning(items.c.id)).scalar()
    of_worker = (items.c.worker_id == worker, items.c.known_id == answer.known_id)
    held = connection.execute(select(items.c.id).where(*of_worker)).scalar()
    if held is not None:
        return int(held)
    question = connection.execute(select(schema.known.c.question).where(schema.known.c.id == answer.known_id))
    copy = {"known_id": answer.known_id, "task": answer.task, "key": answer.key, "question": question.scalar_one()}
    return int(connection.execute(insert(items).values(**copy, **lease).returning(items.c.id)).scalar_one())
