"""Replies of the annotation server's API as records, which are also its documentation (OpenAPI)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import FastAPI
from msgspec import Meta

from deixis.annotation.image_list import ImageList, Neighbours
from deixis.annotation.progress import OwnStanding, Progress, WorkerReport
from deixis.annotation.reviews import ChainView, EqualBoxes, Review
from deixis.annotation.workers import Decision
from deixis.annotation.workflow_records import Answer, Mention
from deixis.corpus import Box
from deixis.web.openapi import described, document, problems
from deixis.web.sessions import TOKEN_HEADER

Size = Annotated[int, Meta(ge=0)]
#: Text, and whether it is highlighted, or whether a space precedes it.
Piece = tuple[str, bool]


class Joined(msgspec.Struct, frozen=True):
    """Who signed in. `link` is the path of a new worker's sign-in link, to be kept; None where there is none."""

    role: str
    link: str | None


class Empty(msgspec.Struct, frozen=True):
    """The request was carried out; there is nothing more to say."""


class Task(msgspec.Struct, frozen=True):
    """A question with everything that is needed to answer it. `answers`: the word to send, its button and its key."""

    token: str
    task: str
    test: bool
    prompt: str
    answers: list[list[Any]]
    width: Size
    height: Size
    captions: list[list[Piece]]
    boxes: list[Box]
    box: Box | None
    proposal: Answer | None


class Tasks(msgspec.Struct, frozen=True):
    """The tasks to do now and next, and the worker's standing in each kind of task."""

    tasks: list[Task]
    standings: dict[str, OwnStanding]


class Received(msgspec.Struct, frozen=True):
    """The answer is recorded; `standing` is the worker's in this kind of task. The rest is as in `Tasks`."""

    standing: str
    tasks: list[Task]
    standings: dict[str, OwnStanding]


class WrongAnswer(msgspec.Struct, frozen=True):
    """A wrong answer in a test: what was asked, answered or drawn, what would have been right, and why.

    `answer` and `right` are labels of buttons. `evidence` are boxes that show why.
    """

    token: str
    width: Size
    height: Size
    captions: list[list[Piece]]
    boxes: list[Box]
    box: Box | None
    answer: str
    drawn: Box | None
    right: str
    reason: str
    evidence: list[Box]


class NamedMention(msgspec.Struct, frozen=True):
    id: str
    mention: Mention


class HistoryEvent(msgspec.Struct, frozen=True):
    created: float
    worker: str
    what: str
    content: Any
    comment: str
    void: bool


class ReviewedImage(msgspec.Struct, frozen=True):
    """An image with its annotations and history. A fix must name its `version`."""

    id: str
    version: int
    finished: bool
    width: Size
    height: Size
    captions: list[list[Piece]]
    mentions: list[NamedMention]
    chains: list[ChainView]
    reviews: list[Review]
    equal_boxes: list[EqualBoxes]
    history: list[HistoryEvent]


class Overview(msgspec.Struct, frozen=True):
    progress: Progress
    agreement: dict[str, float]
    workers: list[WorkerReport]
    decisions: list[Decision]


class Link(msgspec.Struct, frozen=True):
    """The path of a link for one person, to be put behind the server's address."""

    path: str


REPLIES = (
    ImageList,
    Neighbours,
    Joined,
    Empty,
    Tasks,
    Received,
    WrongAnswer,
    Review,
    ReviewedImage,
    Overview,
    WorkerReport,
    Link,
)

_PROBLEMS = {
    400: "The request does not fit the state of the project; `error` says why.",
    401: "Nobody is signed in.",
    403: "The role is not sufficient, or the request does not come from a page of this server.",
    404: "There is no such picture.",
    408: "The request did not come in time.",
    409: "The task is not this worker's any more, was answered differently before, or cannot be taken back any more.",
    413: "The request is too large.",
    415: "The request is not JSON.",
    421: "The server does not go by this name.",
    422: "The request is not of the described form; `error` names the field.",
    429: "Too many requests; try again.",
}


def replies(kind: type[msgspec.Struct], *statuses: int, many: bool = False) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route. `many`: the reply is a list of these records."""
    good = described(kind, "It was carried out.")
    if many:
        content = good["content"]["application/json"]
        content["schema"] = {"type": "array", "items": content["schema"]}
    return {200: good, **_problems(*statuses)}


def file_replies(media_type: str, *statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that gives a file."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    return {200: {"description": "The file.", "content": {media_type: binary}}, **_problems(*statuses)}


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return problems(_PROBLEMS, 400, 401, 403, 421, 422, 429, *statuses)


def document_annotation(app: FastAPI, cookie: str, requests: tuple[type[msgspec.Struct], ...]) -> None:
    """Describe the application's API. `requests` are the records that its routes take."""
    schemes = {
        "session": {"type": "apiKey", "in": "cookie", "name": cookie},
        "page": {
            "type": "apiKey",
            "in": "header",
            "name": TOKEN_HEADER,
            "description": "The token in a page's `csrf` meta element, sent with every change.",
        },
    }
    description = "Annotate captions with chains and boxes. Workers sign in with the link of an invitation."
    document(app, description, [*REPLIES, *requests], schemes, [{"session": [], "page": []}], [{"session": []}])
