"""Pictures and texts as rows of one space, for uses of one's own: clustering, a classifier, another index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from deixis.search.bundles import DEFAULT
from deixis.search.encoders import Encoder, Rows, load_encoder
from deixis.search.walking import as_picture

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

#: Pictures encoded at a time.
BATCH = 16


class Embedder:
    """`Embedder.open` opens an encoder by its name."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder

    @classmethod
    def open(cls, name: str = DEFAULT) -> Embedder:
        """`deixis-base`, `onnx:FOLDER`, `run:FOLDER` or `open_clip:MODEL`."""
        return cls(load_encoder(name))

    def encode_images(self, images: Sequence[str | Path | Picture]) -> Rows:
        """Picture files, or pictures in RGB, to rows of length 1, `(images, dim)`."""
        at_least = int(self.encoder.identity.preprocessing.get("at_least", 0))
        rows = [np.empty((0, self.encoder.identity.dim), np.float32)]
        for start in range(0, len(images), BATCH):
            read = [as_picture(image, at_least=at_least) for image in images[start : start + BATCH]]
            rows.append(self.encoder.encode_pictures(np.stack([self.encoder.prepare(each) for each in read])))
        return np.concatenate(rows)

    def encode_texts(self, texts: Sequence[str]) -> Rows:
        """Texts to rows of length 1, `(texts, dim)`."""
        return self.encoder.encode_texts(texts)

    @staticmethod
    def similarity(rows: Rows, others: Rows) -> Rows:
        """Cosines `(rows, others)`, from −1 to 1."""
        return rows @ others.T
