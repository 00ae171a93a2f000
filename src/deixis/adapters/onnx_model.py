"""A bundle (`deixis.adapters.bundles`) as a model that embeds pictures and texts, on onnxruntime."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from deixis.adapters.bundles import (
    BACKBONE,
    PICTURES,
    TEXTS,
    VOCABULARY,
    WEIGHTS,
    Bundle,
    default_relevance,
    preprocessing,
)
from deixis.adapters.graph_runner import ANY, Array, GraphRunner
from deixis.adapters.search_model import (
    TEXT_BATCH,
    Bytes,
    Identity,
    Pictures,
    PreparedModel,
    Texts,
    joined,
    rounded,
    squashed,
    whole_pictures,
    whole_texts,
    words_of,
)
from deixis.errors import DeixisError
from deixis.model import Text, as_tokens
from deixis.text.vocabulary import PAD, Vocabulary

if TYPE_CHECKING:
    from PIL.Image import Image as Picture


class OnnxModel(PreparedModel):
    """A graph of the bundle is opened when it is first needed."""

    def __init__(self, bundle: Bundle, name: str = "") -> None:
        if importlib.util.find_spec("onnxruntime") is None:
            raise DeixisError("searching needs onnxruntime; pip install onnxruntime")
        self.bundle, self._manifest, self._run = bundle, bundle.manifest, GraphRunner(bundle)
        self.name = name or bundle.manifest.name
        manifest = self._manifest
        self.relevance = manifest.thresholds or default_relevance(manifest.cells)
        self.identity = Identity(
            manifest.name,
            manifest.weights_sha256,
            manifest.dim,
            preprocessing(manifest.side, manifest.jpeg),
            manifest.cells,
            manifest.cell_dim,
        )
        self.vocabulary = Vocabulary.load(bundle.file(VOCABULARY))
        self.known_words = self.vocabulary

    @property
    def hashes(self) -> dict[str, str]:
        """Bundles with the same networks for search may have another captioner or grounding: see `bundle_sha256`."""
        return {**super().hashes, "bundle_sha256": self._manifest.files[WEIGHTS].sha256}

    def prepare(self, picture: Picture) -> Bytes:
        return squashed(picture, self._manifest.side, self._manifest.jpeg)

    def embed_prepared(self, batch: Sequence[Bytes]) -> Pictures:
        return self._embed_maps(self._maps(np.stack(batch), self._manifest.side))

    def _maps(self, pictures: Bytes, side: int) -> Array:
        """The backbone's maps of prepared pictures `(pictures, 3, side, side)`."""
        any_map = {"map": (len(pictures), ANY, ANY, ANY)}
        (maps,) = self._run(BACKBONE, {"pictures": pictures}, any_map, side=side)
        return maps

    def _embed_maps(self, maps: Array) -> Pictures:
        """The embeddings of pictures of the bundle's side, given as maps."""
        identity, count = self.identity, len(maps)
        shapes = {"rows": (count, identity.dim), "cells": (count, identity.cells, identity.cell_dim)}
        if not identity.cells:
            return whole_pictures(*self._run(PICTURES, {"map": maps}, {"rows": shapes["rows"]}))
        rows, cells = self._run(PICTURES, {"map": maps}, shapes)
        return Pictures(rows, rounded(cells))

    def embed_queries(self, texts: Sequence[Text]) -> Texts:
        parts = [self._read(texts[start : start + TEXT_BATCH]) for start in range(0, len(texts), TEXT_BATCH)]
        return joined(parts, self.identity)

    def _read(self, texts: Sequence[Text]) -> Texts:
        encoded = [self.vocabulary.encode(words_of(text)) for text in texts]
        ids = np.full((len(encoded), max(map(len, encoded))), PAD, np.int64)
        for row, tokens in zip(ids, encoded, strict=True):
            row[: len(tokens)] = tokens
        identity = self.identity
        shapes = {"rows": (len(ids), identity.dim), "words": (*ids.shape, identity.cell_dim)}
        if not identity.cells:
            return whole_texts(*self._run(TEXTS, {"ids": ids}, {"rows": shapes["rows"]}))
        return Texts(*self._run(TEXTS, {"ids": ids}, shapes))

    def unknown_words(self, text: Text) -> list[str]:
        return [token for token in as_tokens(text) if token not in self.vocabulary]
