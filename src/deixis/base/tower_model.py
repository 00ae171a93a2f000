"""The model of a picture tower and its text branch: runs of the kinds `pictures` and `base`.

It takes the stored vectors of its tower, or pictures, which it puts through the tower. It searches as the bundle that
is exported from the run does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from deixis.adapters.bundles import default_relevance, preprocessing
from deixis.adapters.search_model import (
    TEXT_BATCH,
    Bytes,
    Identity,
    Pictures,
    Texts,
    joined,
    rounded,
    squashed,
    whole_texts,
    words_of,
)
from deixis.base.text_tower import TextTower
from deixis.model import ImageFeatures, ImageInput, Text, as_tokens
from deixis.papers.dvsa.fast.products import pooled_products
from deixis.text.featurizers import TextFeatures, TokenIds
from deixis.text.vocabulary import Vocabulary
from deixis.training.feature_model import Array, EmbeddingModel, PictureFeatures
from deixis.vision.backbones import tower_backbone
from deixis.vision.picture_files import as_picture
from deixis.vision.tower import load_tower

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

#: Texts scored at a time.
TEXTS = 1024


class TowerPictures(PictureFeatures):
    """A run's own tower: pictures to the vectors that a store of its features holds, in float32."""

    def __init__(self, file: Path, device: torch.device) -> None:
        self.tower = load_tower(file)
        self._backbone = tower_backbone(self.tower, device.type)

    @property
    def at_least(self) -> int:
        return 2 * self.tower.side

    def prepare(self, image: str | Path | Picture) -> Bytes:  # type: ignore[override]
        return squashed(as_picture(image, at_least=self.at_least), self.tower.side)

    def vectors(self, prepared: Sequence[Bytes]) -> Tensor:
        """`(pictures, dim)`, and after the embedding those of the cells, where the tower has any."""
        return self._backbone.vectors(torch.from_numpy(np.stack(prepared)))

    def __call__(self, prepared: Sequence[Bytes]) -> list[ImageFeatures]:  # type: ignore[override]
        # Pictures are squashed to squares, and the model has no use for their size.
        size = (self.tower.side, self.tower.side)
        return [ImageFeatures(row, None, None, size) for row in self.vectors(prepared).cpu().numpy()]


class TowerModel(EmbeddingModel):
    """A text branch beside a trained picture tower, whose embeddings are the pictures' vectors.

    Args:
        tower: the file of the picture tower; None: it takes stored features alone.
    """

    lacks = frozenset({"localize", "ground"})
    needs_regions = frozenset()

    def __init__(self, texts: TextTower, text: TextFeatures, device: torch.device, tower: Path | None = None) -> None:
        super().__init__(text, device)
        self._texts = texts.eval().to(device)
        self._tower_file = tower

    def embed_visual(self, features: Array) -> Array:
        rows = np.asarray(features, np.float32)
        return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))

    @torch.no_grad()
    def _embed_text(self, features: Array) -> Array:
        embedded = self._texts(torch.from_numpy(features).to(self._device)).cpu().numpy()
        return np.asarray(embedded / np.maximum(np.linalg.norm(embedded, axis=1, keepdims=True), 1e-12))

    @cached_property
    def pictures(self) -> PictureFeatures:
        return super().pictures if self._tower_file is None else TowerPictures(self._tower_file, self._device)

    @cached_property
    def identity(self) -> Identity:  # type: ignore[override]
        assert self.run is not None
        tower = cast(TowerPictures, self.pictures).tower
        how = preprocessing(tower.side)
        return Identity(self.run.recipe, self.run.weights_sha256, tower.dim, how, tower.cell_count, tower.fine)

    @property
    def known_words(self) -> Vocabulary:  # type: ignore[override]
        return cast(TokenIds, self._text).vocabulary

    @cached_property
    def relevance(self) -> Any:  # type: ignore[override]
        return default_relevance(self.identity.cells)

    def embed_prepared(self, batch: Sequence[Any]) -> Pictures:
        pictures, identity = cast(TowerPictures, self.pictures), self.identity
        vectors = pictures.vectors(batch).float()
        rows = F.normalize(vectors[:, : identity.dim]).cpu().numpy()
        if not identity.cells:
            return Pictures(rows, np.empty((len(rows), 0, 0), np.int8))
        cells = vectors[:, identity.dim :].reshape(len(vectors), -1, identity.cell_dim)
        return Pictures(rows, rounded(pictures.tower.few_cells(cells).cpu().numpy()))

    def embed_queries(self, texts: Sequence[Text]) -> Texts:
        parts = [self._read(texts[start : start + TEXT_BATCH]) for start in range(0, len(texts), TEXT_BATCH)]
        return joined(parts, self.identity)

    @torch.no_grad()
    def _read(self, texts: Sequence[Text]) -> Texts:
        ids = torch.from_numpy(self._text.transform([words_of(text) for text in texts])).to(self._device)
        rows, *words = (part.cpu().numpy() for part in self._texts.query(ids))
        return Texts(rows, words[0]) if self.identity.cells else whole_texts(rows)


class FineTowerModel(TowerModel):
    """A text branch beside a tower whose rows hold the picture's embedding and those of its cells."""

    def embed_visual(self, features: Array) -> Array:
        """The pictures as wholes."""
        return super().embed_visual(features[:, : self._dim])

    @property
    def _dim(self) -> int:
        return int(self._texts.project.out_features)

    @torch.no_grad()
    def score(self, images: Sequence[ImageInput], texts: Sequence[Text]) -> Array:
        """The cosine of picture and text, and the best cells of the text's words (`deixis.base.word_cells`)."""
        assert self._texts.words is not None
        features = self.features_of(images)
        rows = torch.from_numpy(np.stack([image.image for image in features])).to(self._device).float()
        whole = F.normalize(rows[:, : self._dim])
        cells = rows[:, self._dim :].reshape(len(rows), -1, self._texts.words.out_features)
        present = torch.ones(cells.shape[:2], dtype=torch.bool, device=cells.device)
        tokens = [as_tokens(text) for text in texts]
        parts = []
        for start in range(0, len(texts), TEXTS):
            ids = torch.from_numpy(self._text.transform(tokens[start : start + TEXTS])).to(self._device)
            embedded, words = self._texts.with_words(ids)
            # A word's best product, weighted, is the best product of the weighted word.
            weighted = words.vectors * words.weights[:, None]
            fine = pooled_products(cells, present, weighted, words.text, words.texts)
            parts.append(whole @ F.normalize(embedded).T + fine)
        return torch.cat(parts, 1).cpu().numpy()
