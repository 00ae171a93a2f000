"""The model of a picture tower and its text branch."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from deixis.text.features import TextFeatures
from deixis.training.feature_model import Array, Embedding


class TowerMatcher(Embedding):
    """A text branch beside a trained picture tower, whose embeddings are the pictures' vectors."""

    def __init__(self, texts: nn.Module, text: TextFeatures, device: torch.device) -> None:
        super().__init__(text, device)
        self._texts = texts.eval().to(device)

    def embed_visual(self, features: Array) -> Array:
        rows = np.asarray(features, np.float32)
        return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))

    @torch.no_grad()
    def _embed_text(self, features: Array) -> Array:
        return self.embed_visual(self._texts(torch.from_numpy(features).to(self._device)).cpu().numpy())
