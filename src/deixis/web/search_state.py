"""What the routes of the search pages share: the desk, the pictures, the models, and the threads that decode."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

from fastapi import HTTPException, Request
from PIL.Image import Image as Picture

from deixis.adapters.search_model import Floats
from deixis.errors import DeixisError
from deixis.search.collection import KEY_BYTES, Collection
from deixis.search.duplicates import Copy, find_duplicates
from deixis.search.engine import SearchEngine
from deixis.vision.reading import decode_picture
from deixis.web.collection_map import Mapper
from deixis.web.downloads import Downloads
from deixis.web.indexed_pictures import IndexedPictures
from deixis.web.search_desk import Desk
from deixis.web.shelf import Shelf
from deixis.web.sight import Sight

Answer = TypeVar("Answer")

#: Bytes and pixels of a picture that is sent to be looked at.
LARGEST_PICTURE, MOST_PIXELS = 32 << 20, 64_000_000
#: Bytes of pictures that are being received at once. A client that stops sending holds only what it has sent, and for
#: so many seconds; how long a whole picture may take, the guard says.
RECEIVED_BYTES, STALLED_SECONDS = 256 << 20, 10.0
#: Embeddings of pictures that were sent, which are kept.
EMBEDDED = 1000


class SearchState:
    """One served index.

    Args:
        is_local: whether only this machine reaches the server, so that it may show files in the file manager.
    """

    def __init__(self, desk: Desk, sight: Sight, *, is_local: bool = False) -> None:
        self.desk, self.sight, self.is_local = desk, sight, is_local
        self.pictures, self.mapper, self.downloads = IndexedPictures(), Mapper(), Downloads()
        self.duplicates = FoundDuplicates()
        self._embedded: Shelf[tuple[str, str], Floats] = Shelf(EMBEDDED)
        # Decoding lets other threads run; more threads than CPU cores would only take memory.
        self._decoding = ThreadPoolExecutor(os.cpu_count() or 1, "decoding")
        self._drawing = ThreadPoolExecutor(1, "map")
        self._received = 0

    async def decoding(self, work: Callable[[], Answer]) -> Answer:
        """Do what reads a picture in a thread meant for that."""
        return await answer_of(self._decoding.submit(work))

    async def drawing(self, work: Callable[[], Answer]) -> Answer:
        return await answer_of(self._drawing.submit(work))

    async def embedded(self, engine: SearchEngine, sent: SentPicture) -> Floats:
        """The embedding of a picture that was sent; further pages of an answer send it again."""
        key = engine.model.identity.weights_sha256, sent.key

        def embed() -> Floats:
            return self._embedded.get(key, lambda: engine.embed_bytes(sent.data, sent.name, MOST_PIXELS))

        return await self.decoding(embed)

    async def receive(self, request: Request) -> SentPicture:
        """The picture that a request sends, which goes to no disk."""
        data, stream = bytearray(), request.stream()
        try:
            while True:
                async with asyncio.timeout(STALLED_SECONDS):
                    part = await anext(stream, None)
                if part is None:
                    break
                self._received += len(part)
                data += part
                if self._received > RECEIVED_BYTES:
                    raise HTTPException(503, "too many pictures are being sent; try again", {"Retry-After": "5"})
        except TimeoutError:
            raise HTTPException(408, "the picture did not come in time") from None
        finally:
            self._received -= len(data)
        if not data:
            raise HTTPException(400, "send a picture")
        return SentPicture(bytes(data))

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


#: More pictures are not compared while somebody waits for a page.
MOST = 100_000


class FoundDuplicates:
    def __init__(self) -> None:
        self._found: tuple[Collection, list[list[Copy]]] | None = None
        self._lock = Lock()

    def of(self, collection: Collection) -> list[list[Copy]]:
        if len(collection) > MOST:
            raise DeixisError(f"more than {MOST:,} pictures are compared only by: deixis duplicates")
        with self._lock:
            if self._found is None or self._found[0] is not collection:
                self._found = collection, find_duplicates(collection)
            return self._found[1]
