"""Workers' standings in the database: read, judged anew after each outcome, suspended and reinstated."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, delete, func, insert, literal, or_, select, update

from deixis.annotation import schema
from deixis.annotation.records import DRAWING, Settings
from deixis.annotation.trust import Standing, test_standing, work_standing

#: So many of the latest outcomes are looked at; evidence from before them has long worn off.
LATEST = 200
_BARRED = (Standing.FAILED, Standing.SUSPENDED)


def has_known(connection: Connection, task: str, test: bool) -> bool:
    known = schema.known
    query = select(known.c.id).where(known.c.task == task, known.c.test == test).limit(1)
    return connection.execute(query).first() is not None


def standing_of(connection: Connection, worker: int, task: str, settings: Settings) -> tuple[Standing, int]:
    """A worker's standing in a task, and the judgment up to which outcomes no longer count.

    Where a project has no questions with known answers, whoever was invited is trusted.
    """
    table = schema.standings
    query = select(table.c.standing, table.c.since).where(table.c.worker_id == worker, table.c.task == task)
    row = connection.execute(query).one_or_none()
    if row is not None:
        return Standing(row.standing), row.since
    if settings.test_questions and has_known(connection, task, test=True):
        return Standing.TEST, 0
    return _after_test(connection, task, settings), 0


def _after_test(connection: Connection, task: str, settings: Settings) -> Standing:
    watched = task == DRAWING or has_known(connection, task, test=False)
    return Standing.FIRST_ITEMS if settings.first_items and watched else Standing.TRUSTED


def judge_anew(connection: Connection, worker: int, task: str, settings: Settings, now: float) -> Standing:
    """Bring a worker's standing up to date after a new outcome; a suspension voids what the worker answered."""
    before, since = standing_of(connection, worker, task, settings)
    if before in _BARRED:
        return before
    if before == Standing.TEST:
        after = test_standing(_outcomes(connection, worker, task, True, since), settings)
        after = _after_test(connection, task, settings) if after == Standing.FIRST_ITEMS else after
    else:
        after = work_standing(task, _outcomes(connection, worker, task, False, since), settings)
    if after != before:
        if after in _BARRED:
            suspend(connection, worker, task, after, "too many wrong answers", now)
        else:
            set_standing(connection, worker, task, after)
    return after


def _outcomes(connection: Connection, worker: int, task: str, test: bool, since: int) -> list[bool]:
    """Outcomes in order: the first ones, and the latest where there are very many."""
    table = schema.outcomes
    own = (
        select(table.c.correct)
        .where(table.c.worker_id == worker, table.c.task == task, table.c.test == test, table.c.judgment_id > since)
        .order_by(table.c.judgment_id)
    )
    first = list(connection.execute(own.limit(2 * LATEST)).scalars())
    if len(first) < 2 * LATEST:
        return first
    latest = connection.execute(own.order_by(None).order_by(table.c.judgment_id.desc()).limit(LATEST)).scalars()
    return first[:LATEST] + list(latest)[::-1]


def set_standing(connection: Connection, worker: int, task: str, standing: Standing, since: int | None = None) -> None:
    """Write a standing; `since`, where given, is the judgment up to which outcomes no longer count."""
    table = schema.standings
    values = {"standing": str(standing)} | ({} if since is None else {"since": since})
    changed = connection.execute(update(table).where(table.c.worker_id == worker, table.c.task == task).values(values))
    if changed.rowcount == 0:
        connection.execute(insert(table).values(worker_id=worker, task=task, **values))


def suspend(connection: Connection, worker: int, task: str, standing: Standing, reason: str, now: float) -> None:
    """Take a task from a worker. What the worker answered in it is void, but boxes that Box Quality passed stay.

    The images concerned are marked; `refresh` derives them anew, so that the questions are asked again.
    """
    log, void = schema.judgments, schema.voided
    set_standing(connection, worker, task, standing)
    decision = _decide(connection, worker, task, standing, reason, now)
    passed = (
        select(schema.outcomes.c.judgment_id)
        .where(schema.outcomes.c.worker_id == worker, schema.outcomes.c.task == DRAWING, schema.outcomes.c.correct)
        .scalar_subquery()
    )
    hit = (
        select(log.c.id)
        .outerjoin(void, void.c.judgment_id == log.c.id)
        .where(log.c.worker_id == worker, log.c.task == task, log.c.image_id.is_not(None), void.c.judgment_id.is_(None))
        .where(or_(log.c.task != DRAWING, log.c.id.not_in(passed)))
    )
    connection.execute(insert(void).from_select(["judgment_id", "decision_id"], hit.add_columns(literal(decision))))
    concerned = select(log.c.image_id).join(void, void.c.judgment_id == log.c.id).where(void.c.decision_id == decision)
    images = schema.images
    connection.execute(update(images).where(images.c.id.in_(concerned)).values(stale=True))
    _take_back(connection, worker, task)


def reinstate(connection: Connection, worker: int, task: str, reason: str, settings: Settings, now: float) -> None:
    """Let a worker begin again, with a clean record; answers that were voided stay void."""
    before, _ = standing_of(connection, worker, task, settings)
    again = Standing.TEST if before in (Standing.FAILED, Standing.TEST) else _after_test(connection, task, settings)
    latest = connection.execute(select(func.coalesce(func.max(schema.judgments.c.id), 0))).scalar_one()
    set_standing(connection, worker, task, again, latest)
    _decide(connection, worker, task, again, reason, now)


def _decide(connection: Connection, worker: int, task: str, standing: Standing, reason: str, now: float) -> int:
    log = schema.judgments
    answered = select(func.count()).where(log.c.worker_id == worker, log.c.task == task)
    table = schema.decisions
    values = {"worker_id": worker, "task": task, "standing": str(standing), "reason": reason, "created": now}
    values["answered"] = connection.execute(answered).scalar_one()
    return int(connection.execute(insert(table).values(values).returning(table.c.id)).scalar_one())


def _take_back(connection: Connection, worker: int, task: str) -> None:
    items = schema.items
    own = (items.c.worker_id == worker, items.c.task == task)
    connection.execute(delete(items).where(*own, items.c.known_id.is_not(None)))
    connection.execute(update(items).where(*own).values(worker_id=None, token=None, leased_until=0.0, proposal=None))


def standings(connection: Connection, worker: int, tasks: Iterable[str], settings: Settings) -> dict[str, Standing]:
    """A worker's standing in each of these tasks."""
    return {task: standing_of(connection, worker, task, settings)[0] for task in tasks}
