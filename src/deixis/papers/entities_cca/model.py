"""Normalized CCA as a model."""

from __future__ import annotations

from deixis.papers.entities_cca.cca import NormalizedCCA, chosen_device
from deixis.text.featurizers import TextFeatures
from deixis.training.feature_model import Array, EmbeddingModel


class CCAModel(EmbeddingModel):
    """Normalized CCA, with or without a stacked auxiliary embedding."""

    def __init__(self, cca: NormalizedCCA, text: TextFeatures) -> None:
        super().__init__(text, chosen_device(cca.device))
        self.cca = cca

    def embed_visual(self, features: Array) -> Array:
        return self.cca.encode_x(features)

    def _embed_text(self, features: Array) -> Array:
        return self.cca.encode_y(features)
