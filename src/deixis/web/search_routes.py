"""The HTTP API of an index: search, likeness, grounding, description, the map. `picture_routes` has the pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Depends, Query, Request, Response
from PIL.Image import Image as Picture

from deixis import __version__
from deixis.search.filters import DATE, Filter
from deixis.search.queries import Query as ParsedQuery
from deixis.search.queries import parse_query
from deixis.vision.picture_files import shown
from deixis.vision.reading import decode_picture, read_size
from deixis.web.collection_map import CollectionMap
from deixis.web.entrance import admitted
from deixis.web.indexed_pictures import listed_picture, picture_file, picture_of, size_of
from deixis.web.search_desk import DEEPEST, Answered, Part
from deixis.web.search_records import (
    KEY,
    Answer,
    Caption,
    Described,
    Grounded,
    Grounding,
    Hit,
    IgnoredExclusion,
    RegionPhrase,
    Status,
    picture_body,
    replies,
)
from deixis.web.search_state import SearchState, answer_of, state_of
from deixis.web.shell import reply

router = APIRouter(prefix="/api", dependencies=[Depends(admitted)], default_response_class=Response)

Words = Annotated[str, Query(min_length=1, max_length=500, description="What to look for.")]
MoreWords = Annotated[str, Query(max_length=500, description="Words that it should show, too.")]
Count = Annotated[int, Query(ge=1, le=200, description="Pictures at most.")]
Offset = Annotated[int, Query(ge=0, le=DEEPEST, description="Pictures to leave out: those of earlier pages.")]
Date = Annotated[
    str, Query(pattern=f"^({DATE[1:-1]})?$", description="A day, month or year: 2024-07-14, 2024-07, 2024.")
]
PictureKey = Annotated[str, Query(pattern=KEY, description="The key of an indexed picture.")]
Sentence = Annotated[str, Query(min_length=1, max_length=1000, description="A sentence about the picture.")]


def chosen(
    folder: Annotated[str, Query(max_length=1000, description="A part of the path of its folder.")] = "",
    name: Annotated[str, Query(max_length=200, description="A part of its file's name, or a pattern: IMG_*.jpg.")] = "",
    since: Date = "",
    until: Date = "",
) -> Filter:
    """A dependency: what pictures must be."""
    return Filter(folder, name, since, until)


Only = Annotated[Filter, Depends(chosen)]


@router.get("/search", responses=replies(Answer, 400, 422, 429))
async def search(request: Request, q: Words, only: Only, count: Count = 24, offset: Offset = 0) -> Response:
    """Pictures by words. Quoted phrases must all be there; a minus, "without" or "no" says what must not."""
    query = parse_query(q)
    desk = state_of(request).desk
    return reply(_answer(await answer_of(desk.ask(desk.engine, query, Part(count, offset, only))), query, only))


@router.get("/similar", responses=replies(Answer, 400, 404, 422, 429))
async def similar(
    request: Request, picture: PictureKey, only: Only, q: MoreWords = "", count: Count = 24, offset: Offset = 0
) -> Response:
    """Pictures that resemble an indexed one, and show the words; without that picture itself."""
    desk, query = state_of(request).desk, _more(q)
    engine = desk.engine
    example = picture_of(engine.collection, picture)
    (row,) = engine.collection.embeddings_of(np.array([example], np.int64))
    part = Part(count, offset, only, example)
    return reply(_answer(await answer_of(desk.ask(engine, query, part, row)), query, only))


@router.post("/similar", responses=replies(Answer, 400, 408, 413, 415, 422, 429, 503), openapi_extra=picture_body())
async def similar_to_sent(
    request: Request, only: Only, q: MoreWords = "", count: Count = 24, offset: Offset = 0
) -> Response:
    """Pictures that resemble one that is sent, and show the words."""
    state, query = state_of(request), _more(q)
    sent = await state.receive(request)
    engine = state.desk.engine
    row = await state.embedded(engine, sent)
    return reply(_answer(await answer_of(state.desk.ask(engine, query, Part(count, offset, only), row)), query, only))


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


@router.get("/map", responses=replies(CollectionMap, 400))
async def collection_map(request: Request) -> Response:
    """The pictures in the model's space, laid out in a plane; the first time takes seconds."""
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
        reveals=state.is_local,
        problem=state.desk.problem,
    )


def _more(words: str) -> ParsedQuery | None:
    """The query beside an example; None without words."""
    return parse_query(words, needs_words=False) if words.strip() else None


def _answer(answered: Answered, query: ParsedQuery | None, only: Filter) -> Answer:
    collection = answered.engine.collection
    # Pictures that left the index meanwhile are left out.
    hits = [
        Hit(*listed, hit.score, hit.relevant)
        for hit in answered.found
        if (listed := listed_picture(collection, hit.picture, only)) is not None
    ]
    unknown = ([], "", []) if query is None else answered.engine.unknown(query)
    text = "" if query is None else query.text
    ignored = [IgnoredExclusion(*exclusion) for exclusion in answered.ignored_exclusions]
    return Answer(text, hits, not answered.matches, answered.matches, answered.more, *unknown, ignored)


async def _indexed(state: SearchState, key: str) -> tuple[tuple[int, int], Callable[[], Picture]]:
    """The size of an indexed picture, and what decodes it."""
    collection = state.desk.engine.collection
    file = await state.decoding(lambda: picture_file(collection, key))
    return size_of(file), lambda: decode_picture(file.data, name=file.path)


async def _grounding(
    state: SearchState, key: str, load: Callable[[], Picture], text: str, width: int, height: int
) -> Response:
    grounded = await answer_of(state.sight.ground(key, load, text))
    phrases = [
        Grounded(
            grounding.phrase,
            grounding.start,
            grounding.end,
            grounding.box,
            list(grounding.boxes),
            grounding.score,
            grounding.presence,
        )
        for grounding in grounded.phrases
    ]
    return reply(Grounding(text, width, height, phrases, list(grounded.fits_better)))


async def _description(state: SearchState, key: str, load: Callable[[], Picture]) -> Response:
    described = await answer_of(state.sight.describe(key, load))
    captions = [Caption(caption.sentence, caption.score) for caption in described.captions]
    regions = [RegionPhrase(phrase.box, phrase.phrase, phrase.score) for phrase in described.phrases]
    return reply(Described(*described.size, captions, regions))
