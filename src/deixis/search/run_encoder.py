"""A finished run of the kind `pictures` or `base` as an encoder, with PyTorch and on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from deixis.errors import DeixisError
from deixis.learning.end_to_end import TOWER, PictureRecipe, load_text_tower
from deixis.learning.judging import read_recipe
from deixis.learning.runs import read_model
from deixis.models.matchers import TowerMatcher
from deixis.search.bundles import Relevance, preprocessing
from deixis.search.encoders import Bytes, Identity, Rows, squashed, words_of
from deixis.text.features import TokenIds
from deixis.text.tokens import tokens_of
from deixis.vision.backbones import tower_backbone
from deixis.vision.tower import load_tower

if TYPE_CHECKING:
    from PIL.Image import Image as Picture


class RunEncoder:
    relevance = Relevance()
    background = None

    def __init__(self, folder: Path) -> None:
        model, recipe = read_model(folder), read_recipe(folder)
        if not isinstance(recipe, PictureRecipe):
            raise DeixisError(
                f"{folder}: runs of the kinds 'pictures' and 'base' encode for search, not {recipe.kind!r}"
            )
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._backbone = tower_backbone(load_tower(folder / TOWER), device)
        texts, features = load_text_tower(folder, recipe)
        assert isinstance(features, TokenIds)
        self._vocabulary = features.vocabulary
        self._matcher = TowerMatcher(texts, features, torch.device(device))
        side = self._backbone.side
        self.identity = Identity(recipe.name, model.weights_sha256, recipe.model.dim, preprocessing(side))

    def prepare(self, picture: Picture) -> Bytes:
        return squashed(picture, self._backbone.side)

    def encode_pictures(self, batch: Bytes) -> Rows:
        vectors = self._backbone.vectors(torch.from_numpy(batch)).float().cpu().numpy()
        # Behind the picture's own numbers stand those of its cells, where the tower has any.
        return self._matcher.embed_visual(vectors[:, : self.identity.dim])

    def encode_texts(self, texts: Sequence[str]) -> Rows:
        if not texts:
            return np.empty((0, self.identity.dim), np.float32)
        return self._matcher.encode_texts([words_of(text) for text in texts]).astype(np.float32)

    def unknown_words(self, text: str) -> list[str]:
        return [token for token in tokens_of(text) if token not in self._vocabulary]
