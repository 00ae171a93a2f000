"""A bundle (`deixis.adapters.bundles`) as a model that embeds, with onnxruntime alone."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from deixis.adapters.bundles import (
    PICTURES,
    TEXTS,
    VOCABULARY,
    WEIGHTS,
    Bundle,
    preprocessing,
    usual_relevance,
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


REMEDY = "export the bundle again"


class OnnxModel(PreparedModel):
    """Either graph of the bundle is loaded when it is first needed."""

    def __init__(self, bundle: Bundle, name: str = "") -> None:
        if importlib.util.find_spec("onnxruntime") is None:
            raise DeixisError("searching needs onnxruntime; pip install onnxruntime")
        self.bundle, self._manifest = bundle, bundle.manifest
        self.name = name or bundle.manifest.name
        manifest = self._manifest
        self.relevance = manifest.thresholds or usual_relevance(manifest.cells)
        self.identity = Identity(
            manifest.name,
            manifest.weights_sha256,
            manifest.dim,
            preprocessing(manifest.side),
            manifest.cells,
            manifest.cell_dim,
        )
        self.vocabulary = Vocabulary.load(bundle.file(VOCABULARY))
        self.known_words = self.vocabulary

    def prepare(self, picture: Picture) -> Bytes:
        return squashed(picture, self._manifest.side)

    def embed_prepared(self, batch: Sequence[Bytes]) -> Pictures:
        identity, inputs = self.identity, {"pictures": np.stack(batch)}
        shapes = {"rows": (len(batch), identity.dim), "cells": (len(batch), identity.cells, identity.cell_dim)}
        if not identity.cells:
            return whole_pictures(*self._run(self._pictures, PICTURES, inputs, {"rows": shapes["rows"]}))
        rows, cells = self._run(self._pictures, PICTURES, inputs, shapes)
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
        identity, inputs = self.identity, {"ids": ids, "lengths": lengths}
        shapes = {"rows": (len(ids), identity.dim), "words": (*ids.shape, identity.cell_dim)}
        if not identity.cells:
            return whole_texts(*self._run(self._texts, TEXTS, inputs, {"rows": shapes["rows"]}))
        return Texts(*self._run(self._texts, TEXTS, inputs, shapes))

    def _run(
        self, session: InferenceSession, name: str, inputs: dict[str, Any], shapes: dict[str, tuple[int, ...]]
    ) -> list[Rows]:
        """The outputs of a graph, whose shapes must be those that the manifest tells of."""
        try:
            outputs: list[Rows] = session.run(list(shapes), inputs)
        except Exception as fault:  # The runtime raises classes of its own, without a common base.
            raise InputError(self.bundle.folder / name, f"cannot be run ({_brief(fault)}); {REMEDY}") from None
        for output, (own, shape) in zip(outputs, shapes.items(), strict=True):
            if output.shape != shape:
                problem = f"gives {own!r} of the shape {output.shape}, and the manifest says {shape}"
                raise InputError(self.bundle.folder / name, f"{problem}; {REMEDY}")
            if not np.isfinite(output).all():
                raise InputError(self.bundle.folder / name, f"gives values in {own!r} that are no numbers; {REMEDY}")
        return outputs

    def unknown_words(self, text: Text) -> list[str]:
        return [token for token in as_tokens(text) if token not in self.vocabulary]

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
            raise InputError(path, f"cannot be run by onnxruntime ({_brief(fault)}); {REMEDY}") from None


def _brief(fault: Exception) -> str:
    """What the runtime says, in one line of bearable length."""
    return " ".join(str(fault).split())[:200]
