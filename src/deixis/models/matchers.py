"""Trained models as matchers (`deixis.matcher`): features and words in, embeddings and scores out, in NumPy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deixis.errors import DeixisError
from deixis.matcher import ImageFeatures, Localized, Tokens
from deixis.models.cca import NormalizedCCA, chosen_device
from deixis.models.region_phrase import combined_distances, region_phrase_distances, weighted_distances
from deixis.models.two_branch import SimilarityNetwork, TwoBranchEmbedding
from deixis.text.features import TextFeatures

Array = NDArray[Any]
#: Rows embedded at a time.
BLOCK = 8192
#: Texts whose embeddings are remembered: phrases come back picture after picture ("a man").
REMEMBERED = 200_000


class Transforms(Protocol):
    """What a matcher needs of `deixis.text.features.TextFeatures`."""

    def transform(self, texts: Sequence[Tokens]) -> Array:
        """One row, or one number, a text."""


class Embedding(ABC):
    """A space of unit vectors for visual features and texts; texts are remembered."""

    def __init__(self, text: Transforms, device: torch.device) -> None:
        self._text, self._device = text, device
        self._known: dict[tuple[str, ...], Array] = {}
        self._asked: tuple[Sequence[Tokens], Array] | None = None

    @abstractmethod
    def embed_visual(self, features: Array) -> Array:
        """Features of pictures or regions `(n, channels)` to unit rows."""

    @abstractmethod
    def _embed_text(self, features: Array) -> Array:
        """Text features to unit rows."""

    def encode_images(self, images: Sequence[ImageFeatures]) -> Array:
        return self.embed_visual(np.stack([image.image for image in images]))

    def encode_texts(self, texts: Sequence[Tokens]) -> Array:
        keys = [tuple(text) for text in texts]
        new = list(dict.fromkeys(key for key in keys if key not in self._known))
        if len(self._known) + len(new) > REMEMBERED:
            self._known = {}
            new = list(dict.fromkeys(keys))
        for start in range(0, len(new), BLOCK):
            part = new[start : start + BLOCK]
            self._known.update(zip(part, self._embed_text(self._text.transform(part)), strict=True))
        return np.stack([self._known[key] for key in keys])

    def remember(self, texts: Sequence[Tokens], rows: Array) -> None:
        """Take what these texts were encoded as before."""
        self._known.update(zip((tuple(text) for text in texts), rows, strict=True))

    def prepare_phrases(self, phrases: Sequence[Tokens]) -> None:
        """Encode at once what `localize` will be asked for: text features work out a word once a call."""
        self.encode_texts(phrases)

    def localize(self, image: ImageFeatures, phrases: Sequence[Tokens]) -> Localized:
        regions, boxes = regions_of(image)
        # Average precision asks for the same thousands of phrases at every picture.
        if self._asked is None or phrases is not self._asked[0]:
            self._asked = tuple(phrases), self.encode_texts(phrases)
        return Localized(boxes, self.compare(self._asked[1], self.embed_visual(regions)))

    def compare(self, texts: Array, visual: Array) -> Array:
        """Scores `(texts, visual)` of embedded rows, higher is better: their cosines."""
        rows, columns = (torch.from_numpy(side).to(self._device) for side in (texts, visual))
        return (rows @ columns.T).cpu().numpy()


class EmbeddingMatcher(Embedding):
    """Paper 1's embedding network: encodes, and localizes by the cosine of region and phrase."""

    def __init__(self, network: TwoBranchEmbedding, text: TextFeatures, device: torch.device) -> None:
        super().__init__(text, device)
        self.network, self.text = network.eval().to(device), text

    def embed_visual(self, features: Array) -> Array:
        return self._in_blocks(self.network.embed_images, features)

    def _embed_text(self, features: Array) -> Array:
        return self._in_blocks(self.network.embed_texts, features)

    @torch.no_grad()
    def _in_blocks(self, function: Callable[[Tensor], Tensor], rows: Array) -> Array:
        parts = []
        for start in range(0, len(rows), BLOCK):
            # A copy, since a view of a store's file cannot be written to.
            block = torch.from_numpy(np.array(rows[start : start + BLOCK])).to(self._device)
            parts.append(function(block.float() if block.is_floating_point() else block).cpu().numpy())
        return np.concatenate(parts)


class SimilarityMatcher(EmbeddingMatcher):
    """Paper 1's similarity network: scores pairs, which lie in no common space, and localizes by the same logit."""

    network: SimilarityNetwork

    def score(self, images: Sequence[ImageFeatures], texts: Sequence[Tokens]) -> Array:
        return self.compare(self.encode_texts(texts), self.encode_images(images)).T

    @torch.no_grad()
    def compare(self, texts: Array, visual: Array) -> Array:
        columns = torch.from_numpy(visual).to(self._device)
        rows = max(1, (1 << 24) // max(1, columns.numel()))
        parts = [
            self.network.compare(columns[None], torch.from_numpy(texts[start : start + rows]).to(self._device)[:, None])
            for start in range(0, len(texts), rows)
        ]
        return torch.cat(parts).cpu().numpy()


class JointMatcher(EmbeddingMatcher):
    """Two networks of the same layers: one encodes whole pictures and sentences, the other localizes phrases."""

    def __init__(self, network: TwoBranchEmbedding, phrases: EmbeddingMatcher, device: torch.device) -> None:
        super().__init__(network, phrases.text, device)
        self._phrases = phrases

    def prepare_phrases(self, phrases: Sequence[Tokens]) -> None:
        self._phrases.prepare_phrases(phrases)

    def localize(self, image: ImageFeatures, phrases: Sequence[Tokens]) -> Localized:
        return self._phrases.localize(image, phrases)


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


def regions_of(image: ImageFeatures) -> tuple[Array, Array]:
    """Regions and boxes of an image whose features have them."""
    if image.regions is None or image.boxes is None:
        raise DeixisError("localization needs features of regions; extract them with a recipe that has [regions]")
    return np.asarray(image.regions), np.asarray(image.boxes)
