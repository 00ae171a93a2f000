"""The annotation workbench: what a page, a command or a simulated worker calls.

A worker asks for tasks, answers them, and may give one back. Every method is one transaction: once it returns, what was
answered is in the database, and a kill at any moment loses nothing that was acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random, SystemRandom
from types import TracebackType
from typing import Protocol, Self

import msgspec
from sqlalchemy import Connection, select, update

from deixis.annotation import reviews, schema, standing_store
from deixis.annotation.corpus_export import Export, export_corpus
from deixis.annotation.desk import Desk, Receipt, Shown, StaleTask
from deixis.annotation.image_store import take_image, with_retries
from deixis.annotation.progress import (
    OwnStanding,
    Progress,
    WorkerReport,
    measure_agreement,
    measure_progress,
    own_standings,
    worker_reports,
)
from deixis.annotation.queue import held_items, lease_next
from deixis.annotation.trust import Standing
from deixis.annotation.views import TaskView
from deixis.annotation.workers import Decision, add_worker, all_decisions, role_of, worker_number
from deixis.annotation.workflow_records import REVIEW, TASKS, Answer, Document, Fix, Question, Settings, check_answer
from deixis.corpus import Image
from deixis.errors import DeixisError

__all__ = ["Assistant", "Receipt", "StaleTask", "Workbench"]

#: Marked images that a request for a task derives anew on its way, so that no request waits for all of them.
REFRESH_AT_ONCE = 10

_STALE = select(schema.stale.c.image_id).order_by(schema.stale.c.image_id)
_SOME_STALE = _STALE.limit(REFRESH_AT_ONCE)


class Assistant(Protocol):
    """Proposes answers; whether they were accepted is recorded."""

    def propose(self, question: Question, document: Document) -> Answer | None:
        """An answer to show beside the question, or None."""


class Workbench:
    """An open project. Safe to use from several threads, and from several processes on one database."""

    def __init__(
        self,
        where: str | Path,
        *,
        clock: Callable[[], float] = time.time,
        chance: Random | None = None,
        assistant: Assistant | None = None,
        durable: bool = True,
    ) -> None:
        self.where = str(where)
        if "://" not in self.where and not Path(where).is_file():
            raise DeixisError(f"{where}: no such annotation project; make one with `deixis annotate init`")
        self.engine = schema.open_engine(where, durable=durable)
        self._clock, self._chance, self._assistant = clock, chance or SystemRandom(), assistant
        try:
            with schema.damage(where):
                schema.check_schema(self.engine, where)
            with schema.damage(where), schema.reading(self.engine) as connection:
                self.settings = msgspec.json.decode(schema.get_value(connection, "settings") or "{}", type=Settings)
                self._rules = standing_store.load_rules(connection, self.settings)
                self._desk = Desk(self._rules, clock)
        except BaseException:
            self.engine.dispose()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.engine.dispose()

    # Workers

    def add_worker(self, name: str, role: str = "worker") -> int:
        """A new worker's number. Names are unique."""
        return with_retries(self.engine, lambda connection: add_worker(connection, name, role, self._clock()))

    def worker_number(self, name: str) -> int:
        """The number of the worker of that name."""
        with schema.reading(self.engine) as connection:
            return worker_number(connection, name)

    def suspend(self, worker: int, task: str, reason: str) -> None:
        """Take a task from a worker and ask again what the worker answered in it."""

        def attempt(connection: Connection) -> None:
            role_of(connection, worker)
            standing_store.suspend(connection, worker, task, Standing.SUSPENDED, reason, self._clock())

        with_retries(self.engine, attempt)

    def reinstate(self, worker: int, task: str, reason: str) -> None:
        """Let a suspended worker begin again in a task."""

        def attempt(connection: Connection) -> None:
            role_of(connection, worker)
            standing_store.reinstate(connection, worker, task, reason, self._rules, self._clock())

        with_retries(self.engine, attempt)

    # Tasks

    def next_task(self, worker: int, task: str | None = None) -> TaskView | None:
        """The task this worker should do now, of any kind or of the one named; None if there is none."""
        return next(iter(self.next_tasks(worker, task)), None)

    def next_tasks(self, worker: int, task: str | None = None, count: int = 1) -> list[TaskView]:
        """Up to `count` tasks, leased to the worker: those held already first, so that asking again changes nothing.

        Any of the six, or of the one named; reviewers may name `review`.
        """

        found = with_retries(self.engine, lambda connection: self._lease(connection, worker, task, count))
        return [self._assisted(shown) for shown in found]

    def submit(self, worker: int, token: str, answer: Answer, comment: str = "") -> Receipt:
        """Record the answer to a task. Sent again after a lost reply, it is recognised and counted once.

        Raises:
            StaleTask: the task went to somebody else or is not needed any more; ask for the next.
            DeixisError: the answer does not fit the question; the task stays with the worker.
        """

        return with_retries(self.engine, lambda c: self._desk.answer(c, worker, token, answer, comment))

    def submit_and_next(
        self, worker: int, token: str, answer: Answer, comment: str = "", task: str | None = None, count: int = 1
    ) -> tuple[Receipt, list[TaskView]]:
        """`submit`, then `next_tasks`, in one transaction: half the wait where each is synced to the disk."""

        def attempt(connection: Connection) -> tuple[Receipt, list[Shown]]:
            receipt = self._desk.answer(connection, worker, token, answer, comment)
            return receipt, self._lease(connection, worker, task, count)

        receipt, found = with_retries(self.engine, attempt)
        return receipt, [self._assisted(shown) for shown in found]

    def release(self, worker: int, token: str) -> None:
        """Give a task back unanswered: others get it, this worker no more. A question of the test stays.

        A hidden verification question goes like any other: one that came back would be known for what it is.
        """
        with_retries(self.engine, lambda connection: self._desk.release(connection, worker, token))

    def report(self, worker: int, token: str, comment: str) -> None:
        """Give a task back with a word to the reviewers on why it cannot be answered; sent again, it counts once."""
        if not comment.strip():
            raise DeixisError("a report needs some words")
        with_retries(self.engine, lambda connection: self._desk.report(connection, worker, token, comment))

    def standings(self, worker: int) -> dict[str, OwnStanding]:
        """Where a worker stands in each task, as the worker may know it: not which answers were right."""
        with schema.glancing(self.engine) as connection:
            return own_standings(connection, worker, self._rules)

    def picture_of(self, worker: int, token: str) -> tuple[Image, bool]:
        """The image of a task the worker holds, and whether it is one of the known corpus."""
        with schema.glancing(self.engine) as connection:
            item = self._desk.own_item(connection, worker, token)
            if item is None:
                raise StaleTask("this task is not yours any more")
            return self._desk.document_of(connection, item)[0].image, item.known_id is not None

    def refresh(self) -> int:
        """Derive all marked images anew (after a suspension), each in its own transaction; returns how many."""
        with schema.reading(self.engine) as connection:
            marked = connection.execute(_STALE).scalars().all()
        for number in marked:
            with_retries(self.engine, lambda connection, number=number: self._refresh(connection, number))  # type: ignore[misc]
        return len(marked)

    # Overview and review

    def progress(self) -> Progress:
        with schema.reading(self.engine) as connection:
            return measure_progress(connection)

    def agreement(self) -> dict[str, float]:
        """Of the questions that several workers answered, by task: the share, in percent, on which all agreed."""
        with schema.reading(self.engine) as connection:
            return measure_agreement(connection)

    def workers(self) -> list[WorkerReport]:
        with schema.reading(self.engine) as connection:
            return worker_reports(connection, self._rules)

    def decisions(self) -> list[Decision]:
        """Suspensions and reinstatements, in order."""
        with schema.reading(self.engine) as connection:
            return all_decisions(connection)

    def review_queue(self, limit: int = 100) -> list[reviews.Review]:
        """What waits for a reviewer: chains that cycle, chains that cannot be split, comments, questions that no
        worker is left to answer."""
        with schema.reading(self.engine) as connection:
            return reviews.review_queue(connection, limit)

    def inspect_image(self, name: str) -> reviews.ImageView:
        """All that is known of an image, for a reviewer, with its history and the version a fix must name."""
        with schema.reading(self.engine) as connection:
            return reviews.inspect_image(connection, name, self.settings)

    def fix(self, reviewer: int, name: str, fix: Fix, version: int, comment: str = "") -> int:
        """Correct an image by hand; refused if the image is no longer at the version the reviewer saw."""

        def attempt(connection: Connection) -> int:
            if role_of(connection, reviewer) == "worker":
                raise DeixisError("only reviewers and administrators correct by hand")
            number = reviews.add_fix(connection, reviewer, name, fix, version, comment, self.settings, self._clock())
            self._desk.renew(connection, number)
            return number

        return with_retries(self.engine, attempt)

    def export(self, *, finished_only: bool = False) -> Export:
        """The corpus as annotated so far, boxes and chains merged; only finished images where told so."""
        with schema.reading(self.engine) as connection:
            name = schema.get_value(connection, "name") or ""
            return export_corpus(connection, self.settings, name=name, finished_only=finished_only)

    def check(self) -> list[str]:
        """Rebuild every state from the log and compare with what the tables hold; returns the differences."""
        with schema.reading(self.engine) as connection:
            return reviews.differences(connection, self.settings)

    def _lease(self, connection: Connection, worker: int, task: str | None, count: int) -> list[Shown]:
        now = self._clock()
        for number in connection.execute(_SOME_STALE).scalars().all():
            self._refresh(connection, number)
        if task is not None and task not in TASKS:
            allowed = TASKS if role_of(connection, worker) == "worker" else (*TASKS, REVIEW)
            if task not in allowed:
                raise DeixisError(f"{task!r} is no task of worker {worker}; there are {', '.join(allowed)}")
        tasks = (task,) if task is not None else TASKS
        numbers = held_items(connection, worker, tasks, self._rules, now)[:count]
        while len(numbers) < count:
            number = lease_next(connection, worker, tasks, self._rules, now, self._chance)
            if number is None:
                break
            numbers.append(number)
        return [self._desk.show(connection, number) for number in numbers]

    def _refresh(self, connection: Connection, image_id: int) -> None:
        take_image(connection, image_id)
        self._desk.renew(connection, image_id)

    def _assisted(self, shown: Shown) -> TaskView:
        """The task with a proposal, where there is an assistant; a model takes its time outside of any transaction."""
        view = shown.view
        if self._assistant is None or view.test or view.task == REVIEW or view.proposal is not None:
            return view
        proposal = self._assistant.propose(shown.question, shown.document)
        if proposal is None:
            return view
        # In the form in which an answer is kept, so that an accepted one is found equal.
        proposal = check_answer(shown.question, proposal, view.width, view.height)
        items = schema.items
        change = update(items).where(items.c.token == view.token).values(proposal=msgspec.json.encode(proposal))
        with_retries(self.engine, lambda connection: connection.execute(change))
        return msgspec.structs.replace(view, proposal=proposal)
