"""Workers' standings in the database: reading, updating after each outcome, suspending, reinstating."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, delete, func, insert, literal, or_, select, update

from deixis.annotation import schema
from deixis.annotation.known import answer_word, decode_truth
from deixis.annotation.trust import OutcomeInTest, Standing, standing_at_work, standing_in_test
from deixis.annotation.workflow_records import DRAWING, Settings

#: Number of latest outcomes that are read. Older ones no longer influence the result.
LATEST = 200
#: Standings in which a worker gets no more items of the task.
BARRED = (Standing.FAILED, Standing.SUSPENDED)


@dataclass(frozen=True)
class Rules:
    """The settings of a project, and which verification questions it has.

    `ranges` has the lowest and highest id of the verification questions, by task and whether they are for the test.
    """

    settings: Settings
    ranges: dict[tuple[str, bool], tuple[int, int]]

    def initial_standing(self, task: str) -> Standing:
        """The standing of a new worker. Without test questions there is no test."""
        if self.settings.test_questions and (task, True) in self.ranges:
            return Standing.TEST
        return self.standing_after_test(task)

    def standing_after_test(self, task: str) -> Standing:
        # Drawings are always checked, by Box Quality.
        watched = task == DRAWING or (task, False) in self.ranges
        return Standing.FIRST_ITEMS if self.settings.first_items and watched else Standing.TRUSTED


def load_rules(connection: Connection, settings: Settings) -> Rules:
    known = schema.known
    query = select(known.c.task, known.c.test, func.min(known.c.id), func.max(known.c.id))
    rows = connection.execute(query.group_by(known.c.task, known.c.test))
    return Rules(settings, {(task, bool(test)): (low, high) for task, test, low, high in rows})


_STANDINGS = select(schema.standings.c.task, schema.standings.c.standing, schema.standings.c.since).where(
    schema.standings.c.worker_id == bindparam("worker")
)


class Standings:
    """A worker's standing in each task, and the judgment up to which outcomes no longer count."""

    def __init__(self, connection: Connection, worker: int, rules: Rules) -> None:
        self._rules = rules
        self._rows = {row.task: row for row in connection.execute(_STANDINGS, {"worker": worker})}

    def of(self, task: str) -> Standing:
        row = self._rows.get(task)
        return self._rules.initial_standing(task) if row is None else Standing(row.standing)

    def since(self, task: str) -> int:
        return self._rows[task].since if task in self._rows else 0


def update_standing(connection: Connection, worker: int, task: str, rules: Rules, now: float) -> Standing:
    """Update a worker's standing after a new outcome. A suspension voids the worker's answers."""
    standings = Standings(connection, worker, rules)
    before, since = standings.of(task), standings.since(task)
    if before in BARRED:
        return before
    if before == Standing.TEST:
        after = standing_in_test(outcomes_in_test(connection, worker, task, since), rules.settings)
        after = rules.standing_after_test(task) if after == Standing.FIRST_ITEMS else after
    else:
        after = standing_at_work(task, _outcomes(connection, worker, task, since), rules.settings)
    if after != before:
        if after in BARRED:
            suspend(connection, worker, task, after, "too many wrong answers", now)
        else:
            _set_standing(connection, worker, task, after)
        if before == Standing.TEST:
            # Test questions that were leased ahead are dropped.
            items = schema.items
            known_questions = (items.c.worker_id == worker, items.c.task == task, items.c.known_id.is_not(None))
            connection.execute(delete(items).where(*known_questions))
    return after


_OWN_OUTCOMES = select(schema.outcomes.c.correct).where(
    schema.outcomes.c.worker_id == bindparam("worker"),
    schema.outcomes.c.task == bindparam("task"),
    ~schema.outcomes.c.test,
    schema.outcomes.c.judgment_id > bindparam("since"),
)
_FIRST_OUTCOMES = _OWN_OUTCOMES.order_by(schema.outcomes.c.judgment_id).limit(2 * LATEST)
_LAST_OUTCOMES = _OWN_OUTCOMES.order_by(schema.outcomes.c.judgment_id.desc()).limit(LATEST)
_TEST_OUTCOMES = (
    select(schema.known.c.truth, schema.outcomes.c.correct)
    .join(schema.judgments, schema.judgments.c.id == schema.outcomes.c.judgment_id)
    .join(schema.known, schema.known.c.id == schema.judgments.c.known_id)
    .where(
        schema.outcomes.c.worker_id == bindparam("worker"),
        schema.outcomes.c.task == bindparam("task"),
        schema.outcomes.c.test,
        schema.outcomes.c.judgment_id > bindparam("since"),
    )
    .order_by(schema.outcomes.c.judgment_id)
)


def outcomes_in_test(connection: Connection, worker: int, task: str, since: int) -> list[OutcomeInTest]:
    """A worker's answers to test questions, in order."""
    rows = connection.execute(_TEST_OUTCOMES, {"worker": worker, "task": task, "since": since})
    return [OutcomeInTest(answer_word(decode_truth(row.truth)), bool(row.correct)) for row in rows]


def _outcomes(connection: Connection, worker: int, task: str, since: int) -> list[bool]:
    """Outcomes at work in order. If there are very many, only the first and the latest ones."""
    values = {"worker": worker, "task": task, "since": since}
    first = list(connection.execute(_FIRST_OUTCOMES, values).scalars())
    if len(first) < 2 * LATEST:
        return first
    return first[:LATEST] + list(connection.execute(_LAST_OUTCOMES, values).scalars())[::-1]


def _set_standing(connection: Connection, worker: int, task: str, standing: Standing, since: int | None = None) -> None:
    table = schema.standings
    values = {"standing": str(standing)} | ({} if since is None else {"since": since})
    changed = connection.execute(update(table).where(table.c.worker_id == worker, table.c.task == task).values(values))
    if changed.rowcount == 0:
        connection.execute(insert(table).values(worker_id=worker, task=task, **values))


def suspend(connection: Connection, worker: int, task: str, standing: Standing, reason: str, now: float) -> None:
    """Suspend a worker from a task and void the worker's answers, except boxes that passed Box Quality.

    The affected images are marked as stale. `Workbench.refresh` recomputes them, so that the questions are asked again.
    """
    log, void, items = schema.judgments, schema.voided, schema.items
    # This comes first: it waits for answers in concurrent transactions, so that those are voided too.
    of_worker = (items.c.worker_id == worker, items.c.task == task)
    connection.execute(delete(items).where(*of_worker, items.c.known_id.is_not(None)))
    connection.execute(update(items).where(*of_worker).values(schema.FREE))
    _set_standing(connection, worker, task, standing)
    decision = _decide(connection, worker, task, standing, reason, now)
    good_drawings = select(schema.outcomes.c.judgment_id).where(
        schema.outcomes.c.worker_id == worker, schema.outcomes.c.task == DRAWING, schema.outcomes.c.correct
    )
    to_void = (
        select(log.c.id, literal(decision))
        .outerjoin(void, void.c.judgment_id == log.c.id)
        .where(log.c.worker_id == worker, log.c.task == task, log.c.image_id.is_not(None))
        .where(void.c.judgment_id.is_(None), or_(log.c.task != DRAWING, log.c.id.not_in(good_drawings)))
    )
    connection.execute(insert(void).from_select(["judgment_id", "decision_id"], to_void))
    affected_images = (
        select(log.c.image_id)
        .distinct()
        .join(void, void.c.judgment_id == log.c.id)
        .where(void.c.decision_id == decision, log.c.image_id.not_in(select(schema.stale.c.image_id)))
    )
    connection.execute(insert(schema.stale).from_select(["image_id"], affected_images))


def reinstate(connection: Connection, worker: int, task: str, reason: str, rules: Rules, now: float) -> None:
    """Let a worker start again with a clean record, at the test unless the worker has passed it before.

    Voided answers stay void.
    """
    log, known = schema.judgments, schema.known
    work = (
        select(log.c.id).outerjoin(known, known.c.id == log.c.known_id).where(or_(known.c.id.is_(None), ~known.c.test))
    )
    finished_work = work.where(log.c.worker_id == worker, log.c.task == task).limit(1)
    past_test = connection.execute(finished_work).first() is not None
    standing = rules.standing_after_test(task) if past_test else rules.initial_standing(task)
    latest = connection.execute(select(func.coalesce(func.max(schema.judgments.c.id), 0))).scalar_one()
    _set_standing(connection, worker, task, standing, latest)
    _decide(connection, worker, task, standing, reason, now)


def _decide(connection: Connection, worker: int, task: str, standing: Standing, reason: str, now: float) -> int:
    log = schema.judgments
    answered = select(func.count()).where(log.c.worker_id == worker, log.c.task == task)
    table = schema.decisions
    values = {"worker_id": worker, "task": task, "standing": str(standing), "reason": reason, "created": now}
    values["answered"] = connection.execute(answered).scalar_one()
    return int(connection.execute(insert(table).values(values).returning(table.c.id)).scalar_one())
