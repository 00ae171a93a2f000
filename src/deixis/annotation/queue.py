"""Chooses a worker's next task: one the worker already holds, a verification question, or the first free item.

The task is leased to the worker. A lease is a column of the item that is set only if no other lease is running, so two
workers never hold the same item. Statements are built once, because building one takes longer than running it.
"""

from __future__ import annotations

import secrets
from collections import Counter
from random import Random
from typing import Any

from sqlalchemy import (
    BindParameter,
    Connection,
    Row,
    bindparam,
    delete,
    exists,
    false,
    insert,
    or_,
    select,
    true,
    tuple_,
    update,
)

from deixis.annotation import schema
from deixis.annotation.known import answer_word, decode_truth
from deixis.annotation.standing_store import Rules, Standings, outcomes_in_test
from deixis.annotation.trust import Standing
from deixis.annotation.workflow_records import DRAWING, REPORT, REVIEW, TASKS

#: Order in which tasks are offered: later steps first, so that images get finished; reviews last.
PREFERENCE = (*reversed(TASKS), REVIEW)
#: Free items fetched at once, because other workers may take the first ones in the meantime.
CANDIDATES = 8

_items, _known, _log, _barred = schema.items, schema.known, schema.judgments, schema.barred
_WORKER: BindParameter[int] = bindparam("worker")
_TASK: BindParameter[str] = bindparam("task")
_NOW: BindParameter[float] = bindparam("now")
# A verification question that was given back stays in the table without a token, so that it is not asked again.
_HELD = select(_items.c.id, _items.c.task, _items.c.leased_until, _items.c.image_id).where(
    _items.c.worker_id == _WORKER,
    _items.c.token.is_not(None),
    or_(_items.c.known_id.is_not(None), _items.c.leased_until > _NOW),
)
_RENEW = (
    update(_items)
    .where(_items.c.id == bindparam("number"))
    .values(token=bindparam("new_token"), leased_until=bindparam("until"), proposal=None)
)
_GIVEN_BACK = delete(_items).where(
    _items.c.worker_id == _WORKER, _items.c.task == _TASK, _items.c.known_id.is_not(None), _items.c.token.is_(None)
)
_FREE_ITEMS = (
    select(_items.c.id, _items.c.image_id)
    .where(_items.c.task == _TASK, _items.c.leased_until <= _NOW)
    .where(tuple_(_items.c.image_id, _items.c.id) > tuple_(bindparam("image"), bindparam("after")))
    .where(~exists().where(_barred.c.item_id == _items.c.id, _barred.c.worker_id == _WORKER))
    .order_by(_items.c.image_id, _items.c.id)
    .limit(CANDIDATES)
)
_LEASE = (
    update(_items)
    .where(_items.c.id == bindparam("number"), _items.c.leased_until <= _NOW)
    .values(worker_id=_WORKER, token=bindparam("new_token"), leased_until=bindparam("until"), proposal=None)
)
_UNSEEN = (
    select(_known.c.id, _known.c.question, _known.c.truth)
    .where(_known.c.task == _TASK)
    .where(
        ~exists().where(
            _log.c.worker_id == _WORKER,
            _log.c.known_id == _known.c.id,
            _log.c.id > bindparam("since"),
            _log.c.task != REPORT,
        )
    )
    .where(~exists().where(_items.c.worker_id == _WORKER, _items.c.known_id == _known.c.id))
    .order_by(_known.c.id)
)
_NEXT_HIDDEN = _UNSEEN.where(_known.c.test == false(), _known.c.id >= bindparam("start")).limit(1)
_TEST_QUESTIONS = _UNSEEN.where(_known.c.test == true())
_LEASED_TEST = (
    select(_known.c.truth)
    .join(_items, _items.c.known_id == _known.c.id)
    .where(_items.c.worker_id == _WORKER, _items.c.task == _TASK, _items.c.token.is_not(None), _known.c.test)
)
_OPEN = (
    select(_items.c.id)
    .where(_items.c.task == _TASK, _items.c.image_id.is_not(None))
    .where(~exists().where(_barred.c.item_id == _items.c.id, _barred.c.worker_id == _WORKER))
    .limit(1)
)
_COPY = insert(_items).returning(_items.c.id)


def held_items(connection: Connection, worker: int, tasks: tuple[str, ...], rules: Rules, now: float) -> list[int]:
    """The ids of the items a worker holds, in the order in which they were leased.

    A verification question stays with its worker after its lease expires. It then gets a new token like any other
    item; keeping the old one would reveal that it is a verification question.
    """
    rows = [row for row in connection.execute(_HELD, {"worker": worker, "now": now}) if row.task in tasks]
    for row in rows:
        if row.leased_until <= now:
            until = now + rules.settings.lease_seconds
            connection.execute(_RENEW, {"number": row.id, "new_token": new_token(), "until": until})
    rows.sort(key=lambda row: (row.leased_until, PREFERENCE.index(row.task), row.image_id or 0, row.id))
    return [row.id for row in rows]


def lease_next(
    connection: Connection, worker: int, tasks: tuple[str, ...], rules: Rules, now: float, chance: Random
) -> int | None:
    """Lease one more item of these tasks to a worker. Returns its id, or None if there is none for this worker.

    The test of a task without open questions comes last: passing it would lead to nothing yet.
    """
    standings = Standings(connection, worker, rules)
    until = now + rules.settings.lease_seconds
    tests_for_later: list[str] = []
    for task in sorted(tasks, key=PREFERENCE.index):
        standing = Standing.TRUSTED if task == REVIEW else standings.of(task)
        if standing in (Standing.FAILED, Standing.SUSPENDED):
            continue
        item_id = None
        if standing == Standing.TEST:
            if connection.execute(_OPEN, {"worker": worker, "task": task}).first() is None:
                tests_for_later.append(task)
                continue
            item_id = _copy_test(connection, worker, task, standings.since(task), rules, until, chance)
            if item_id is None:
                # The worker has already been asked every test question.
                continue
        elif standing == Standing.FIRST_ITEMS and task != DRAWING:
            item_id = _copy_hidden(connection, worker, task, rules, until, chance)
        if item_id is None:
            item_id = _lease_item(connection, worker, task, now, until)
            hide = (
                item_id is not None and task not in (DRAWING, REVIEW) and chance.random() < rules.settings.hidden_share
            )
            copy = _copy_hidden(connection, worker, task, rules, until, chance) if hide else None
            if copy is not None:
                # The verification question replaces the item, as if it had been next in the queue.
                connection.execute(schema.RELEASE, {"number": item_id})
                item_id = copy
        if item_id is not None:
            return item_id
    for task in tests_for_later:
        item_id = _copy_test(connection, worker, task, standings.since(task), rules, until, chance)
        if item_id is not None:
            return item_id
    return None


def _lease_item(connection: Connection, worker: int, task: str, now: float, until: float) -> int | None:
    values = {"worker": worker, "task": task, "now": now, "image": 0, "after": 0}
    while True:
        candidates = list(connection.execute(_FREE_ITEMS, values))
        for row in candidates:
            lease = {"number": row.id, "now": now, "worker": worker, "new_token": new_token(), "until": until}
            if connection.execute(_LEASE, lease).rowcount == 1:
                return int(row.id)
        if len(candidates) < CANDIDATES:
            return None
        values |= {"image": candidates[-1].image_id, "after": candidates[-1].id}


def _copy_hidden(
    connection: Connection, worker: int, task: str, rules: Rules, until: float, chance: Random
) -> int | None:
    """Lease a verification question that the worker has not answered."""
    if (task, False) not in rules.ranges:
        return None
    low, high = rules.ranges[task, False]
    values = {"worker": worker, "task": task, "since": 0}
    row = None
    for start in (chance.randint(low, high), low):
        row = row or connection.execute(_NEXT_HIDDEN, values | {"start": start}).first()
    if row is None and _forget_given_back(connection, worker, task):
        row = connection.execute(_NEXT_HIDDEN, values | {"start": low}).first()
    return None if row is None else _copy(connection, worker, task, row, until)


def _copy_test(
    connection: Connection, worker: int, task: str, since: int, rules: Rules, until: float, chance: Random
) -> int | None:
    """Lease a test question that the worker has not answered since the last reinstatement.

    It is one with the right answer that the attempt has had least often, so that each has about the same number.
    """
    if (task, True) not in rules.ranges:
        return None
    values = {"worker": worker, "task": task, "since": since}
    rows = connection.execute(_TEST_QUESTIONS, values).all()
    if not rows and _forget_given_back(connection, worker, task):
        rows = connection.execute(_TEST_QUESTIONS, values).all()
    if not rows:
        return None
    asked = [outcome.truth for outcome in outcomes_in_test(connection, worker, task, since)]
    leased = connection.execute(_LEASED_TEST, {"worker": worker, "task": task}).scalars()
    asked += [answer_word(decode_truth(truth)) for truth in leased]
    length = rules.settings.test_questions
    attempt = Counter(asked[len(asked) // length * length :])
    row = min(rows, key=lambda row: (attempt[answer_word(decode_truth(row.truth))], chance.random()))
    return _copy(connection, worker, task, row, until)


def _forget_given_back(connection: Connection, worker: int, task: str) -> bool:
    """Whether the worker gave questions back: they are asked again, so that skipping does not avoid checks."""
    return bool(connection.execute(_GIVEN_BACK, {"worker": worker, "task": task}).rowcount)


def _copy(connection: Connection, worker: int, task: str, known: Row[Any, Any, Any], until: float) -> int:
    copy = {"known_id": known.id, "task": task, "key": f"known {known.id}", "question": known.question}
    copy |= {"worker_id": worker, "token": new_token(), "leased_until": until}
    return int(connection.execute(_COPY, copy).scalar_one())


def new_token() -> str:
    return secrets.token_urlsafe(18)
