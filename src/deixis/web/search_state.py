"""What the routes of the search pages share: the desk, the pictures, the models, and the threads that decode."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from fastapi import HTTPException, Request
from PIL.Image import Image as Picture

from deixis.search.collection import KEY_BYTES
from deixis.vision.reading import decode_picture
from deixis.web.collection_map import Mapper
from deixis.web.indexed_pictures import IndexedPictures
from deixis.web.search_desk import Desk
from deixis.web.sight import Sight

Answer = TypeVar("Answer")

#: Bytes and pixels of a picture that is sent to be looked at.
LARGEST_PICTURE, MOST_PIXELS = 32 << 20, 64_000_000
#: Pictures that are being received at once, and the seconds that one may take.
RECEIVING, PATIENCE = 4, 60.0


class SearchState:
    """One served index."""

    def __init__(self, desk: Desk, sight: Sight) -> None:
        self.desk, self.sight = desk, sight
        self.pictures, self.mapper = IndexedPictures(), Mapper()
        # Decoding lets other threads run; more at once than there are processors would only take memory.
        self._decoding = ThreadPoolExecutor(os.cpu_count() or 1, "decoding")
        self._drawing = ThreadPoolExecutor(1, "map")
        self._receiving = asyncio.Semaphore(RECEIVING)

    async def decoding(self, work: Callable[[], Answer]) -> Answer:
        """Do what reads a picture in a thread meant for that."""
        return await answer_of(self._decoding.submit(work))

    async def drawing(self, work: Callable[[], Answer]) -> Answer:
        return await answer_of(self._drawing.submit(work))

    async def receive(self, request: Request) -> SentPicture:
        """The picture that a request sends, which goes to no disk."""
        try:
            async with asyncio.timeout(PATIENCE), self._receiving:
                data = await request.body()
        except TimeoutError:
            raise HTTPException(408, "the picture did not come in time") from None
        if not data:
            raise HTTPException(400, "send a picture")
        return SentPicture(data)

    def close(self) -> None:
        for pool in (self._decoding, self._drawing):
            pool.shutdown(cancel_futures=True)
        self.sight.close()
        self.desk.close()


class SentPicture:
    """A picture as it was sent; whatever name it had, here it has none."""

    name = "the picture"

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.key = hashlib.sha256(data).digest()[:KEY_BYTES].hex()

    def decoded(self) -> Picture:
        return decode_picture(self.data, name=self.name, max_pixels=MOST_PIXELS)


async def answer_of(future: Future[Answer]) -> Answer:
    return await asyncio.wrap_future(future)


def state_of(request: Request) -> SearchState:
    state: SearchState = request.app.state.search
    return state
