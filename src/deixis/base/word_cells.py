"""Pictures and sentences compared as wholes, and by the best matches of their cells and words.

As in paper 4's alignment (S_kl = Σ_t max_i v_i·s_t), with unit vectors and a learned weight of every word, and beside
the cosine of picture and sentence. Beyond the papers; learned by `deixis.base.pictures_task`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deixis.base.tower_model import TowerMatcher
from deixis.model import ImageFeatures, Tokens
from deixis.papers.dvsa.network import pooled_products

#: Texts read at a time.
TEXTS = 1024


class Words(NamedTuple):
    """The words of `texts` texts, one after another."""

    vectors: Tensor  # (words, fine), unit length
    weights: Tensor  # (words,), of one sum in every text
    text: Tensor  # (words,), to which each belongs
    texts: int


def best_cells(cells: Tensor, words: Words) -> Tensor:
    """`(pictures, texts)`: the weighted mean over a text's words of the cosine of each with the picture's best cell.

    Args:
        cells: `(pictures, cells, fine)`, unit length.
    """
    pictures, count, fine = cells.shape
    products = (cells.reshape(pictures * count, fine) @ words.vectors.T).reshape(pictures, count, -1)
    best = products.amax(1) * words.weights
    return best.new_zeros(pictures, words.texts).index_add(1, words.text, best)


class FineTowerMatcher(TowerMatcher):
    """A text branch beside a tower whose rows hold the picture's embedding and those of its cells."""

    def embed_visual(self, features: NDArray[Any]) -> NDArray[Any]:
        """The pictures as wholes."""
        return super().embed_visual(features[:, : self._dim])

    @property
    def _dim(self) -> int:
        return int(self._texts.project.out_features)  # type: ignore[union-attr, arg-type]

    @torch.no_grad()
    def score(self, images: Sequence[ImageFeatures], texts: Sequence[Tokens]) -> NDArray[Any]:
        rows = torch.from_numpy(np.stack([image.image for image in images])).to(self._device).float()
        whole = torch.nn.functional.normalize(rows[:, : self._dim])
        cells = rows[:, self._dim :].reshape(len(rows), -1, self._texts.words.out_features)  # type: ignore[union-attr, arg-type]
        present = torch.ones(cells.shape[:2], dtype=torch.bool, device=cells.device)
        parts = []
        for start in range(0, len(texts), TEXTS):
            ids = torch.from_numpy(self._text.transform(texts[start : start + TEXTS])).to(self._device)
            embedded, words = self._texts.with_words(ids)  # type: ignore[operator]
            # A word's best product, weighted, is the best product of the weighted word.
            weighted = words.vectors * words.weights[:, None]
            fine = pooled_products(cells, present, weighted, words.text, words.texts)
            parts.append(whole @ torch.nn.functional.normalize(embedded).T + fine)
        return torch.cat(parts, 1).cpu().numpy()
