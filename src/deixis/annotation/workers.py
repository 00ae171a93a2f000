"""Workers in the database, decisions about them, and who may be invited.

The paper only allowed workers with 500 earlier tasks on Mechanical Turk and 95 % accuracy (Entities, section 2.3).
Here, the record of a worker comes from an earlier project, or is stated in the invitation.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, bindparam, case, func, insert, select

from deixis.annotation import schema
from deixis.annotation.workflow_records import REPORT, Settings
from deixis.errors import DeixisError

ROLES = ("worker", "reviewer", "administrator")
_ROLE = select(schema.workers.c.role).where(schema.workers.c.id == bindparam("worker"))


class Decision(msgspec.Struct, frozen=True):
    """A suspension or reinstatement; `answered` is the number of items the worker had answered in the task."""

    worker: int
    task: str
    standing: str
    reason: str
    answered: int
    created: float


def check_role(role: str) -> None:
    if role not in ROLES:
        raise DeixisError(f"{role!r} is not a role; choose from {', '.join(ROLES)}")


def add_worker(connection: Connection, name: str, role: str, now: float) -> int:
    """Add a worker and return its id. Names must be unique and not empty."""
    check_role(role)
    table = schema.workers
    if not name.strip():
        raise DeixisError("a worker needs a name")
    if connection.execute(select(table.c.id).where(table.c.name == name)).first() is not None:
        raise DeixisError(f"a worker named {name!r} already exists")
    values = {"name": name, "role": role, "created": now}
    return int(connection.execute(insert(table).values(values).returning(table.c.id)).scalar_one())


def role_of(connection: Connection, worker: int) -> str:
    role = connection.execute(_ROLE, {"worker": worker}).scalar()
    if role is None:
        raise DeixisError(f"there is no worker {worker}")
    return str(role)


def worker_number(connection: Connection, name: str) -> int:
    worker_id = connection.execute(select(schema.workers.c.id).where(schema.workers.c.name == name)).scalar()
    if worker_id is None:
        raise DeixisError(f"there is no worker {name!r}")
    return int(worker_id)


def all_decisions(connection: Connection) -> list[Decision]:
    table = schema.decisions
    rows = connection.execute(select(table).order_by(table.c.id))
    return [Decision(r.worker_id, r.task, r.standing, r.reason, r.answered, r.created) for r in rows]


class WorkRecord(NamedTuple):
    """What a worker did before: number of answers, and the share of right ones among those that could be checked."""

    name: str
    answers: int
    accuracy: float


def work_records(connection: Connection) -> list[WorkRecord]:
    """The records of a project's workers. Answers that were discarded do not count, but their errors do."""
    log, outcomes, people, void = schema.judgments, schema.outcomes, schema.workers, schema.voided
    answered = (
        select(log.c.worker_id, func.count())
        .outerjoin(void, void.c.judgment_id == log.c.id)
        .where(log.c.task != REPORT, void.c.judgment_id.is_(None))
        .group_by(log.c.worker_id)
    )
    answers = {row[0]: row[1] for row in connection.execute(answered)}
    right = func.avg(case((outcomes.c.correct, 1.0), else_=0.0))
    checked = select(outcomes.c.worker_id, right).group_by(outcomes.c.worker_id)
    accuracy = {worker: float(share) for worker, share in connection.execute(checked)}
    query = select(people.c.id, people.c.name).where(people.c.role == "worker").order_by(people.c.id)
    rows = connection.execute(query)
    return [WorkRecord(row.name, answers.get(row.id, 0), accuracy.get(row.id, 0.0)) for row in rows]


def passes_screen(settings: Settings, record: WorkRecord) -> bool:
    return record.answers >= settings.screen_answers and (
        not settings.screen_answers or record.accuracy >= settings.screen_accuracy
    )


def check_screen(settings: Settings, role: str, record: WorkRecord | None) -> None:
    """Raise `DeixisError` if a worker with this record must not be invited."""
    if role != "worker" or not settings.screen_answers:
        return
    needed = f"at least {settings.screen_answers:,} earlier answers, {settings.screen_accuracy:.0%} of them right"
    if record is None:
        raise DeixisError(f"this project takes workers with {needed}: state the record of the worker to be invited")
    if not passes_screen(settings, record):
        raise DeixisError(
            f"this project takes workers with {needed}, not with {record.answers:,} and {record.accuracy:.0%}"
        )
