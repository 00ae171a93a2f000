"""What a worker's page asks for: tasks, their pictures, and the places where answers go.

A worker is told what must be seen to answer, and nothing else: no image id, no other's answers, no truth, nothing by
which a verification question could be told from others.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from deixis.annotation.accounts import Account
from deixis.annotation.views import CaptionView, TaskView
from deixis.annotation.workflow_records import TASKS, Answer
from deixis.corpus import Box
from deixis.errors import DeixisError, InputError
from deixis.vision.typesetting import stands_close
from deixis.web.sessions import needs
from deixis.web.shell import body, reply
from deixis.web.state import bench_of, picture_reply, shelf_of
from deixis.web.task_wording import WORDING

router = APIRouter(prefix="/api/work")

Worker = Annotated[Account, Depends(needs("worker"))]
#: The task to be done and the next, so that the page can load it ahead.
AHEAD = 2


class Answered(msgspec.Struct, forbid_unknown_fields=True):
    """The answer to a task; `only` keeps to one kind of task."""

    token: str
    answer: Answer
    comment: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    only: str | None = None


class Returned(msgspec.Struct, forbid_unknown_fields=True):
    """A task given back, with a word on why or without."""

    token: str
    comment: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    only: str | None = None


@router.get("/tasks")
def tasks(request: Request, worker: Worker, only: str | None = None) -> Response:
    return _next(request, worker.worker, _task(only))


@router.post("/answer")
def answer(request: Request, worker: Worker, sent: Annotated[Answered, Depends(body(Answered))]) -> Response:
    """Record an answer; when the reply comes, it is in the database, and the reply holds the next tasks."""
    bench = bench_of(request)
    only = _task(sent.only)
    receipt, views = bench.submit_and_next(worker.worker, sent.token, sent.answer, sent.comment, only, AHEAD)
    return reply({"standing": receipt.standing, **_state(request, worker.worker, views)})


@router.post("/skip")
def skip(request: Request, worker: Worker, sent: Annotated[Returned, Depends(body(Returned))]) -> Response:
    only = _task(sent.only)
    bench_of(request).release(worker.worker, sent.token)
    return _next(request, worker.worker, only)


@router.post("/report")
def report(request: Request, worker: Worker, sent: Annotated[Returned, Depends(body(Returned))]) -> Response:
    only = _task(sent.only)
    bench_of(request).report(worker.worker, sent.token, sent.comment)
    return _next(request, worker.worker, only)


@router.get("/pictures/{token}")
def picture(request: Request, worker: Worker, token: str) -> Response:
    """The picture of a task that the worker holds."""
    return picture_reply(request, *bench_of(request).picture_of(worker.worker, token))


def _task(only: str | None) -> str | None:
    """The task a page keeps to; a review is no task of this page, whoever asks."""
    if only is not None and only not in TASKS:
        raise DeixisError(f"{only!r} is no task; there are {', '.join(TASKS)}")
    return only


def _next(request: Request, worker: int, only: str | None) -> Response:
    return reply(_state(request, worker, bench_of(request).next_tasks(worker, only, AHEAD)))


def _state(request: Request, worker: int, views: list[TaskView]) -> dict[str, Any]:
    tasks = [_shown(request, worker, view) for view in views]
    return {"tasks": tasks, "standings": bench_of(request).standings(worker)}


def _shown(request: Request, worker: int, view: TaskView) -> dict[str, Any]:
    width, height = view.width, view.height
    if not width or not height:
        try:
            shown = shelf_of(request).get(*bench_of(request).picture_of(worker, view.token))
            width, height = shown.width, shown.height
        except InputError:
            width = height = 0
    wording = WORDING[view.task]
    return {
        "token": view.token,
        "task": view.task,
        "test": view.test,
        "prompt": view.prompt,
        "answers": [(word, *wording.answers[word]) for word in view.answers],
        "width": width,
        "height": height,
        "captions": [pieces(caption) for caption in view.captions],
        "boxes": [_whole(box) for box in view.boxes],
        "box": None if view.box is None else _whole(view.box),
        "proposal": view.proposal,
    }


def _whole(box: Box) -> Box:
    """A box in whole pixels: known ones mostly are, drawn ones are not, and nobody shall tell them apart by that."""
    return Box(*map(round, msgspec.structs.astuple(box)))


def pieces(caption: CaptionView) -> list[tuple[str, bool]]:
    """A caption as it is written, in pieces of text that are highlighted or not."""
    found: list[tuple[str, bool]] = []
    previous = None
    for number, token in enumerate(caption.tokens):
        span = next((span for span in caption.highlights if span[0] <= number < span[1]), None)
        gap = "" if not number or stands_close(caption.tokens[number - 1], token) else " "
        if found and span == previous:
            found[-1] = (f"{found[-1][0]}{gap}{token}", span is not None)
        else:
            # The space between two phrases belongs to neither.
            found += [(gap, False)] if gap else []
            found.append((token, span is not None))
        previous = span
    return found
