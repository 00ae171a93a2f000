"""Who may be invited: workers with enough earlier answers, enough of them right (Entities, section 2.3).

The paper only allowed workers with 500 earlier tasks on Mechanical Turk and 95 % accuracy. Here, the record of a worker
comes from an earlier project, or is stated in the invitation.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, case, func, select

from deixis.annotation import schema
from deixis.annotation.workflow_records import REPORT, Settings
from deixis.errors import DeixisError


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
