"""What models trained on features share: a space of unit vectors for visual features and texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from deixis.model import ImageFeatures, Localized, Tokens, regions_of

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
