"""API of the worker's page: tasks, their pictures, and answers.

Replies contain only what is needed to answer: no image id, no other worker's answers, no true answers, and nothing that
would reveal a verification question.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from deixis.annotation.accounts import Account
from deixis.annotation.views import CaptionView, TaskView
from deixis.annotation.workflow_records import KEYS, TASKS, Answer
from deixis.corpus import Box
from deixis.errors import DeixisError, InputError
from deixis.vision.drawing.typesetting import stands_close
from deixis.web.annotation_records import Received, Tasks, WrongAnswer, file_replies, replies
from deixis.web.openapi import json_body
from deixis.web.sessions import needs
from deixis.web.shell import body, reply
from deixis.web.state import bench_of, picture_reply, shelf_of

router = APIRouter(prefix="/api/work", default_response_class=Response)

Worker = Annotated[Account, Depends(needs("worker"))]
#: Tasks per reply: the current one, and the next one, which the page loads ahead.
AHEAD = 2


class Answered(msgspec.Struct, forbid_unknown_fields=True):
    """The answer to a task. `only` restricts the next tasks to one kind."""

    token: str
    answer: Answer
    comment: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    only: str | None = None


class Returned(msgspec.Struct, forbid_unknown_fields=True):
    """A task given back, with or without a comment."""

    token: str
    comment: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    only: str | None = None


class TakenBack(msgspec.Struct, forbid_unknown_fields=True):
    """The token of the task whose answer is taken back."""

    token: str
    only: str | None = None


@router.get("/tasks", responses=replies(Tasks))
def tasks(request: Request, worker: Worker, only: str | None = None) -> Response:
    return _next_tasks(request, worker.worker, _check_task(only))


@router.post("/answer", responses=replies(Received, 408, 409, 413, 415), openapi_extra=json_body(Answered))
def answer(request: Request, worker: Worker, sent: Annotated[Answered, Depends(body(Answered))]) -> Response:
    """Record an answer. The reply, sent once the answer is in the database, contains the next tasks."""
    bench = bench_of(request)
    only = _check_task(sent.only)
    receipt, views = bench.submit_and_next(worker.worker, sent.token, sent.answer, sent.comment, only, AHEAD)
    return reply({"standing": receipt.standing, **_state(request, worker.worker, views)})


@router.post("/skip", responses=replies(Tasks, 408, 409, 413, 415), openapi_extra=json_body(Returned))
def skip(request: Request, worker: Worker, sent: Annotated[Returned, Depends(body(Returned))]) -> Response:
    only = _check_task(sent.only)
    bench_of(request).release(worker.worker, sent.token)
    return _next_tasks(request, worker.worker, only)


@router.post("/report", responses=replies(Tasks, 408, 409, 413, 415), openapi_extra=json_body(Returned))
def report(request: Request, worker: Worker, sent: Annotated[Returned, Depends(body(Returned))]) -> Response:
    only = _check_task(sent.only)
    bench_of(request).report(worker.worker, sent.token, sent.comment)
    return _next_tasks(request, worker.worker, only)


@router.post("/take-back", responses=replies(Tasks, 408, 409, 413, 415), openapi_extra=json_body(TakenBack))
def take_back(request: Request, worker: Worker, sent: Annotated[TakenBack, Depends(body(TakenBack))]) -> Response:
    """Take back the last answer, until somebody builds on it. The same question is the first of the next tasks."""
    only = _check_task(sent.only)
    views = bench_of(request).take_back(worker.worker, sent.token, only, AHEAD)
    return reply(_state(request, worker.worker, views))


@router.get("/mistakes", responses=replies(WrongAnswer, many=True))
def mistakes(request: Request, worker: Worker, task: str) -> Response:
    """The wrong answers of the last finished test of a task, and why they were wrong."""
    rules = bench_of(request).task_rules[_check_task(task) or task]
    shown = []
    for mistake in bench_of(request).mistakes(worker.worker, task):
        labels = rules.labels_of(mistake.view)
        task_fields = _task_fields(request, worker.worker, mistake.view)
        shown.append(
            WrongAnswer(
                **{name: task_fields[name] for name in ("token", "width", "height", "captions", "boxes", "box")},
                answer=labels[mistake.answer] if isinstance(mistake.answer, str) else "",
                drawn=None if isinstance(mistake.answer, str) else _rounded(mistake.answer),
                right=labels.get(mistake.right, ""),
                reason=rules.reasons.get(mistake.right, ""),
                evidence=[_rounded(box) for box in mistake.evidence],
            )
        )
    return reply(shown)


@router.get("/pictures/{token}", responses=file_replies("image/*", 404, 409))
def picture(request: Request, worker: Worker, token: str) -> Response:
    """The picture of a task that the worker holds, or of an answered test question."""
    return picture_reply(request, *bench_of(request).picture_of(worker.worker, token))


def _check_task(only: str | None) -> str | None:
    """Check the task that a page is restricted to. Reviews are not done on this page."""
    if only is not None and only not in TASKS:
        raise DeixisError(f"{only!r} is not a task; choose from {', '.join(TASKS)}")
    return only


def _next_tasks(request: Request, worker: int, only: str | None) -> Response:
    return reply(_state(request, worker, bench_of(request).next_tasks(worker, only, AHEAD)))


def _state(request: Request, worker: int, views: list[TaskView]) -> dict[str, Any]:
    tasks = [_task_fields(request, worker, view) for view in views]
    return {"tasks": tasks, "standings": bench_of(request).standings(worker)}


def _task_fields(request: Request, worker: int, view: TaskView) -> dict[str, Any]:
    width, height = view.width, view.height
    if not width or not height:
        try:
            shown = shelf_of(request).get(*bench_of(request).picture_of(worker, view.token))
            width, height = shown.width, shown.height
        except InputError:
            width = height = 0
    rules = bench_of(request).task_rules[view.task]
    labels = rules.labels_of(view)
    return {
        "token": view.token,
        "task": view.task,
        "test": view.test,
        "prompt": rules.question_of(view),
        "answers": [(word, labels[word], KEYS[word]) for word in view.answers],
        "width": width,
        "height": height,
        "captions": [pieces(caption) for caption in view.captions],
        "boxes": [_rounded(box) for box in view.boxes],
        "box": None if view.box is None else _rounded(view.box),
        "proposal": view.proposal,
    }


def _rounded(box: Box) -> Box:
    """Round a box to whole pixels. Fractions would distinguish drawn boxes from those of verification questions."""
    return Box(*map(round, msgspec.structs.astuple(box)))


def pieces(caption: CaptionView) -> list[tuple[str, bool]]:
    """The text of a caption in pieces, each with whether it is highlighted."""
    parts: list[tuple[str, bool]] = []
    previous = None
    for index, token in enumerate(caption.tokens):
        span = next((span for span in caption.highlights if span[0] <= index < span[1]), None)
        gap = "" if not index or stands_close(caption.tokens[index - 1], token) else " "
        if parts and span == previous:
            parts[-1] = (f"{parts[-1][0]}{gap}{token}", span is not None)
        else:
            # The space between two phrases belongs to neither.
            parts += [(gap, False)] if gap else []
            parts.append((token, span is not None))
        previous = span
    return parts
