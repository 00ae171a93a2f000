"""A bundle (`deixis.adapters.bundles`) as a model that embeds, with onnxruntime alone."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from deixis.adapters.bundles import (
    BACKGROUND,
    PICTURES,
    TEXTS,
    VOCABULARY,
    WEIGHTS,
    Bundle,
    preprocessing,
)
from deixis.adapters.search_model import (
    TEXT_BATCH,
    Bytes,
    Identity,
    Pictures,
    PreparedModel,
    Rows,
    Texts,
    joined,
    rounded,
    squashed,
    whole_pictures,
    whole_texts,
    words_of,
)
from deixis.errors import DeixisError, InputError
from deixis.model import Text, as_tokens
from deixis.text.vocabulary import PAD, Vocabulary

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from PIL.Image import Image as Picture


class OnnxModel(PreparedModel):
    """Either graph of the bundle is loaded when it is first needed."""

    def __init__(self, bundle: Bundle, name: str = "") -> None:
        if importlib.util.find_spec("onnxruntime") is None:
            raise DeixisError("searching needs onnxruntime; pip install onnxruntime")
        self.bundle, self._manifest = bundle, bundle.manifest
        self.name = name or bundle.manifest.name
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

    def embed_prepared(self, batch: Sequence[Bytes]) -> Pictures:
        if not self.identity.cells:
            return whole_pictures(self._pictures.run(["rows"], {"pictures": np.stack(batch)})[0])
        rows, cells = self._pictures.run(["rows", "cells"], {"pictures": np.stack(batch)})
        return Pictures(rows, rounded(cells))

    def embed_queries(self, texts: Sequence[Text]) -> Texts:
        parts = [self._read(texts[start : start + TEXT_BATCH]) for start in range(0, len(texts), TEXT_BATCH)]
        return joined(parts, self.identity)

    def _read(self, texts: Sequence[Text]) -> Texts:
        encoded = [self.vocabulary.encode(words_of(text)) for text in texts]
        lengths = np.array([len(ids) for ids in encoded], np.int64)
        ids = np.full((len(encoded), lengths.max()), PAD, np.int64)
        for row, own in zip(ids, encoded, strict=True):
            row[: len(own)] = own
        inputs = {"ids": ids, "lengths": lengths}
        if not self.identity.cells:
            return whole_texts(self._texts.run(["rows"], inputs)[0])
        return Texts(*self._texts.run(["rows", "words"], inputs))

    def unknown_words(self, text: Text) -> list[str]:
        return [token for token in as_tokens(text) if token not in self.vocabulary]

    @cached_property
    def background(self) -> Rows | None:  # type: ignore[override]
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
