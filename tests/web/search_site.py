"""An index of plain pictures, served for real in a thread, with models that see colours."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI
from PIL import Image as Pillow

from deixis.model import Description, Grounding, Model
from deixis.search.collection import KEY_BYTES
from deixis.search.indexing import index_folders
from deixis.web.search_app import search_app
from deixis.web.search_desk import Desk
from deixis.web.sight import Sight
from tests.search.fakes import COLOURS, ColourModel, paint
from tests.web.site import serving

PAINTED = {
    **{name: COLOURS[name] for name in ("red", "green", "blue", "white")},
    "purple": (255, 0, 250),
    "yellow": (255, 255, 0),
    "orange": (255, 120, 0),
    "teal": (0, 200, 180),
}
SIZE = (120, 80)


class Eye(Model):
    """Grounds every colour that a sentence names: the first word in the left half, the second in the right half.

    Nothing is black, and every bus is yellow.
    """

    def __init__(self) -> None:
        self.looks = 0

    def look(self, picture: Pillow.Image) -> tuple[int, int]:
        self.looks += 1
        return picture.size

    def ground(self, picture: Any, sentence: Any) -> list[Grounding]:
        width, height = picture
        found, place = [], 0
        for word in sentence.split():
            start = sentence.index(word, place)
            place = start + len(word)
            if word in COLOURS:
                left = len(found) % 2 * width / 2
                box = (left, 0.0, left + width / 2, float(height))
                found.append(Grounding(word, start, place, box, 0.9, 0.04 if word == "black" else 0.93))
        return found

    def score(self, images: Any, texts: Any) -> Any:
        return np.array([[float("yellow" in text and "bus" in text) for text in texts] for _ in images])

    def describe(self, picture: Pillow.Image, count: int = 3) -> list[Description]:
        texts = (("red and blue <b>", -0.7), ("white , red", -0.9))
        return [Description(text, score, "generation") for text, score in texts[:count]]


class SearchSite:
    """A folder of pictures, its index, and the server over it."""

    def __init__(self, folder: Path) -> None:
        self.pictures, self.index = folder / "pictures", folder / "index"
        self.model, self.eye = ColourModel(), Eye()
        for name, colour in PAINTED.items():
            paint(self.pictures / f"{name}.png", colour, SIZE)
        self.update()

    def update(self, model: ColourModel | None = None) -> None:
        """Index what is in the folder."""
        index_folders(self.index, [self.pictures], model or self.model, "colours")

    @contextmanager
    def serve(self, *, models: bool = True, proxies: Sequence[str] = (), **options: Any) -> Iterator[SearchSite]:
        sight = Sight(self.eye) if models else Sight()
        self.desk = Desk(self.index, self.model)
        self.app: FastAPI = search_app(self.desk, sight, **options)
        try:
            with serving(self.app, proxies) as self.address, self._client() as self.client:
                yield self
        finally:
            self.app.state.search.close()

    def _client(self) -> httpx.Client:
        return httpx.Client(base_url=self.address, trust_env=False, timeout=60.0)

    def get(self, path: str, headers: dict[str, str] | None = None, **parameters: Any) -> httpx.Response:
        return self.client.get(path, params=parameters, headers=headers)

    def post(self, path: str, data: bytes, kind: str = "image/png", **parameters: Any) -> httpx.Response:
        return self.client.post(path, params=parameters, content=data, headers={"Content-Type": kind})

    def names(self, query: str, **parameters: Any) -> list[str]:
        """The names of the pictures that are found, best first."""
        hits = self.get("/api/search", q=query, **parameters).json()["hits"]
        return [Path(hit["path"]).stem for hit in hits]

    def key(self, name: str) -> str:
        """The key of a picture by its file's name."""
        return hashlib.sha256((self.pictures / f"{name}.png").read_bytes()).hexdigest()[: 2 * KEY_BYTES]
