"""A finished run of the kind `pictures` or `base` as an encoder, with PyTorch and on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional as F

from deixis.adapters.bundles import preprocessing, usual_relevance
from deixis.adapters.encoders import (
    BATCH,
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
from deixis.base.pictures_task import PictureRecipe, load_text_tower
from deixis.errors import DeixisError
from deixis.text.features import TokenIds
from deixis.text.tokens import tokens_of
from deixis.training.run_models import read_recipe
from deixis.training.runs import read_model
from deixis.vision.backbones import tower_backbone
from deixis.vision.tower import CELLS, TOWER, load_tower

if TYPE_CHECKING:
    from PIL.Image import Image as Picture


class RunEncoder:
    background = None

    def __init__(self, folder: Path) -> None:
        model, recipe = read_model(folder), read_recipe(folder)
        if not isinstance(recipe, PictureRecipe):
            raise DeixisError(
                f"{folder}: runs of the kinds 'pictures' and 'base' encode for search, not {recipe.kind!r}"
            )
        device = "cuda" if torch.cuda.is_available() else "cpu"
        tower = load_tower(folder / (CELLS if recipe.model.fine else TOWER))
        self._tower, self._backbone = tower, tower_backbone(tower, device)
        self._texts, features = load_text_tower(folder, recipe)
        assert isinstance(features, TokenIds)
        self._features, self._device = features, torch.device(device)
        self._texts.to(self._device)
        how = preprocessing(tower.side)
        name, sha256 = recipe.name, model.weights_sha256
        self.identity = Identity(name, sha256, tower.dim, how, tower.cell_count, tower.fine)
        self.relevance = usual_relevance(tower.cell_count)

    def prepare(self, picture: Picture) -> Bytes:
        return squashed(picture, self._backbone.side)

    def encode_pictures(self, batch: Bytes) -> Pictures:
        identity = self.identity
        vectors = self._backbone.vectors(torch.from_numpy(batch)).float()
        rows = F.normalize(vectors[:, : identity.dim]).cpu().numpy()
        # Behind the picture's own numbers stand those of its cells, where the tower has any.
        cells = vectors[:, identity.dim :].reshape(len(vectors), -1, identity.cell_dim) if identity.cells else None
        few = np.empty((len(rows), 0, 0), np.float32) if cells is None else self._tower.few_cells(cells).cpu().numpy()
        return Pictures(rows, rounded(few))

    def encode_texts(self, texts: Sequence[str]) -> Texts:
        parts = [self._encode(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
        return joined(parts, self.identity)

    @torch.no_grad()
    def _encode(self, texts: Sequence[str]) -> Texts:
        ids = torch.from_numpy(self._features.transform([words_of(text) for text in texts])).to(self._device)
        if not self.identity.cells:
            return whole_texts(F.normalize(self._texts(ids)).cpu().numpy())
        embedded, words = self._texts.with_words(ids)
        weighted = torch.zeros(*ids.shape, self.identity.cell_dim, device=self._device)
        weighted[ids != 0] = words.vectors * words.weights[:, None]
        return Texts(F.normalize(embedded).cpu().numpy(), weighted.cpu().numpy())

    def unknown_words(self, text: str) -> list[str]:
        return [token for token in tokens_of(text) if token not in self._features.vocabulary]
