"""Pictures and texts as rows of one space, for uses of one's own: clustering, a classifier, another index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from deixis.adapters.bundles import (
    DEFAULT,
    ONNX,
    open_bundle,
)
from deixis.adapters.encoders import Encoder, Pictures, Rows
from deixis.adapters.scoring import scores
from deixis.errors import DeixisError
from deixis.vision.picture_files import as_picture

if TYPE_CHECKING:
    from PIL.Image import Image as Picture
from deixis.adapters.encoders import CLIP, RUN, OnnxEncoder

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
        rows = [np.empty((0, self.encoder.identity.dim), np.float32)]
        return np.concatenate([*rows, *(part.rows for part in self._encoded(images))])

    def encode_texts(self, texts: Sequence[str]) -> Rows:
        """Texts to rows of length 1, `(texts, dim)`."""
        return self.encoder.encode_texts(texts).rows

    @staticmethod
    def similarity(rows: Rows, others: Rows) -> Rows:
        """Cosines `(rows, others)`, from −1 to 1."""
        return rows @ others.T

    def scores(self, images: Sequence[str | Path | Picture], texts: Sequence[str]) -> Rows:
        """How well texts meet pictures `(images, texts)`, as search ranks them (`deixis.adapters.scoring`).

        That is the rows' cosine, and beside it, of an encoder that has them, the best cells of the texts' words.
        """
        encoded = self.encoder.encode_texts(texts)
        found = [np.empty((0, len(texts)), np.float32)]
        return np.concatenate([*found, *(scores(encoded, part).T for part in self._encoded(images))])

    def _encoded(self, images: Sequence[str | Path | Picture]) -> Iterator[Pictures]:
        at_least = int(self.encoder.identity.preprocessing.get("at_least", 0))
        for start in range(0, len(images), BATCH):
            read = [as_picture(image, at_least=at_least) for image in images[start : start + BATCH]]
            yield self.encoder.encode_pictures(np.stack([self.encoder.prepare(each) for each in read]))


def load_encoder(name: str) -> Encoder:
    """Open an encoder by name: `deixis-base`, `onnx:FOLDER`, `run:FOLDER` or `open_clip:MODEL`."""
    if name.startswith(RUN):
        from deixis.base.run_encoder import RunEncoder

        return RunEncoder(Path(name.removeprefix(RUN)))
    if name.startswith(CLIP):
        from deixis.adapters.open_clip import ClipEncoder

        return ClipEncoder(name.removeprefix(CLIP))
    if (bundle := open_bundle(name)) is not None:
        return OnnxEncoder(bundle)
    raise DeixisError(f"unknown encoder {name!r}; known: {DEFAULT}, {ONNX}FOLDER, {RUN}FOLDER, {CLIP}MODEL")


def absolute_name(name: str) -> str:
    """The name of an encoder that opens it from any folder."""
    for prefix in (RUN, ONNX):
        if name.startswith(prefix):
            return f"{prefix}{Path(name.removeprefix(prefix)).absolute()}"
    model, _, weights = name.partition("/")
    if name.startswith(CLIP) and Path(weights).is_file():
        return f"{model}/{Path(weights).absolute()}"
    return name
