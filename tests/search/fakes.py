"""An encoder that knows colours, for tests in which the network does not matter, and folders of plain pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pillow

from deixis.search.bundles import Relevance
from deixis.search.encoders import Bytes, Identity, Rows

SIDE = 4
COLOURS = {
    "red": (255, 0, 0),
    "green": (0, 255, 0),
    "blue": (0, 0, 255),
    "white": (255, 255, 255),
    "black": (0, 0, 0),
}


class ColourEncoder:
    """Pictures are told by their mean colour, words by the colours they name; rows have 4 numbers."""

    relevance = Relevance(threshold=0.8, slope=10.0, alike=0.9)
    background = None

    def __init__(self, name: str = "colours") -> None:
        self.identity = Identity(name, f"{len(name):064}", 4, {"side": SIDE})
        self.encoded = 0

    def prepare(self, picture: Pillow.Image) -> Bytes:
        return np.asarray(picture.resize((SIDE, SIDE))).transpose(2, 0, 1).copy()

    def encode_pictures(self, batch: Bytes) -> Rows:
        self.encoded += len(batch)
        return unit(batch.reshape(len(batch), 3, -1).mean(2))

    def encode_texts(self, texts: Sequence[str]) -> Rows:
        named = [[COLOURS[word] for word in text.split() if word in COLOURS] for text in texts]
        return unit(np.array([np.mean(colours or [(128, 128, 128)], 0) for colours in named]))

    def unknown_words(self, text: str) -> list[str]:
        return [word for word in text.split() if word not in COLOURS]


def unit(colours: Any) -> Rows:
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
