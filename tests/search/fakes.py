"""An model that knows colours, for tests in which the network does not matter, and folders of plain pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pillow

from deixis.adapters.bundles import Relevance, Threshold
from deixis.adapters.search_model import (
    Bytes,
    Floats,
    Identity,
    Pictures,
    PreparedModel,
    Texts,
    rounded,
    whole_pictures,
    whole_texts,
)
from deixis.model import Text, as_tokens
from deixis.text.vocabulary import Vocabulary

SIDE = 4
COLOURS = {
    "red": (255, 0, 0),
    "green": (0, 255, 0),
    "blue": (0, 0, 255),
    "white": (255, 255, 255),
    "black": (0, 0, 0),
}


class ColourModel(PreparedModel):
    """Pictures are embedded by their mean colour, words by the colours they name; embeddings have 4 numbers."""

    relevance = Relevance(Threshold(0.8), Threshold(0.8), slope=10.0, alike=0.9, without=0.0)
    known_words: Vocabulary | None = Vocabulary(dict.fromkeys(COLOURS, 30))

    def __init__(self, name: str = "colours") -> None:
        self.name = name
        self.identity = Identity(name, f"{len(name):064}", 4, {"side": SIDE})
        self.encoded = 0

    def prepare(self, picture: Pillow.Image) -> Bytes:
        return np.asarray(picture.resize((SIDE, SIDE))).transpose(2, 0, 1).copy()

    def embed_prepared(self, batch: Sequence[Bytes]) -> Pictures:
        self.encoded += len(batch)
        return whole_pictures(unit(np.stack(batch).reshape(len(batch), 3, -1).mean(2)))

    def embed_queries(self, texts: Sequence[str]) -> Texts:
        named = [[COLOURS[word] for word in text.split() if word in COLOURS] for text in texts]
        return whole_texts(unit(np.array([np.mean(colours or [(128, 128, 128)], 0) for colours in named])))

    def unknown_words(self, text: Text) -> list[str]:
        return [word for word in as_tokens(text) if word not in COLOURS]


class CellModel(ColourModel):
    """The same with cells: the mean colours of a picture's quarters; every colour that is named is a word."""

    relevance = Relevance(Threshold(1.6), Threshold(1.6), slope=10.0, alike=0.9, without=0.0)

    def __init__(self, name: str = "cells") -> None:
        super().__init__(name)
        self.identity = Identity(name, f"{len(name):064}", 4, {"side": SIDE}, 4, 4)

    def embed_prepared(self, batch: Sequence[Bytes]) -> Pictures:
        half = SIDE // 2
        quarters = np.stack(batch).reshape(len(batch), 3, 2, half, 2, half).mean((3, 5)).reshape(len(batch), 3, 4)
        cells = unit(quarters.transpose(0, 2, 1)).reshape(len(batch), 4, 4)
        return Pictures(super().embed_prepared(batch).embeddings, rounded(cells))

    def embed_queries(self, texts: Sequence[str]) -> Texts:
        words = np.zeros((len(texts), 3, 4), np.float32)
        for own, text in zip(words, texts, strict=True):
            named = [COLOURS[word] for word in text.split() if word in COLOURS]
            own[: len(named)] = unit(named) / max(1, len(named))
        return Texts(super().embed_queries(texts).embeddings, words)


def paint_quarters(path: Path, *colours: tuple[int, int, int]) -> Path:
    """A picture of four quarters, from the upper left one on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Pillow.new("RGB", (8, 8))
    for number, colour in enumerate(colours):
        x, y = 4 * (number % 2), 4 * (number // 2)
        picture.paste(colour, (x, y, x + 4, y + 4))
    picture.save(path, "PNG")
    return path


def unit(colours: Any) -> Floats:
    colours = np.asarray(colours, np.float32).reshape(-1, 3)
    rows = np.concatenate([colours - 127.5, np.full((len(colours), 1), 20.0)], 1)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def paint(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (6, 5)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Pillow.new("RGB", size, colour).save(path, "PNG")
    return path


def paint_many(folder: Path, count: int, seed: int = 0) -> list[Path]:
    """Pictures of random colours, no two alike."""
    random = np.random.default_rng(seed)
    colours = random.choice(256**3, count, replace=False)
    return [
        paint(folder / f"{number:04}.png", (int(colour) >> 16, int(colour) >> 8 & 255, int(colour) & 255))
        for number, colour in enumerate(colours)
    ]
