"""Which task a worker gets next: one held already, a verification question, or the first free item; with a lease.

A lease is a column of the item, set only while nobody else's runs, so two workers never hold the same item.
"""

from __future__ import annotations

import secrets
from random import Random

from sqlalchemy import Connection, Row, and_, exists, func, insert, or_, select, update

from deixis.annotation import schema
from deixis.annotation.records import DRAWING, REVIEW, TASKS, Settings
from deixis.annotation.standing_store import standing_of
from deixis.annotation.trust import Standing

#: Later steps first, so that what was begun is finished.
PREFERENCE = tuple(reversed(TASKS))
#: Free items looked at in one go: others may take the first of them in the meantime.
CANDIDATES = 8
items, known, judgments, barred = schema.items, schema.known, schema.judgments, schema.barred


def held_items(connection: Connection, worker: int, tasks: tuple[str, ...], now: float) -> list[Row[tuple[int, str]]]:
    """Id and task of the items a worker holds. A copy of a known question waits for its worker, however long."""
    query = (
        select(items.c.id, items.c.task)
        .where(items.c.worker_id == worker, items.c.task.in_(tasks))
        .where(or_(items.c.known_id.is_not(None), items.c.leased_until > now))
        .order_by(items.c.leased_until)
    )
    return list(connection.execute(query))


def lease_next(
    connection: Connection, worker: int, tasks: tuple[str, ...], settings: Settings, now: float, chance: Random
) -> int | None:
    """Lease another item of one of these tasks to a worker; None if there is nothing for this worker now."""
    for task in sorted(tasks, key=_rank):
        if task == REVIEW:
            standing, since = Standing.TRUSTED, 0
        else:
            standing, since = standing_of(connection, worker, task, settings)
        if standing in (Standing.FAILED, Standing.SUSPENDED):
            continue
        number = None
        if standing == Standing.TEST:
            number = _copy_known(connection, worker, task, True, since, now + settings.lease_seconds, chance)
            if number is None:
                # Every question of the test was asked before: no more can be learned of this worker.
                continue
        elif task not in (DRAWING, REVIEW) and (
            standing == Standing.FIRST_ITEMS or chance.random() < settings.hidden_share
        ):
            number = _copy_known(connection, worker, task, False, 0, now + settings.lease_seconds, chance)
        number = number or _lease_item(connection, worker, task, now, now + settings.lease_seconds)
        if number is not None:
            return number
    return None


def _rank(task: str) -> int:
    return PREFERENCE.index(task) if task in PREFERENCE else len(PREFERENCE)


def new_token() -> str:
    return secrets.token_urlsafe(18)


def _lease_item(connection: Connection, worker: int, task: str, now: float, until: float) -> int | None:
    last = (0, 0)
    while True:
        not_for_me = exists().where(barred.c.item_id == items.c.id, barred.c.worker_id == worker)
        query = (
            select(items.c.id, items.c.image_id)
            .where(items.c.task == task, items.c.image_id.is_not(None), items.c.leased_until <= now, ~not_for_me)
            .where(
                or_(items.c.image_id > last[0], and_(items.c.image_id == last[0], items.c.id > last[1])),
                items.c.image_id >= last[0],
            )
            .order_by(items.c.image_id, items.c.id)
            .limit(CANDIDATES)
        )
        candidates = list(connection.execute(query))
        for row in candidates:
            taken = connection.execute(
                update(items)
                .where(items.c.id == row.id, items.c.leased_until <= now)
                .values(worker_id=worker, token=new_token(), leased_until=until, proposal=None)
            )
            if taken.rowcount == 1:
                return int(row.id)
        if len(candidates) < CANDIDATES:
            return None
        last = (candidates[-1].image_id, candidates[-1].id)


def _copy_known(
    connection: Connection, worker: int, task: str, test: bool, since: int, until: float, chance: Random
) -> int | None:
    """Put a question with a known answer before a worker who has not seen it (since the last reinstatement)."""
    seen = exists().where(judgments.c.worker_id == worker, judgments.c.known_id == known.c.id, judgments.c.id > since)
    waiting = exists().where(items.c.worker_id == worker, items.c.known_id == known.c.id)
    fresh = select(known.c.id, known.c.question).where(known.c.task == task, known.c.test == test, ~seen, ~waiting)
    low, high = connection.execute(
        select(func.min(known.c.id), func.max(known.c.id)).where(known.c.task == task, known.c.test == test)
    ).one()
    if low is None:
        return None
    start = chance.randint(low, high)
    row = (
        connection.execute(fresh.where(known.c.id >= start).order_by(known.c.id).limit(1)).first()
        or connection.execute(fresh.order_by(known.c.id).limit(1)).first()
    )
    if row is None:
        return None
    values = {"known_id": row.id, "task": task, "key": f"known {row.id}", "question": row.question}
    values |= {"worker_id": worker, "token": new_token(), "leased_until": until}
    return int(connection.execute(insert(items).values(values).returning(items.c.id)).scalar_one())
