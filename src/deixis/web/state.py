"""What the routes of the workbench share: the open project and its pictures."""

from __future__ import annotations

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
    try:
        shown = shelf_of(request).get(image, known)
    except InputError:
        # What is wrong with the file names places on the server.
        raise HTTPException(404, "this picture cannot be shown") from None
    return Response(shown.data, media_type=shown.media_type, headers={"Cache-Control": "private, max-age=3600"})
