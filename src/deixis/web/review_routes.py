"""API of the reviewer's pages: the queue, the list of images, an image with its history, and manual fixes."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from deixis.annotation.accounts import Account
from deixis.annotation.image_list import ImageList, Neighbours
from deixis.annotation.reviews import ImageView, Review
from deixis.annotation.workflow_records import Fix
from deixis.corpus import Caption
from deixis.errors import InputError
from deixis.vision.drawing.typesetting import stands_close
from deixis.web.annotation_records import ReviewedImage, file_replies, replies
from deixis.web.openapi import json_body
from deixis.web.sessions import needs
from deixis.web.shell import Number, body, reply
from deixis.web.state import bench_of, picture_reply, shelf_of, thumbnail_reply

router = APIRouter(prefix="/api/review", default_response_class=Response)

#: Images per page of the list.
PER_PAGE = 60

Reviewer = Annotated[Account, Depends(needs("reviewer"))]


class Fixed(msgspec.Struct, forbid_unknown_fields=True):
    """A correction of an image. `version` is the version that the reviewer saw."""

    image: str
    version: Number
    fix: Fix
    comment: Annotated[str, msgspec.Meta(max_length=2000)] = ""


@router.get("/queue", responses=replies(Review, many=True))
def queue(request: Request, reviewer: Reviewer) -> Response:
    return reply(bench_of(request).review_queue())


@router.get("/image", responses=replies(ReviewedImage))
def image(request: Request, reviewer: Reviewer, id: str) -> Response:
    return reply(_image_fields(request, bench_of(request).inspect_image(id)))


@router.get("/picture", responses=file_replies("image/*", 404))
def picture(request: Request, reviewer: Reviewer, id: str) -> Response:
    return picture_reply(request, bench_of(request).image(id))


@router.get("/thumbnail", responses=file_replies("image/jpeg", 404))
def thumbnail(request: Request, reviewer: Reviewer, id: str) -> Response:
    return thumbnail_reply(request, bench_of(request).image(id))


@router.get("/images", responses=replies(ImageList))
def images(
    request: Request, reviewer: Reviewer, part: str = "all", start: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0
) -> Response:
    """The images of a part of the project: all, review, disputed, open or finished."""
    return reply(bench_of(request).list_images(part, start, PER_PAGE))


@router.get("/neighbours", responses=replies(Neighbours))
def neighbours(request: Request, reviewer: Reviewer, id: str, part: str = "all") -> Response:
    """The images before and after one in a part of the project."""
    return reply(bench_of(request).neighbours(id, part))


@router.post("/fix", responses=replies(ReviewedImage, 408, 409, 413, 415), openapi_extra=json_body(Fixed))
def fix(request: Request, reviewer: Reviewer, sent: Annotated[Fixed, Depends(body(Fixed))]) -> Response:
    """Correct an image. The reply contains the corrected image."""
    bench_of(request).fix(reviewer.worker, sent.image, sent.fix, sent.version, sent.comment)
    return reply(_image_fields(request, bench_of(request).inspect_image(sent.image)))


def _image_fields(request: Request, view: ImageView) -> dict[str, Any]:
    image = view.document.image
    width, height = image.width, image.height
    if not width or not height:
        try:
            shown = shelf_of(request).get(image)
            width, height = shown.width, shown.height
        except InputError:
            width = height = 0
    return {
        "id": image.id,
        "version": view.version,
        "finished": view.finished,
        "width": width,
        "height": height,
        "captions": [_tokens_with_spaces(caption) for caption in image.captions],
        "mentions": [{"id": mention.id, "mention": mention} for mention in view.document.mentions],
        "chains": view.chains,
        "reviews": view.reviews,
        "equal_boxes": view.equal_boxes,
        "history": view.history,
    }


def _tokens_with_spaces(caption: Caption) -> list[tuple[str, bool]]:
    """The tokens of a caption, each with whether a space precedes it."""
    tokens = caption.tokens
    return [(token, bool(index) and not stands_close(tokens[index - 1], token)) for index, token in enumerate(tokens)]
