"""The HTTP API of an index: lists of its pictures, single ones, their files, and files that show the same."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any
from urllib.parse import quote

import typer
from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from deixis.search.collection import Collection
from deixis.search.walking import is_under
from deixis.vision.picture_files import shown
from deixis.web.downloads import file_name, zipped
from deixis.web.entrance import admitted
from deixis.web.indexed_pictures import (
    Size,
    listed_picture,
    open_original,
    picture_file,
    picture_of,
    size_of,
)
from deixis.web.openapi import json_body
from deixis.web.search_records import (
    KEY,
    Copy,
    Download,
    Duplicates,
    Folder,
    Folders,
    Listed,
    Listing,
    PictureInfo,
    Revealed,
    Selection,
    replies,
)
from deixis.web.search_routes import Count, Only
from deixis.web.search_state import SearchState, state_of
from deixis.web.security import is_loopback
from deixis.web.shell import body, reply

router = APIRouter(prefix="/api", dependencies=[Depends(admitted)], default_response_class=Response)

#: A key never means another picture.
FOR_EVER = {"Cache-Control": "private, max-age=31536000, immutable"}
#: The folders that are listed at most.
MOST_FOLDERS = 5000
#: The types of originals that a browser may show; others are downloaded.
TYPES = {
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "png": "image/png",
    "webp": "image/webp",
    "gif": "image/gif",
    "bmp": "image/bmp",
    "avif": "image/avif",
}

PictureKey = Annotated[str, Path(pattern=KEY, description="The key of a picture.")]
Offset = Annotated[int, Query(ge=0, le=2**31 - 1, description="How many to leave out: those of earlier pages.")]


@router.get("/pictures", responses=replies(Listing, 422))
async def pictures(request: Request, only: Only, count: Count = 24, offset: Offset = 0) -> Response:
    """The pictures of the index, those taken last first."""
    state = state_of(request)
    collection = state.desk.engine.collection
    ids = await state.decoding(lambda: collection.listed(only))
    listed = (listed_picture(collection, picture_id, only) for picture_id in ids[offset : offset + count].tolist())
    return reply(Listing([Listed(*fields) for fields in listed if fields], len(ids), offset + count < len(ids)))


@router.get("/folders", responses=replies(Folders))
async def folders(request: Request) -> Response:
    """The folders that hold pictures."""
    state = state_of(request)
    collection = state.desk.engine.collection
    return reply(await state.decoding(lambda: _folders(collection)))


def _folders(collection: Collection) -> Folders:
    counts: Counter[bytes] = Counter()
    for file in collection.files():
        folder, separator, _ = file.path.rpartition(_separator(file.path))
        while any(folder == root or is_under(folder, root) for root in collection.roots):
            counts[folder + separator] += 1
            folder = folder.rpartition(separator)[0]
    listed = sorted(counts.items())[:MOST_FOLDERS]
    return Folders([Folder(shown(folder), files) for folder, files in listed])


def _separator(path: bytes) -> bytes:
    return b"/" if b"/" in path else b"\\"


@router.get("/pictures/{picture}", responses=replies(PictureInfo, 404, 422))
async def picture_info(request: Request, picture: PictureKey) -> Response:
    """The files that hold an indexed picture, its size, and when it was taken."""
    state = state_of(request)
    collection = state.desk.engine.collection
    picture_id = picture_of(collection, picture)
    width, height = size_of(await state.decoding(lambda: picture_file(collection, picture)))
    paths = [shown(path) for path in collection.paths(picture_id)]
    by_camera = bool(collection.details(picture_id).taken)
    return reply(PictureInfo(picture, paths, width, height, collection.date(picture_id), by_camera))


@router.get(
    "/pictures/{picture}/original",
    responses=replies(PictureInfo, 404, 422)
    | {200: {"description": "The file.", "content": {"image/*": {}, "application/octet-stream": {}}}},
)
async def original(
    request: Request,
    picture: PictureKey,
    download: Annotated[bool, Query(description="Whether a browser saves it instead of showing it.")] = False,
) -> Response:
    """The file of an indexed picture, byte for byte, with all that its camera noted in it."""
    state = state_of(request)
    collection = state.desk.engine.collection
    opened = await state.decoding(lambda: open_original(collection, picture))
    name = file_name(opened.path)
    kind = TYPES.get(name.rpartition(".")[2].lower(), "application/octet-stream")
    headers = {
        "Content-Disposition": _disposition(name, attached=download or kind not in TYPES.values()),
        "Content-Length": str(opened.size),
        **FOR_EVER,
    }

    return _InParts(state, opened.parts(), opened.stream.close, media_type=kind, headers=headers)


def _disposition(name: str, *, attached: bool) -> str:
    way = "attachment" if attached else "inline"
    return f"{way}; filename*=UTF-8''{quote(name, safe='')}"


@router.post("/pictures/{picture}/reveal", responses=replies(Revealed, 404, 409, 413, 415, 422))
async def reveal(request: Request, picture: PictureKey) -> Response:
    """Show the file in the file manager; only for who sits at the machine that the server runs on."""
    state = state_of(request)
    if not state.is_local or not _is_local(request):
        raise HTTPException(403, "files are shown in the file manager only on the server's own machine")
    collection = state.desk.engine.collection
    opened = await state.decoding(lambda: open_original(collection, picture))
    opened.stream.close()
    if typer.launch(os.fsdecode(opened.path), locate=True):
        raise HTTPException(409, "no file manager opens here")
    return reply(Revealed(shown(opened.path)))


def _is_local(request: Request) -> bool:
    """Whether a request comes from this machine, and not through a proxy that says so."""
    forwarded = any(name in request.headers for name in ("forwarded", "x-forwarded-for", "x-real-ip", "via"))
    return request.client is not None and is_loopback(request.client.host) and not forwarded


@router.get(
    "/pictures/{picture}/{size}",
    responses=replies(PictureInfo, 404, 422) | {200: {"description": "A JPEG.", "content": {"image/jpeg": {}}}},
)
async def picture(request: Request, picture: PictureKey, size: Size) -> Response:
    """An indexed picture, shrunken: 400 pixels on the longer side for lists, 1,600 for a screen."""
    state = state_of(request)
    collection = state.desk.engine.collection
    picture_of(collection, picture)
    data = state.pictures.kept(picture, size)
    if data is None:
        data = await state.decoding(lambda: state.pictures.shrunken(collection, picture, size))
    return Response(data, media_type="image/jpeg", headers=FOR_EVER)


@router.post("/downloads", responses=replies(Download, 413, 415, 422), openapi_extra=json_body(Selection))
async def select(request: Request, sent: Annotated[Selection, Depends(body(Selection))]) -> Response:
    """Have originals packed into one ZIP file; the answer says where to fetch it."""
    return reply(Download(f"/api/downloads/{state_of(request).downloads.keep(sent.pictures)}"))


@router.get(
    "/downloads/{name}",
    responses=replies(PictureInfo, 404, 422, 429)
    | {200: {"description": "A ZIP file.", "content": {"application/zip": {}}}},
)
async def fetch(request: Request, name: Annotated[str, Path(pattern=r"^[\w-]{1,64}$")]) -> Response:
    """The ZIP file of a selection; it is made while it is sent."""
    state = state_of(request)
    keys = state.downloads.find(name)
    state.downloads.begin()
    parts = zipped(state.desk.engine.collection, keys)
    headers = {"Content-Disposition": _disposition(f"{len(keys)} pictures.zip", attached=True)}
    return _InParts(state, parts, state.downloads.end, media_type="application/zip", headers=headers)


class _InParts(StreamingResponse):
    """An answer that is read from the disk while it is sent; `done` is called at its end, however that comes."""

    def __init__(self, state: SearchState, parts: Iterator[bytes], done: Callable[[], None], **options: Any) -> None:
        async def read() -> AsyncIterator[bytes]:
            while (part := await state.decoding(lambda: next(parts, None))) is not None:
                yield part

        super().__init__(read(), **options)
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._done()


@router.get("/duplicates", responses=replies(Duplicates, 400, 422))
async def duplicates(request: Request, count: Count = 50, offset: Offset = 0) -> Response:
    """Groups of files that show the same picture, or nearly; the first time it takes seconds."""
    state = state_of(request)
    collection = state.desk.engine.collection
    groups = await state.drawing(lambda: state.duplicates.of(collection))
    part = groups[offset : offset + count]
    copies = [
        [Copy(key, shown(copy.path), *copy[2:]) for copy in group if (key := collection.key(copy.picture))]
        for group in part
    ]
    return reply(Duplicates(copies, len(groups)))
