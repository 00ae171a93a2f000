"""A trained HM-LSTM as a model, and the phrases of its training captions, by which it describes regions (Fig. 6)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from deixis.model import ImageInput, Localized, Tokens
from deixis.papers.hm_lstm.network import HMLSTM, TreeTexts
from deixis.text.trees import read_trees
from deixis.training.feature_model import BLOCK, Array, EmbeddingModel


class HMLSTMModel(EmbeddingModel):
    """Embeds pictures and texts, and localizes by the cosine of region and phrase.

    Args:
        phrases: a file of trees of the training captions' phrases; None: the run kept none.
        layer: the loss layers whose batch statistics are used: those of sentences and pictures (`localize` then asks
            `of_phrases`), or those of phrases and regions.
    """

    def __init__(
        self,
        network: HMLSTM,
        texts: TreeTexts,
        device: torch.device,
        phrases: Path | None = None,
        *,
        layer: Literal["roots", "phrases"] = "roots",
    ) -> None:
        super().__init__(texts, device)
        self.network, self.trees, self._phrases = network.eval().to(device), texts, phrases
        self._at_phrases = layer == "phrases"

    @cached_property
    def of_phrases(self) -> HMLSTMModel:
        """The same network, which takes pictures for regions and texts for phrases."""
        if self._at_phrases or self.network.recipe.statistics == "shared":
            return self
        model = HMLSTMModel(self.network, self.trees, self._device, self._phrases, layer="phrases")
        model.run = self.run
        return model

    def localize(self, image: ImageInput, phrases: Sequence[Tokens]) -> Localized:
        if self.of_phrases is not self:
            return self.of_phrases.localize(self.look(image), phrases)
        return super().localize(image, phrases)

    def prepare_texts(self, texts: Sequence[Tokens], *, keep: bool = False) -> None:
        """Embed texts at once, as phrases."""
        if self.of_phrases is not self:
            self.of_phrases.prepare_texts(texts, keep=keep)
        else:
            super().prepare_texts(texts, keep=keep)

    @property
    def dim(self) -> int:
        return self.network.recipe.dim

    def training_phrases(self) -> list[tuple[str, ...]]:
        if self._phrases is None or not self._phrases.exists():
            return super().training_phrases()
        phrases = read_trees(self._phrases)
        self.trees.bank.add(phrases)
        return [tokens for tokens, _ in phrases]

    @torch.no_grad()
    def embed_visual(self, features: Array) -> Array:
        parts = []
        # One block at least: a picture without regions has no rows.
        for start in range(0, max(1, len(features)), BLOCK):
            # A copy, since a view of a store's file cannot be written to.
            block = torch.from_numpy(np.array(features[start : start + BLOCK], np.float32)).to(self._device)
            parts.append(self.network.embed_visual(block, regions=self._at_phrases or None).cpu().numpy())
        return np.concatenate(parts)

    @torch.no_grad()
    def _embed_text(self, features: Array) -> Array:
        embedded = self.network.embed_trees(self.trees.forest, features, self._device, phrases=self._at_phrases)
        known = np.array([self.trees.known[tree] for tree in features.tolist()])
        return np.asarray(embedded.cpu().numpy() * known[:, None])
