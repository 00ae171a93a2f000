"""What the routes of the workbench share: the open project and its pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import HTTPException, Request, Response

from deixis.annotation.workbench import Workbench
from deixis.corpus import Image
from deixis.errors import InputError
from deixis.web.annotation_pictures import PictureShelf


def bench_of(request: Request) -> Workbench:
    bench: Workbench = request.app.state.workbench
    return bench


def shelf_of(request: Request) -> PictureShelf:
    shelf: PictureShelf = request.app.state.pictures
    return shelf


def picture_reply(request: Request, image: Image, known: bool = False) -> Response:
    """The picture of an image. A browser keeps it: what is loaded ahead of its task is shown from there then."""
    with _hidden_places():
        shown = shelf_of(request).get(image, known)
    return _kept_picture(shown.data, shown.media_type)


def thumbnail_reply(request: Request, image: Image) -> Response:
    with _hidden_places():
        thumbnail = shelf_of(request).thumbnail(image)
    return _kept_picture(thumbnail, "image/jpeg")


def _kept_picture(data: bytes, media_type: str) -> Response:
    return Response(data, media_type=media_type, headers={"Cache-Control": "private, max-age=3600"})


@contextmanager
def _hidden_places() -> Iterator[None]:
    """Problems of files name paths of the server, which stay private."""
    try:
        yield
    except InputError:
        raise HTTPException(404, "this picture cannot be shown") from None
