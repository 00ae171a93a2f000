"""What the search API answers, as records that are also its documentation (OpenAPI)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import FastAPI
from msgspec import Meta

from deixis.web.collection_map import CollectionMap
from deixis.web.openapi import described, document, problems

#: The key of a picture: the first half of its content's SHA-256.
KEY = r"^[0-9a-f]{32}$"
Key = Annotated[str, Meta(pattern=KEY)]
#: Pictures of one download.
MOST_DOWNLOADED = 5000
Share = Annotated[float, Meta(ge=0, le=1)]
#: x1, y1, x2, y2 in the pixels of the picture as it is on the disk, upright.
Box = tuple[float, float, float, float]


class Hit(msgspec.Struct, frozen=True):
    picture: Key
    path: str
    #: When it was taken, as in 2024-07-14T15:20:31.
    date: str
    #: Pixels of the upright picture; 0 where they are not known.
    width: int
    height: int
    #: How surely it matches; 0.5 is where the list of matches ends.
    score: Share
    #: Whether it is a match.
    relevant: bool


class IgnoredExclusion(msgspec.Struct, frozen=True):
    """What the query excludes without any effect."""

    phrase: str
    #: `unknown`: the model does not know a word of it; `absent`: no picture matches it.
    reason: Literal["unknown", "absent"]


class Answer(msgspec.Struct, frozen=True):
    """Pictures that were found, best first; `absent` where none of them is a match."""

    query: str
    hits: list[Hit]
    absent: bool
    #: How many pictures match, those that `offset` and `count` leave out included.
    matches: int
    #: Whether more pictures follow.
    more: bool
    #: Words that the model does not know. Nothing matches them; an exclusion of them is ignored.
    unknown_words: list[str]
    #: The query with known words in their place, where there are some like them.
    suggestion: str
    #: Words that the model has hardly read: it is wrong about them more often than about others.
    rare_words: list[str]
    ignored_exclusions: list[IgnoredExclusion]


class Grounded(msgspec.Struct, frozen=True):
    """A phrase of the text, from character `start` to `end`, and the part of the picture that it names."""

    phrase: str
    start: int
    end: int
    box: Box
    #: For a plural phrase one box per thing found; otherwise the one box.
    boxes: list[Box]
    #: How likely the box is the right one if the thing is in the picture.
    score: Share
    #: How likely the thing is in the picture; null if the model has no estimate.
    presence: Share | None


class Grounding(msgspec.Struct, frozen=True):
    text: str
    width: int
    height: int
    phrases: list[Grounded]
    #: The text with another colour, number or attribute, or with two roles exchanged, where that fits clearly better.
    fits_better: list[str]


class Caption(msgspec.Struct, frozen=True):
    text: str
    #: Compares within one picture only.
    score: float


class RegionPhrase(msgspec.Struct, frozen=True):
    """A phrase of the captions, and the part of the picture that it names."""

    box: Box
    text: str
    score: Share


class Described(msgspec.Struct, frozen=True):
    width: int
    height: int
    captions: list[Caption]
    regions: list[RegionPhrase]


class Listed(msgspec.Struct, frozen=True):
    picture: Key
    path: str
    #: When it was taken, as in 2024-07-14T15:20:31.
    date: str
    #: Pixels of the upright picture; 0 where they are not known.
    width: int
    height: int


class Listing(msgspec.Struct, frozen=True):
    """Pictures, those taken last first; `total` counts all that pass the filters."""

    pictures: list[Listed]
    total: int
    more: bool


class Folder(msgspec.Struct, frozen=True):
    """A folder with pictures, with a slash at its end; those of folders in it are counted, too."""

    folder: str
    files: int


class Folders(msgspec.Struct, frozen=True):
    folders: list[Folder]


class PictureInfo(msgspec.Struct, frozen=True):
    picture: Key
    #: The files that hold it.
    paths: list[str]
    width: int
    height: int
    #: When it was taken, as in 2024-07-14T15:20:31.
    date: str
    #: Whether the date is the camera's; otherwise it is the time of the file.
    dated_by_camera: bool


class Selection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pictures to be downloaded together."""

    pictures: Annotated[list[Key], Meta(min_length=1, max_length=MOST_DOWNLOADED)]


class Download(msgspec.Struct, frozen=True):
    """Where the pictures can be fetched from, for a while."""

    address: str


class Revealed(msgspec.Struct, frozen=True):
    """The file that is shown in the file manager."""

    path: str


class Copy(msgspec.Struct, frozen=True):
    """A file of a group of duplicates."""

    picture: Key
    path: str
    bytes: int
    date: str
    width: int
    height: int


class Duplicates(msgspec.Struct, frozen=True):
    """Groups of files that show the same, the largest picture of each first; `total` counts all groups."""

    groups: list[list[Copy]]
    total: int


class Status(msgspec.Struct, frozen=True):
    version: str
    pictures: int
    folders: list[str]
    model: str
    weights_sha256: str
    dim: int
    #: Cells of a picture that words are compared with.
    cells: int
    #: Whether the server can point at phrases, and describe pictures.
    grounds: bool
    describes: bool
    #: Whether it can show a file in the file manager of this machine.
    reveals: bool
    #: Why the newest state of the index is not served; empty where it is.
    problem: str


class Health(msgspec.Struct, frozen=True):
    status: str


RECORDS = (
    *(Answer, Listing, Folders, Grounding, Described, PictureInfo, Selection, Download, Revealed, Duplicates),
    *(Status, Health, CollectionMap),
)

_PROBLEMS = {
    400: "It cannot be answered; `error` says why.",
    401: "The server wants a token.",
    403: "The request comes from another site's page, or may only come from the server's own machine.",
    404: "There is no such picture or download, or it has changed since it was indexed.",
    408: "The picture did not come in time.",
    409: "The server has no model that could do it.",
    413: "The picture is too large.",
    415: "What was sent is neither JSON nor a picture.",
    422: "A parameter is not of its kind; `error` names it.",
    429: "Too much at once; try again.",
    503: "Too many pictures are being sent; try again.",
}


def replies(kind: type[msgspec.Struct], *statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: the record of a good answer, and the problems that may be reported instead."""
    return {200: described(kind, "It was answered."), **problems(_PROBLEMS, 401, 403, *statuses)}


def picture_body() -> dict[str, Any]:
    """A body that is the bytes of a picture file."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    content = {"image/*": binary, "application/octet-stream": binary}
    return {"requestBody": {"required": True, "description": "A picture file.", "content": content}}


def document_search(app: FastAPI) -> None:
    """Describe the application's API."""
    description = "Search over the pictures of an index. Pictures are named by keys, which identify their contents."
    document(app, description, RECORDS, {"token": {"type": "http", "scheme": "bearer"}}, [{}, {"token": []}])
