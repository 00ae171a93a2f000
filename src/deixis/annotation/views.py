"""Views for the web pages: a task with its captions, highlights and boxes, without anything hidden from workers."""

from __future__ import annotations

import msgspec

from deixis.annotation.workflow_records import ANSWERS, Answer, Document, Question, by_id
from deixis.corpus import Box


class CaptionView(msgspec.Struct, frozen=True):
    """Caption `number` of the image, as tokens. `highlights` are token spans, end exclusive."""

    number: int
    tokens: tuple[str, ...]
    highlights: tuple[tuple[int, int], ...]


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A task leased to a worker; answer it with `Workbench.submit` and its token before `expires` (Unix time).

    `test` is true in a qualification test. Hidden verification questions look like any other question.
    """

    token: str
    task: str
    test: bool
    image: str
    answers: tuple[str, ...]
    width: int
    height: int
    captions: tuple[CaptionView, ...]
    boxes: tuple[Box, ...]
    box: Box | None
    reason: str
    expires: float
    proposal: Answer | None = None


def task_view(
    question: Question, document: Document, token: str, expires: float, *, test: bool, proposal: Answer | None = None
) -> TaskView:
    known = by_id(document.mentions)
    spans: dict[int, list[tuple[int, int]]] = {}
    for name in question.mentions:
        if name in known:
            spans.setdefault(known[name].caption, []).append((known[name].start, known[name].end))
    shown = spans or {index: [] for index in range(len(document.image.captions))}
    captions = [
        CaptionView(index, document.image.captions[index].tokens, tuple(sorted(shown[index])))
        for index in sorted(shown)
    ]
    return TaskView(
        token=token,
        task=question.task,
        test=test,
        image=document.image.id,
        answers=ANSWERS.get(question.task, ()),
        width=document.image.width,
        height=document.image.height,
        captions=tuple(captions),
        boxes=question.boxes,
        box=question.box,
        reason=question.reason,
        expires=expires,
        proposal=proposal,
    )
