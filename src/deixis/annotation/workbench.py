"""The annotation workbench: the interface of a project for web pages, commands and simulated workers.

A worker asks for tasks, answers them, and may give one back. Every method is one transaction. Once it returns, its
changes are in the database, and killing the process does not lose them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random, SystemRandom
from types import TracebackType
from typing import Protocol, Self

import msgspec
from sqlalchemy import Connection, select, update

from deixis.annotation import reviews, schema, standing_store, task_rules
from deixis.annotation.corpus_export import Export, export_corpus
from deixis.annotation.desk import Desk, Receipt, ShownTask
from deixis.annotation.image_list import ImageList, Neighbours, list_images, neighbours
from deixis.annotation.image_store import lock_image, with_retries
from deixis.annotation.progress import (
    OwnStanding,
    Progress,
    WorkerReport,
    measure_agreement,
    measure_progress,
    own_standings,
    worker_reports,
)
from deixis.annotation.project import change_settings, load_settings
from deixis.annotation.queue import held_items, lease_next
from deixis.annotation.taking_back import StaleTask
from deixis.annotation.trust import Standing
from deixis.annotation.views import Mistake, TaskView, tested_document, wrong_test_answers
from deixis.annotation.workers import Decision, add_worker, all_decisions, role_of, worker_number
from deixis.annotation.workflow_records import (
    ADDRESS,
    REVIEW,
    TASKS,
    Answer,
    Document,
    Fix,
    Question,
    Settings,
    check_answer,
)
from deixis.corpus import Image
from deixis.errors import DeixisError

__all__ = ["Assistant", "Receipt", "StaleTask", "Workbench"]

#: Number of stale images that a request for a task recomputes, so that no request waits for all of them.
REFRESH_AT_ONCE = 10

_STALE = select(schema.stale.c.image_id).order_by(schema.stale.c.image_id)
_SOME_STALE = _STALE.limit(REFRESH_AT_ONCE)


class Assistant(Protocol):
    """Proposes answers. The workbench records whether workers accept them."""

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
            raise DeixisError(f"{where}: no such annotation project; create one with `deixis annotate init`")
        self.engine = schema.open_engine(where, durable=durable)
        self._clock, self._chance, self._assistant = clock, chance or SystemRandom(), assistant
        try:
            with schema.damage(where):
                schema.check_schema(self.engine, where)
            with schema.damage(where), schema.reading(self.engine) as connection:
                self._use_settings(connection, load_settings(connection))
                self.task_rules = task_rules.load_rules(connection)
        except BaseException:
            self.engine.dispose()
            raise

    def _use_settings(self, connection: Connection, settings: Settings) -> None:
        self.settings = settings
        self._rules = standing_store.load_rules(connection, settings)
        self._desk = Desk(self._rules, self._clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.engine.dispose()

    @property
    def last_served(self) -> str:
        """The address at which `deixis annotate serve` last listened; empty if it never did."""
        with schema.reading(self.engine) as connection:
            stored = schema.get_value(connection, "served at") or ""
        return stored if re.fullmatch(ADDRESS, stored) else ""

    @last_served.setter
    def last_served(self, address: str) -> None:
        with_retries(self.engine, lambda connection: schema.set_value(connection, "served at", address))

    def change_settings(self, changes: Mapping[str, str]) -> None:
        """Change settings (`deixis annotate settings`). Other processes that have the project open must reopen it."""

        def attempt(connection: Connection) -> None:
            self._use_settings(connection, change_settings(connection, changes))

        with_retries(self.engine, attempt)
        self.refresh()

    @property
    def _titles(self) -> dict[str, str]:
        """The title of each task."""
        return {task: rules.title for task, rules in self.task_rules.items()}

    def use_rules(self, rules: Mapping[str, task_rules.TaskRules]) -> None:
        """Give the project its own rules for some tasks."""
        with_retries(self.engine, lambda connection: task_rules.store_rules(connection, rules))
        self.task_rules |= rules

    # Workers

    def add_worker(self, name: str, role: str = "worker") -> int:
        """Add a worker and return its id. Names must be unique."""
        return with_retries(self.engine, lambda connection: add_worker(connection, name, role, self._clock()))

    def worker_number(self, name: str) -> int:
        """The id of the worker with this name."""
        with schema.reading(self.engine) as connection:
            return worker_number(connection, name)

    def role_of(self, worker: int) -> str:
        with schema.reading(self.engine) as connection:
            return role_of(connection, worker)

    def suspend(self, worker: int, task: str | None, reason: str) -> None:
        """Suspend a worker from a task, discard the worker's answers in it and ask those questions again.

        Without a task, the worker is suspended from all tasks, but can still sign in.
        """

        def attempt(connection: Connection) -> None:
            role_of(connection, worker)
            for some_task in TASKS if task is None else (task,):
                standing_store.suspend(connection, worker, some_task, Standing.SUSPENDED, reason, self._clock())

        with_retries(self.engine, attempt)

    def reinstate(self, worker: int, task: str | None, reason: str) -> list[str]:
        """Let a suspended worker start again in a task; without a task, in all those the worker is suspended from.

        Returns these tasks.
        """

        def attempt(connection: Connection) -> list[str]:
            role_of(connection, worker)
            standings = standing_store.Standings(connection, worker, self._rules)
            suspended = [some_task for some_task in TASKS if standings.of(some_task) in standing_store.BARRED]
            tasks = suspended if task is None else [task]
            for some_task in tasks:
                standing_store.reinstate(connection, worker, some_task, reason, self._rules, self._clock())
            return tasks

        return with_retries(self.engine, attempt)

    # Tasks

    def next_task(self, worker: int, task: str | None = None) -> TaskView | None:
        """The next task for this worker, optionally of one kind; None if there is none."""
        return next(iter(self.next_tasks(worker, task)), None)

    def next_tasks(self, worker: int, task: str | None = None, count: int = 1) -> list[TaskView]:
        """Lease up to `count` tasks to the worker. Tasks the worker already holds come first, so calls can be repeated.

        `task` restricts them to one of the six tasks; for reviewers, also to `review`.
        """
        shown_tasks = with_retries(self.engine, lambda connection: self._lease(connection, worker, task, count))
        return [self._with_proposal(shown) for shown in shown_tasks]

    def submit(self, worker: int, token: str, answer: Answer, comment: str = "") -> Receipt:
        """Record the answer to a task. An answer sent twice, after a lost reply, is counted once.

        Raises:
            StaleTask: the task went to somebody else or is no longer needed; ask for the next one.
            DeixisError: the answer does not fit the question; the task stays with the worker.
        """

        return with_retries(self.engine, lambda c: self._desk.answer(c, worker, token, answer, comment))

    def submit_and_next(
        self, worker: int, token: str, answer: Answer, comment: str = "", task: str | None = None, count: int = 1
    ) -> tuple[Receipt, list[TaskView]]:
        """`submit`, then `next_tasks`, in one transaction, which saves one sync to disk."""

        def attempt(connection: Connection) -> tuple[Receipt, list[ShownTask]]:
            receipt = self._desk.answer(connection, worker, token, answer, comment)
            return receipt, self._lease(connection, worker, task, count)

        receipt, shown_tasks = with_retries(self.engine, attempt)
        return receipt, [self._with_proposal(shown) for shown in shown_tasks]

    def take_back(self, worker: int, token: str, task: str | None = None, count: int = 1) -> list[TaskView]:
        """Take back the worker's last answer, given by the token of its task, until somebody builds on it.

        The answer stays in the log but does not count. Returns the next tasks, with the same question first.

        Raises:
            StaleTask: it is not the last answer, or another answer or a correction depends on it.
        """

        def attempt(connection: Connection) -> list[ShownTask]:
            again = self._desk.take_back(connection, worker, token)
            return self._lease(connection, worker, task, count, again)

        return [self._with_proposal(shown) for shown in with_retries(self.engine, attempt)]

    def release(self, worker: int, token: str) -> None:
        """Give a task back unanswered; it goes to other workers. Test questions cannot be given back.

        Hidden verification questions can, like any other question, so that workers cannot recognize them.
        """
        with_retries(self.engine, lambda connection: self._desk.release(connection, worker, token))

    def report(self, worker: int, token: str, comment: str) -> None:
        """Give a task back with a comment for the reviewers on why it cannot be answered. Repeated calls count once."""
        if not comment.strip():
            raise DeixisError("a report needs a comment")
        with_retries(self.engine, lambda connection: self._desk.report(connection, worker, token, comment))

    def standings(self, worker: int) -> dict[str, OwnStanding]:
        """A worker's standing in each task, without revealing which answers were right."""
        with schema.quick_reading(self.engine) as connection:
            return own_standings(connection, worker, self._rules)

    def mistakes(self, worker: int, task: str) -> list[Mistake]:
        """The wrong answers of the worker's last finished attempt at the test of a task (`test_explained`)."""
        with schema.reading(self.engine) as connection:
            return wrong_test_answers(connection, worker, task, self._rules)

    def picture_of(self, worker: int, token: str) -> tuple[Image, bool]:
        """The image of a task that the worker holds, or of an answered test question.

        Also says whether it comes from the corpus of verification questions.
        """
        with schema.quick_reading(self.engine) as connection:
            item = self._desk.held_item(connection, worker, token)
            if item is None:
                document = tested_document(connection, worker, token)
                if document is None:
                    raise StaleTask("you no longer hold this task")
                return document.image, True
            return self._desk.document_of(connection, item)[0].image, item.known_id is not None

    def refresh(self) -> int:
        """Recompute all stale images (after a suspension), each in its own transaction. Returns their number."""
        with schema.reading(self.engine) as connection:
            marked = connection.execute(_STALE).scalars().all()
        for image_id in marked:
            with_retries(self.engine, lambda connection, image_id=image_id: self._refresh(connection, image_id))  # type: ignore[misc]
        return len(marked)

    # Overview and review

    def progress(self) -> Progress:
        with schema.reading(self.engine) as connection:
            return measure_progress(connection)

    def agreement(self) -> dict[str, float]:
        """By task: percentage of the questions answered by several workers on which all agreed."""
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
        """Questions for reviewers: chains that cycle or cannot be split, comments, questions with no worker left."""
        with schema.reading(self.engine) as connection:
            return reviews.review_queue(connection, limit, self._titles)

    def list_images(self, part: str = "all", start: int = 0, count: int = 50) -> ImageList:
        """Images of a part of the project (`image_list.PARTS`) with their workers and how much these disagree."""
        with schema.reading(self.engine) as connection:
            return list_images(connection, part, start, count)

    def neighbours(self, name: str, part: str = "all") -> Neighbours:
        """The images before and after one in a part of the project."""
        with schema.reading(self.engine) as connection:
            return neighbours(connection, name, part)

    def image(self, name: str) -> Image:
        with schema.quick_reading(self.engine) as connection:
            return reviews.image_record(connection, name)

    def inspect_image(self, name: str) -> reviews.ImageView:
        """An image with its annotations, its history and the version that a fix must state."""
        with schema.reading(self.engine) as connection:
            return reviews.inspect_image(connection, name, self.settings, self._titles)

    def fix(self, reviewer: int, name: str, fix: Fix, version: int, comment: str = "") -> int:
        """Correct an image by hand. Refused if the image has changed since the version the reviewer saw."""

        def attempt(connection: Connection) -> int:
            if role_of(connection, reviewer) == "worker":
                raise DeixisError("only reviewers and administrators can correct images")
            image_id = reviews.add_fix(connection, reviewer, name, fix, version, comment, self.settings, self._clock())
            self._desk.update_image(connection, image_id)
            return image_id

        return with_retries(self.engine, attempt)

    def export(self, *, finished_only: bool = False) -> Export:
        """The corpus as annotated so far, with merged boxes and chains; optionally only the finished images."""
        with schema.reading(self.engine) as connection:
            name = schema.get_value(connection, "name") or ""
            return export_corpus(connection, self.settings, name=name, finished_only=finished_only)

    def check(self) -> list[str]:
        """Rebuild every state from the log and compare it with the tables. Returns the differences."""
        with schema.reading(self.engine) as connection:
            return reviews.differences(connection, self.settings)

    def _lease(
        self, connection: Connection, worker: int, task: str | None, count: int, first: int | None = None
    ) -> list[ShownTask]:
        """The tasks that the worker holds, and as many new ones as are missing. The item `first` comes first."""
        now = self._clock()
        for image_id in connection.execute(_SOME_STALE).scalars().all():
            self._refresh(connection, image_id)
        if task is not None and task not in TASKS:
            allowed = TASKS if role_of(connection, worker) == "worker" else (*TASKS, REVIEW)
            if task not in allowed:
                raise DeixisError(f"{task!r} is not a task of worker {worker}; choose from {', '.join(allowed)}")
        tasks = (task,) if task is not None else TASKS
        held = [item for item in held_items(connection, worker, tasks, self._rules, now) if item != first]
        numbers = ([] if first is None else [first]) + held
        numbers = numbers[:count]
        while len(numbers) < count:
            image_id = lease_next(connection, worker, tasks, self._rules, now, self._chance)
            if image_id is None:
                break
            numbers.append(image_id)
        return [self._desk.show(connection, item_id) for item_id in numbers]

    def _refresh(self, connection: Connection, image_id: int) -> None:
        lock_image(connection, image_id)
        self._desk.update_image(connection, image_id)

    def _with_proposal(self, shown: ShownTask) -> TaskView:
        """The task with a proposal of the assistant, if there is one. Models run outside of any transaction."""
        view = shown.view
        if self._assistant is None or view.test or view.task == REVIEW or view.proposal is not None:
            return view
        proposal = self._assistant.propose(shown.question, shown.document)
        if proposal is None:
            return view
        # In the form in which answers are stored, so that an accepted proposal compares equal.
        proposal = check_answer(shown.question, proposal, view.width, view.height)
        items = schema.items
        change = update(items).where(items.c.token == view.token).values(proposal=msgspec.json.encode(proposal))
        with_retries(self.engine, lambda connection: connection.execute(change))
        return msgspec.structs.replace(view, proposal=proposal)
