"""The HTTP API of an index: search, likeness, grounding, description, the map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
import numpy as np
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from PIL.Image import Image as Picture

from deixis import __version__
from deixis.search.queries import Query as ParsedQuery
from deixis.search.queries import parse_query
from deixis.vision.picture_files import shown
from deixis.vision.reading import decode_picture, read_size
from deixis.web.collection_map import CollectionMap
from deixis.web.entrance import admitted
from deixis.web.indexed_pictures import Size, picture_file, picture_of, size_of
from deixis.web.search_desk import Answered
from deixis.web.search_records import (
    KEY,
    Answer,
    Caption,
    Described,
    Grounded,
    Grounding,
    Hit,
    PictureInfo,
    RegionPhrase,
    Status,
    picture_body,
    replies,
)
from deixis.web.search_state import MOST_PIXELS, SearchState, answer_of, state_of
from deixis.web.shell import reply

router = APIRouter(prefix="/api", dependencies=[Depends(admitted)], default_response_class=Response)

#: A key never means another picture.
FOR_EVER = {"Cache-Control": "private, max-age=31536000, immutable"}

Words = Annotated[str, Query(min_length=1, max_length=500, description="What to look for.")]
MoreWords = Annotated[str, Query(max_length=500, description="Words that it should show, too.")]
Count = Annotated[int, Query(ge=1, le=200, description="Pictures at most.")]
PictureKey = Annotated[str, Query(pattern=KEY, description="The key of an indexed picture.")]
Sentence = Annotated[str, Query(min_length=1, max_length=1000, description="A sentence about the picture.")]


@router.get("/search", responses=replies(Answer, 400, 422, 429))
async def search(request: Request, q: Words, count: Count = 24) -> Response:
    """Pictures by words. Quoted phrases must all be there; a minus, or "and not", says what must not."""
    query = parse_query(q)
    state = state_of(request)
    return reply(_answer(await answer_of(state.desk.ask(state.desk.engine, query, count)), query))


@router.get("/similar", responses=replies(Answer, 400, 404, 422, 429))
async def similar(request: Request, picture: PictureKey, q: MoreWords = "", count: Count = 24) -> Response:
    """Pictures that resemble an indexed one, and show the words; without that picture itself."""
    state, query = state_of(request), _more(q)
    engine = state.desk.engine
    (row,) = engine.collection.rows_of(np.array([picture_of(engine.collection, picture)], np.int64))
    answer = _answer(await answer_of(state.desk.ask(engine, query, count + 1, row)), query)
    others = [hit for hit in answer.hits if hit.picture != picture][:count]
    absent = not any(hit.relevant for hit in others)
    return reply(msgspec.structs.replace(answer, hits=others, absent=absent))


@router.post("/similar", responses=replies(Answer, 400, 408, 413, 415, 422, 429, 503), openapi_extra=picture_body())
async def similar_to_sent(request: Request, q: MoreWords = "", count: Count = 24) -> Response:
    """Pictures that resemble one that is sent, and show the words."""
    state, query = state_of(request), _more(q)
    sent = await state.receive(request)
    engine = state.desk.engine
    row = await state.decoding(lambda: engine.embed_bytes(sent.data, sent.name, MOST_PIXELS))
    return reply(_answer(await answer_of(state.desk.ask(engine, query, count, row)), query))


@router.get("/ground", responses=replies(Grounding, 400, 404, 409, 422, 429))
async def ground(request: Request, picture: PictureKey, text: Sentence) -> Response:
    """Where in an indexed picture the phrases of a sentence are."""
    state = state_of(request)
    (width, height), load = await _indexed(state, picture)
    return await _grounding(state, picture, load, text, width, height)


@router.post(
    "/ground", responses=replies(Grounding, 400, 408, 409, 413, 415, 422, 429, 503), openapi_extra=picture_body()
)
async def ground_in_sent(request: Request, text: Sentence) -> Response:
    """Where in a picture that is sent the phrases of a sentence are."""
    state = state_of(request)
    sent = await state.receive(request)
    return await _grounding(state, sent.key, sent.decoded, text, *read_size(sent.data, name=sent.name))


@router.get("/describe", responses=replies(Described, 400, 404, 409, 422, 429))
async def describe(request: Request, picture: PictureKey) -> Response:
    """Captions of an indexed picture, and phrases for its regions."""
    state = state_of(request)
    _, load = await _indexed(state, picture)
    return await _description(state, picture, load)


@router.post("/describe", responses=replies(Described, 400, 408, 409, 413, 415, 429, 503), openapi_extra=picture_body())
async def describe_sent(request: Request) -> Response:
    """Captions of a picture that is sent, and phrases for its regions."""
    state = state_of(request)
    sent = await state.receive(request)
    return await _description(state, sent.key, sent.decoded)


@router.get("/pictures/{picture}", responses=replies(PictureInfo, 404, 422))
async def picture_info(request: Request, picture: Annotated[str, Path(pattern=KEY)]) -> Response:
    """The files that hold an indexed picture, and its size."""
    state = state_of(request)
    collection = state.desk.engine.collection
    (width, height), _ = await _indexed(state, picture)
    paths = [shown(path) for path in collection.paths(picture_of(collection, picture))]
    return reply(PictureInfo(picture, paths, width, height))


@router.get(
    "/pictures/{picture}/{size}",
    responses=replies(PictureInfo, 404, 422) | {200: {"description": "A JPEG.", "content": {"image/jpeg": {}}}},
)
async def picture(request: Request, picture: Annotated[str, Path(pattern=KEY)], size: Size) -> Response:
    """An indexed picture, shrunken: 400 pixels on the longer side for lists, 1,600 for a screen."""
    state = state_of(request)
    collection = state.desk.engine.collection
    picture_of(collection, picture)
    data = state.pictures.kept(picture, size)
    if data is None:
        data = await state.decoding(lambda: state.pictures.shrunken(collection, picture, size))
    return Response(data, media_type="image/jpeg", headers=FOR_EVER)


@router.get("/map", responses=replies(CollectionMap, 400))
async def collection_map(request: Request) -> Response:
    """Where the pictures lie in the model's space, laid out in a plane; the first time it takes seconds."""
    state = state_of(request)
    collection = state.desk.engine.collection
    return reply(await state.drawing(lambda: state.mapper.map_of(collection)))


@router.get("/status", responses=replies(Status))
async def status(request: Request) -> Response:
    """What is served, and what the server can do."""
    return reply(status_of(state_of(request)))


def status_of(state: SearchState) -> Status:
    collection, sight = state.desk.engine.collection, state.sight
    return Status(
        version=__version__,
        pictures=len(collection),
        folders=[shown(root) for root in collection.roots],
        model=collection.identity.name,
        weights_sha256=collection.identity.weights_sha256,
        dim=collection.identity.dim,
        cells=collection.identity.cells,
        grounds=sight.can_ground,
        describes=sight.can_describe,
        problem=state.desk.problem,
    )


def _more(words: str) -> ParsedQuery | None:
    """The query beside an example; None without words."""
    return parse_query(words, needs_words=False) if words.strip() else None


def _answer(answered: Answered, query: ParsedQuery | None) -> Answer:
    collection = answered.engine.collection
    # What has gone from the index meanwhile is left out.
    hits = [
        Hit(key, shown(paths[0]), found.score, found.relevant)
        for found in answered.found
        if (key := collection.key(found.picture)) and (paths := collection.paths(found.picture))
    ]
    absent = not any(hit.relevant for hit in hits)
    if query is None:
        return Answer("", hits, absent, [], "")
    return Answer(query.text, hits, absent, *answered.engine.unknown(query))


async def _indexed(state: SearchState, key: str) -> tuple[tuple[int, int], Callable[[], Picture]]:
    """The size of an indexed picture, and what decodes it."""
    collection = state.desk.engine.collection
    file = await state.decoding(lambda: picture_file(collection, key))
    return size_of(file), lambda: decode_picture(file.data, name=file.path)


async def _grounding(
    state: SearchState, key: str, load: Callable[[], Picture], text: str, width: int, height: int
) -> Response:
    found = await answer_of(state.sight.ground(key, load, text))
    phrases = [Grounded(each.phrase, each.start, each.end, each.box, each.score, each.presence) for each in found]
    return reply(Grounding(text, width, height, phrases))


async def _description(state: SearchState, key: str, load: Callable[[], Picture]) -> Response:
    told = await answer_of(state.sight.describe(key, load))
    captions = [Caption(each.text, each.score) for each in told.captions]
    regions = [RegionPhrase(each.box, each.phrase, each.score) for each in told.phrases]
    return reply(Described(*told.size, captions, regions))
