"""Progress of a project, its cost, and the record of its workers."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, bindparam, case, func, select

from deixis.annotation import schema
from deixis.annotation.standing_store import Rules, Standings
from deixis.annotation.trust import Standing
from deixis.annotation.workflow_records import COVERAGE, REQUIREMENT, REVIEW, TASKS


class TaskProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one task.

    `open`: open questions. `judgments`: answers about images; `voided`: those of them that were discarded, because the
    worker was suspended or took them back. `verification`: answers to verification questions, tests included.
    `proposed`: answers for which a model had made a proposal; `accepted`: those of them that agree with the proposal.
    """

    open: int = 0
    judgments: int = 0
    voided: int = 0
    verification: int = 0
    proposed: int = 0
    accepted: int = 0


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a project.

    `mentions_squared` and `mentions_times_chains` are what linking would cost if every pair of mentions, or every
    mention with every chain, were asked; compare them with `links_asked`.
    """

    images: int
    finished: int
    mentions: int
    chains: int
    links_asked: int
    mentions_squared: int
    mentions_times_chains: int
    reviews: int
    fixes: int
    tasks: dict[str, TaskProgress]


#: A longer time between two answers of a worker, in seconds, is a break and not counted as work.
BREAK_SECONDS = 300.0


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """`judgments` and `standings` by task; `accuracy` by task, for tasks with answers that could be checked.

    `seconds` is the mean time per answer by task, `hours` the time at work, both without breaks (`BREAK_SECONDS`).
    `last_seen` is the time of the last answer, 0 if there is none.
    """

    id: int
    name: str
    role: str
    judgments: dict[str, int]
    standings: dict[str, str]
    accuracy: dict[str, float]
    seconds: dict[str, float]
    hours: float
    last_seen: float


class OwnStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker may see: standing in a task, number of answers, and progress of the current test attempt."""

    standing: str
    answered: int
    test_answered: int
    test_questions: int


# Built once, because they run with every answer.
_TAKEN_BACK = schema.voided.c.judgment_id.is_not(None) & schema.voided.c.decision_id.is_(None)
_ANSWERED = (
    select(schema.judgments.c.task, func.count())
    .outerjoin(schema.voided, schema.voided.c.judgment_id == schema.judgments.c.id)
    .where(schema.judgments.c.worker_id == bindparam("worker"), ~_TAKEN_BACK)
    .group_by(schema.judgments.c.task)
)
_TESTED = select(func.count()).where(
    schema.outcomes.c.worker_id == bindparam("worker"),
    schema.outcomes.c.task == bindparam("task"),
    schema.outcomes.c.test,
    schema.outcomes.c.judgment_id > bindparam("since"),
)


def own_standings(connection: Connection, worker: int, rules: Rules) -> dict[str, OwnStanding]:
    standings = Standings(connection, worker, rules)
    answered = {row[0]: row[1] for row in connection.execute(_ANSWERED, {"worker": worker})}
    length = rules.settings.test_questions
    by_task = {}
    for task in TASKS:
        test_answers = 0
        if standings.of(task) == Standing.TEST:
            values = {"worker": worker, "task": task, "since": standings.since(task)}
            test_answers = connection.execute(_TESTED, values).scalar_one() % length
        by_task[task] = OwnStanding(
            standing=str(standings.of(task)),
            answered=answered.get(task, 0),
            test_answered=test_answers,
            test_questions=length,
        )
    return by_task


def measure_progress(connection: Connection) -> Progress:
    images, log = schema.images, schema.judgments
    row = connection.execute(
        select(
            func.count().label("images"),
            func.coalesce(func.sum(case((images.c.finished, 1), else_=0)), 0).label("finished"),
            func.coalesce(func.sum(images.c.mentions), 0).label("mentions"),
            func.coalesce(func.sum(images.c.chains), 0).label("chains"),
            func.coalesce(func.sum(images.c.links), 0).label("links_asked"),
            func.coalesce(func.sum(images.c.mentions * images.c.mentions), 0).label("mentions_squared"),
            func.coalesce(func.sum(images.c.mentions * images.c.chains), 0).label("mentions_times_chains"),
        )
    ).one()
    items = schema.items
    open_items = select(items.c.task, func.count()).where(items.c.image_id.is_not(None)).group_by(items.c.task)
    open_questions = {row[0]: row[1] for row in connection.execute(open_items)}
    totals = {
        entry.task: entry
        for entry in connection.execute(
            select(
                log.c.task,
                func.sum(case((log.c.image_id.is_not(None), 1), else_=0)).label("judgments"),
                func.sum(case((log.c.known_id.is_not(None), 1), else_=0)).label("verification"),
                func.sum(case((log.c.proposal.is_not(None), 1), else_=0)).label("proposed"),
                func.sum(case((log.c.proposal == log.c.answer, 1), else_=0)).label("accepted"),
            ).group_by(log.c.task)
        )
    }
    voided_judgments = (
        select(log.c.task, func.count())
        .join(schema.voided, schema.voided.c.judgment_id == log.c.id)
        .where(log.c.image_id.is_not(None))
        .group_by(log.c.task)
    )
    voided = {row[0]: row[1] for row in connection.execute(voided_judgments)}
    tasks = {
        task: TaskProgress(
            open=open_questions.get(task, 0),
            voided=voided.get(task, 0),
            **{
                name: int(getattr(totals[task], name)) if task in totals else 0
                for name in ("judgments", "verification", "proposed", "accepted")
            },
        )
        for task in TASKS
    }
    fixes = connection.execute(select(func.count()).select_from(schema.fixes)).scalar_one()
    counts = {name: int(getattr(row, name)) for name in row._fields}
    return Progress(reviews=open_questions.get(REVIEW, 0), fixes=fixes, tasks=tasks, **counts)


def measure_agreement(connection: Connection) -> dict[str, float]:
    """By task: percentage of the questions with several answers on which all answers are equal."""
    log = schema.judgments
    several = (
        select(log.c.task, func.count(log.c.answer.distinct()).label("answers"))
        .outerjoin(schema.voided, schema.voided.c.judgment_id == log.c.id)
        .where(log.c.image_id.is_not(None), log.c.task.in_((REQUIREMENT, COVERAGE)))
        .where(schema.voided.c.judgment_id.is_(None))
        .group_by(log.c.image_id, log.c.key, log.c.task)
        .having(func.count() > 1)
        .subquery()
    )
    share = 100 * func.avg(case((several.c.answers == 1, 1.0), else_=0.0))
    return {
        row[0]: round(float(row[1]), 2)
        for row in connection.execute(select(several.c.task, share).group_by(several.c.task))
    }


def worker_reports(connection: Connection, rules: Rules) -> list[WorkerReport]:
    log, known = schema.judgments, schema.outcomes
    judged: dict[int, dict[str, int]] = {}
    for worker, task, count in connection.execute(
        select(log.c.worker_id, log.c.task, func.count()).group_by(log.c.worker_id, log.c.task)
    ):
        judged.setdefault(worker, {})[task] = count
    accuracy: dict[int, dict[str, float]] = {}
    share = func.avg(case((known.c.correct, 1.0), else_=0.0))
    for worker, task, right in connection.execute(
        select(known.c.worker_id, known.c.task, share).group_by(known.c.worker_id, known.c.task)
    ):
        accuracy.setdefault(worker, {})[task] = round(float(right), 4)
    speeds = _speeds(connection)
    last = connection.execute(select(log.c.worker_id, func.max(log.c.created)).group_by(log.c.worker_id))
    seen = {worker: float(time) for worker, time in last}
    return [
        WorkerReport(
            id=row.id,
            name=row.name,
            role=row.role,
            judgments=judged.get(row.id, {}),
            standings=_standings(Standings(connection, row.id, rules)),
            accuracy=accuracy.get(row.id, {}),
            seconds={task: round(total / count, 1) for task, (total, count) in speeds.get(row.id, {}).items()},
            hours=round(sum(total for total, _ in speeds.get(row.id, {}).values()) / 3600, 2),
            last_seen=seen.get(row.id, 0.0),
        )
        for row in connection.execute(select(schema.workers).order_by(schema.workers.c.id)).all()
    ]


def _speeds(connection: Connection) -> dict[int, dict[str, tuple[float, int]]]:
    """By worker and task: seconds from the answer before, summed over the answers without a break before them."""
    log = schema.judgments
    before = func.lag(log.c.created).over(partition_by=log.c.worker_id, order_by=log.c.id)
    gaps = select(log.c.worker_id, log.c.task, (log.c.created - before).label("gap")).subquery()
    query = (
        select(gaps.c.worker_id, gaps.c.task, func.sum(gaps.c.gap), func.count())
        .where(gaps.c.gap <= BREAK_SECONDS)
        .group_by(gaps.c.worker_id, gaps.c.task)
    )
    speeds: dict[int, dict[str, tuple[float, int]]] = {}
    for worker, task, total, count in connection.execute(query):
        speeds.setdefault(worker, {})[task] = (float(total), count)
    return speeds


def _standings(standings: Standings) -> dict[str, str]:
    return {task: str(standings.of(task)) for task in TASKS}
