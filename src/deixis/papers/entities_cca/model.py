"""Normalized CCA as a model, and distances of whole pictures and of regions combined (eq. 2; eq. 8 of two-branch
networks)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from deixis.model import ImageFeatures, Tokens, regions_of
from deixis.papers.entities_cca.cca import NormalizedCCA, chosen_device
from deixis.papers.entities_cca.region_phrase import combined_distances, region_phrase_distances, weighted_distances
from deixis.text.features import TextFeatures
from deixis.training.feature_model import Array, Embedding


class CorrelationMatcher(Embedding):
    """Normalized CCA (paper 0), with or without an auxiliary embedding stacked under it."""

    def __init__(self, cca: NormalizedCCA, text: TextFeatures) -> None:
        super().__init__(text, chosen_device(cca.device))
        self.cca = cca

    def embed_visual(self, features: Array) -> Array:
        return self.cca.encode_x(features)

    def _embed_text(self, features: Array) -> Array:
        return self.cca.encode_y(features)


class CombinedMatcher:
    """Image-sentence distance mixed with region-phrase distance: eq. 2 of paper 0, or eq. 8 of paper 1.

    Args:
        sentences: encodes whole images and sentences.
        phrases: encodes regions and phrases.
        find: the phrases of a sentence.
        region_weight: how much the region-phrase distance counts.
        gamma, squared: of the distances, as in `region_phrase_distances`; paper 0 has 1.5 and squares, paper 1 the
            plain mean of plain distances.
    """

    def __init__(
        self,
        sentences: Embedding,
        phrases: Embedding,
        find: Callable[[Sequence[Tokens]], list[list[Tokens]]],
        *,
        region_weight: float,
        gamma: float,
        squared: bool,
        device: torch.device | str = "cpu",
    ) -> None:
        self._sentences, self._phrases, self._find = sentences, phrases, find
        self.region_weight, self.gamma, self.squared = region_weight, gamma, squared
        self._device = device

    def score(self, images: Sequence[ImageFeatures], texts: Sequence[Tokens]) -> Array:
        cosines = self._sentences.encode_images(images) @ self._sentences.encode_texts(texts).T
        whole = np.maximum(2 - 2 * cosines, 0)
        found = self._find(texts)
        strings = {tuple(phrase): 0 for sentence in found for phrase in sentence}
        if not strings:
            return np.asarray(-whole)
        numbers = {string: number for number, string in enumerate(strings)}
        regions = [regions_of(image)[0] for image in images]
        parts = region_phrase_distances(
            np.concatenate([self._phrases.embed_visual(own) for own in regions]),
            np.cumsum([0, *map(len, regions)]),
            self._phrases.encode_texts(list(numbers)),
            [numbers[tuple(phrase)] for sentence in found for phrase in sentence],
            np.cumsum([0, *map(len, found)]),
            gamma=self.gamma,
            squared=self.squared,
            device=self._device,
        )
        if self.squared:
            return np.asarray(-weighted_distances(whole, parts, global_weight=1 - self.region_weight))
        return np.asarray(-combined_distances(np.sqrt(whole), parts, region_weight=self.region_weight))
