"""What an administrator's page asks for: how far the project is, who works on it, invitations, and the export."""

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
from deixis.annotation.workbench import Workbench
from deixis.annotation.workflow_records import TASKS
from deixis.corpus import write_corpus
from deixis.errors import DeixisError
from deixis.web.sessions import Sessions, needs
from deixis.web.shell import body, reply
from deixis.web.state import bench_of

router = APIRouter(prefix="/api/admin")

#: Formats that keep boxes.
EXPORTS = ("flickr30k-entities", "grounding", "coco", "deixis")

Reviewer = Annotated[Account, Depends(needs("reviewer"))]
Administrator = Annotated[Account, Depends(needs("administrator"))]


class Invited(msgspec.Struct, forbid_unknown_fields=True):
    """Somebody new in a role, or a worker there is already who needs a way back in."""

    role: str = "worker"
    worker: int | None = None


class Decided(msgspec.Struct, forbid_unknown_fields=True):
    """A worker's standing in a task, decided by hand."""

    worker: int
    task: str
    suspend: bool
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=500)] = "by hand"


@router.get("/overview")
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


@router.post("/invite")
def invite(
    request: Request, administrator: Administrator, sent: Annotated[Invited, Depends(body(Invited))]
) -> Response:
    """The path of a link that lets one person in; what follows the # is never sent to a server by itself."""
    sessions: Sessions = request.app.state.sessions
    if sent.worker is not None:
        return reply({"path": f"/back#{sessions.accounts.invite_back(sent.worker)}"})
    return reply({"path": f"/join#{sessions.accounts.invite(sent.role)}"})


@router.post("/decide")
def decide(
    request: Request, administrator: Administrator, sent: Annotated[Decided, Depends(body(Decided))]
) -> Response:
    if sent.task not in TASKS:
        raise DeixisError(f"{sent.task!r} is no task")
    bench = bench_of(request)
    if sent.suspend:
        bench.suspend(sent.worker, sent.task, sent.reason)
        bench.refresh()
    else:
        bench.reinstate(sent.worker, sent.task, sent.reason)
    return reply(bench.workers())


@router.get("/export")
def export(
    request: Request, admin: Administrator, format: str = "flickr30k-entities", finished_only: bool = False
) -> FileResponse:
    """All that was annotated so far as a zip of a corpus."""
    if format not in EXPORTS:
        raise DeixisError(f"{format!r} is no format to export; there are {', '.join(EXPORTS)}")
    folder = Path(tempfile.mkdtemp(prefix="deixis-export-"))
    try:
        file = _export(bench_of(request), folder, format, finished_only)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    clean_up = BackgroundTask(shutil.rmtree, folder, ignore_errors=True)
    return FileResponse(file, media_type="application/zip", filename=file.name, background=clean_up)


def _export(bench: Workbench, folder: Path, format: str, finished_only: bool) -> Path:
    corpus = bench.export(finished_only=finished_only).corpus
    name = re.sub(r"[^\w-]+", "-", corpus.name).strip("-") or "corpus"
    inside = folder / "written" / name
    inside.parent.mkdir()
    write_corpus(corpus, inside, format=format)
    return Path(shutil.make_archive(str(folder / f"{name}-{format}"), "zip", inside.parent))
