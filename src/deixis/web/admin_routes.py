"""API of the administrator's page: progress, workers, invitations, and export."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask

from deixis.annotation.accounts import Account
from deixis.annotation.progress import WorkerReport
from deixis.annotation.workbench import Workbench
from deixis.annotation.workers import WorkRecord, check_screen
from deixis.annotation.workflow_records import TASKS
from deixis.corpus import write_corpus
from deixis.errors import DeixisError
from deixis.web.annotation_records import Link, Overview, file_replies, replies
from deixis.web.openapi import json_body
from deixis.web.sessions import Sessions, needs
from deixis.web.shell import Number, body, reply
from deixis.web.state import bench_of

router = APIRouter(prefix="/api/admin", default_response_class=Response)

#: Export formats that can store boxes.
EXPORTS = ("flickr30k-entities", "grounding", "coco", "deixis")

Reviewer = Annotated[Account, Depends(needs("reviewer"))]
Administrator = Annotated[Account, Depends(needs("administrator"))]


class Invited(msgspec.Struct, forbid_unknown_fields=True):
    """Request for a link: for a new worker with this role, or for an existing `worker` to sign in again.

    `answers` and `accuracy` are the earlier record of a new worker, if the project asks for it (`screen_answers`).
    """

    role: str = "worker"
    worker: Number | None = None
    answers: Number | None = None
    accuracy: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None


class Decided(msgspec.Struct, forbid_unknown_fields=True):
    """Request to suspend a worker from a task, or from all (None), or to reinstate the worker."""

    worker: Number
    task: str | None
    suspend: bool
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=500)] = "by hand"


@router.get("/overview", responses=replies(Overview))
def overview(request: Request, reviewer: Reviewer) -> Response:
    bench = bench_of(request)
    return reply(
        {
            "progress": bench.progress(),
            "agreement": bench.agreement(),
            "workers": bench.workers(),
            "decisions": bench.decisions(),
        }
    )


@router.post("/invite", responses=replies(Link, 408, 413, 415), openapi_extra=json_body(Invited))
def invite(
    request: Request, administrator: Administrator, sent: Annotated[Invited, Depends(body(Invited))]
) -> Response:
    """Create an invitation link. Browsers never send the part after the #, so the secret is in no log."""
    sessions: Sessions = request.app.state.sessions
    if sent.worker is not None:
        return reply({"path": f"/back#{sessions.accounts.sign_in_link(sent.worker)}"})
    stated = sent.answers is not None and sent.accuracy is not None
    record = WorkRecord("", sent.answers or 0, sent.accuracy or 0.0) if stated else None
    check_screen(bench_of(request).settings, sent.role, record)
    return reply({"path": f"/join#{sessions.accounts.invite(sent.role)}"})


@router.post("/decide", responses=replies(WorkerReport, 408, 413, 415, many=True), openapi_extra=json_body(Decided))
def decide(
    request: Request, administrator: Administrator, sent: Annotated[Decided, Depends(body(Decided))]
) -> Response:
    if sent.task is not None and sent.task not in TASKS:
        raise DeixisError(f"{sent.task!r} is not a task; choose from {', '.join(TASKS)}")
    bench = bench_of(request)
    if sent.suspend:
        bench.suspend(sent.worker, sent.task, sent.reason)
        bench.refresh()
    else:
        bench.reinstate(sent.worker, sent.task, sent.reason)
    return reply(bench.workers())


@router.get("/export", responses=file_replies("application/zip"), response_class=FileResponse)
def export(
    request: Request, admin: Administrator, format: str = "flickr30k-entities", finished_only: bool = False
) -> FileResponse:
    """Download the corpus as annotated so far, as a zip file."""
    if format not in EXPORTS:
        raise DeixisError(f"{format!r} is not an export format; choose from {', '.join(EXPORTS)}")
    folder = Path(tempfile.mkdtemp(prefix="deixis-export-"))
    try:
        file = _write_zip(bench_of(request), folder, format, finished_only)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    clean_up = BackgroundTask(shutil.rmtree, folder, ignore_errors=True)
    return FileResponse(file, media_type="application/zip", filename=file.name, background=clean_up)


def _write_zip(bench: Workbench, folder: Path, format: str, finished_only: bool) -> Path:
    corpus = bench.export(finished_only=finished_only).corpus
    name = re.sub(r"[^\w-]+", "-", corpus.name).strip("-") or "corpus"
    target = folder / "written" / name
    target.parent.mkdir()
    write_corpus(corpus, target, format=format)
    return Path(shutil.make_archive(str(folder / f"{name}-{format}"), "zip", target.parent))
