"""What puts pictures and words into one space for search: one protocol, opened by name.

`deixis-base` is the bundle that comes with the package, `onnx:FOLDER` one that `deixis export` wrote (onnxruntime
alone), `run:FOLDER` a finished run of the kind `pictures` or `base` (PyTorch), `open_clip:MODEL` a CLIP for those who
can download weights. All forms of one run are one encoder to an index.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from deixis.adapters.bundles import (
    BACKGROUND,
    PICTURES,
    TEXTS,
    VOCABULARY,
    WEIGHTS,
    Bundle,
    Relevance,
    preprocessing,
)
from deixis.errors import DeixisError, InputError
from deixis.text.tokens import tokens_of
from deixis.text.vocabulary import PAD, Vocabulary
from deixis.vision.crops import BILINEAR, squash

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from PIL.Image import Image as Picture

Rows = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Cells = NDArray[np.int8]

RUN, CLIP = "run:", "open_clip:"
#: Texts encoded at a time.
BATCH = 256


class Identity(msgspec.Struct, frozen=True):
    """What an index is bound to: rows of equal identities compare."""

    name: str
    weights_sha256: str
    dim: int
    preprocessing: dict[str, Any]
    #: Cells of a picture, which words are compared with, and the numbers of each; none where an encoder has no cells.
    cells: int = 0
    cell_dim: int = 0

    def __str__(self) -> str:
        cells = f", {self.cells} cells of {self.cell_dim}" if self.cells else ""
        return f"{self.name} ({self.weights_sha256[:12]}, {self.dim} numbers{cells})"


class Pictures(NamedTuple):
    rows: Rows  # (pictures, dim) of unit length
    cells: Cells  # (pictures, cells, cell_dim), directions


class Texts(NamedTuple):
    rows: Rows  # (texts, dim) of unit length
    #: (texts, longest, cell_dim): unit vectors times weights that sum to 1 in every text; zero where a text has ended.
    words: Rows


class Encoder(Protocol):
    @property
    def identity(self) -> Identity: ...

    @property
    def relevance(self) -> Relevance: ...

    @property
    def background(self) -> Rows | None:
        """Unit rows of pictures that show nearly everything it was taught, where relevance counts on them."""

    def prepare(self, picture: Picture) -> Bytes:
        """The picture as the network sees it, `(3, side, side)`; may be called from many threads."""

    def encode_pictures(self, batch: Bytes) -> Pictures:
        """Prepared pictures `(n, 3, side, side)`, as they compare with texts and with each other."""

    def encode_texts(self, texts: Sequence[str]) -> Texts:
        """Texts, as they compare with pictures; one without words is a `DeixisError`."""

    def unknown_words(self, text: str) -> list[str]:
        """The words of a text that the encoder has never seen."""


def words_of(text: str) -> tuple[str, ...]:
    """The tokens of a text to be encoded; without any it is a `DeixisError`."""
    if not (tokens := tokens_of(text)):
        raise DeixisError(f"the text {text!r} has no words")
    return tokens


def squashed(picture: Picture, side: int) -> Bytes:
    """All of a picture as a square of bytes `(3, side, side)`, resampled as in training."""
    return np.ascontiguousarray(np.asarray(squash(picture, side, BILINEAR)).transpose(2, 0, 1))


def rounded(cells: Rows) -> Cells:
    """Cells `(…, cell_dim)` as directions of 8-bit integers, which tell all of a unit vector but a rounding."""
    largest = np.maximum(np.abs(cells).max(-1, keepdims=True, initial=0), 1e-12)
    directions: Cells = np.rint(cells * (127 / largest)).astype(np.int8)
    return directions


def whole_pictures(rows: Rows) -> Pictures:
    """Pictures of an encoder that has no cells."""
    return Pictures(rows, np.empty((len(rows), 0, 0), np.int8))


def whole_texts(rows: Rows) -> Texts:
    """Texts of an encoder that has no words, or pictures that are asked with as texts are."""
    return Texts(rows, np.empty((len(rows), 0, 0), np.float32))


def joined(parts: Sequence[Texts], identity: Identity) -> Texts:
    """Texts that were encoded in parts, whose longest may differ."""
    longest = max((part.words.shape[1] for part in parts), default=0)
    rows = np.concatenate([np.empty((0, identity.dim), np.float32), *(part.rows for part in parts)])
    words = np.zeros((len(rows), longest, identity.cell_dim), np.float32)
    start = 0
    for part in parts:
        words[start : (start := start + len(part.rows)), : part.words.shape[1]] = part.words
    return Texts(rows, words)


class OnnxEncoder:
    """A bundle; either graph is loaded when it is first needed."""

    def __init__(self, bundle: Bundle) -> None:
        if importlib.util.find_spec("onnxruntime") is None:
            raise DeixisError("searching needs onnxruntime; pip install onnxruntime")
        self.bundle, self._manifest = bundle, bundle.manifest
        manifest = self._manifest
        self.relevance = manifest.relevance
        self.identity = Identity(
            manifest.name,
            manifest.weights_sha256,
            manifest.dim,
            preprocessing(manifest.side),
            manifest.cells,
            manifest.cell_dim,
        )
        self.vocabulary = Vocabulary.load(bundle.file(VOCABULARY))

    def prepare(self, picture: Picture) -> Bytes:
        return squashed(picture, self._manifest.side)

    def encode_pictures(self, batch: Bytes) -> Pictures:
        if not self.identity.cells:
            return whole_pictures(self._pictures.run(["rows"], {"pictures": batch})[0])
        rows, cells = self._pictures.run(["rows", "cells"], {"pictures": batch})
        return Pictures(rows, rounded(cells))

    def encode_texts(self, texts: Sequence[str]) -> Texts:
        parts = [self._encode(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
        return joined(parts, self.identity)

    def _encode(self, texts: Sequence[str]) -> Texts:
        encoded = [self.vocabulary.encode(words_of(text)) for text in texts]
        lengths = np.array([len(ids) for ids in encoded], np.int64)
        ids = np.full((len(encoded), lengths.max()), PAD, np.int64)
        for row, own in zip(ids, encoded, strict=True):
            row[: len(own)] = own
        told = {"ids": ids, "lengths": lengths}
        if not self.identity.cells:
            return whole_texts(self._texts.run(["rows"], told)[0])
        return Texts(*self._texts.run(["rows", "words"], told))

    def unknown_words(self, text: str) -> list[str]:
        return [token for token in tokens_of(text) if token not in self.vocabulary]

    @cached_property
    def background(self) -> Rows | None:
        if BACKGROUND not in self._manifest.files:
            return None
        path = self.bundle.file(BACKGROUND)
        try:
            rows: Rows = np.load(path, allow_pickle=False).astype(np.float32)
        except (ValueError, OSError) as fault:
            raise InputError(path, f"is no array ({fault})") from None
        return rows

    @cached_property
    def _pictures(self) -> InferenceSession:
        return self._session(PICTURES, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0)

    @cached_property
    def _texts(self) -> InferenceSession:
        # A recurrence over a query's few words is slower on two threads than on one.
        return self._session(TEXTS, 1)

    def _session(self, name: str, threads: int) -> InferenceSession:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # Warnings and what is milder are no news to a person who searches.
        options.log_severity_level = 3
        path = self.bundle.file(name)
        self.bundle.file(WEIGHTS)
        try:
            return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as fault:  # The runtime raises classes of its own, without a common base.
            raise InputError(path, f"cannot be run by onnxruntime ({fault})") from None
