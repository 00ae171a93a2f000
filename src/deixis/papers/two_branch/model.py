"""Trained two-branch networks as models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from deixis.model import ImageInput, Localized, Text, Tokens
from deixis.papers.two_branch.network import SimilarityNetwork, TwoBranchEmbedding
from deixis.text.featurizers import TextFeatures
from deixis.training.feature_model import BLOCK, Array, EmbeddingModel


class TwoBranchModel(EmbeddingModel):
    """The embedding network. Phrases are localized by the cosine of region and phrase."""

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
            # A copy: PyTorch refuses read-only memory-maps.
            block = torch.from_numpy(np.array(rows[start : start + BLOCK])).to(self._device)
            parts.append(function(block.float() if block.is_floating_point() else block).cpu().numpy())
        return np.concatenate(parts)


class SimilarityModel(TwoBranchModel):
    """The similarity network. It scores pairs; its branches do not share a space, so it does not embed."""

    network: SimilarityNetwork
    lacks = frozenset({"embed_images", "embed_texts"})

    def embed_images(self, images: Sequence[ImageInput]) -> Array:
        raise self.cannot("embed_images")

    def embed_texts(self, texts: Sequence[Text]) -> Array:
        raise self.cannot("embed_texts")

    def score(self, images: Sequence[ImageInput], texts: Sequence[Text]) -> Array:
        return self.compare(self._text_branch(texts), self._image_branch(images)).T

    @torch.no_grad()
    def compare(self, texts: Array, visual: Array) -> Array:
        columns = torch.from_numpy(visual).to(self._device)
        rows = max(1, (1 << 24) // max(1, columns.numel()))
        parts = [
            self.network.compare(columns[None], torch.from_numpy(texts[start : start + rows]).to(self._device)[:, None])
            for start in range(0, len(texts), rows)
        ]
        return torch.cat(parts).cpu().numpy()


class JointModel(TwoBranchModel):
    """Two networks that share their layers: one embeds pictures and sentences, the other localizes phrases."""

    def __init__(self, network: TwoBranchEmbedding, phrases: TwoBranchModel, device: torch.device) -> None:
        super().__init__(network, phrases.text, device)
        self._phrases = phrases

    def prepare_texts(self, texts: Sequence[Tokens], *, keep: bool = False) -> None:
        self._phrases.prepare_texts(texts, keep=keep)

    def localize(self, image: ImageInput, phrases: Sequence[Tokens]) -> Localized:
        return self._phrases.localize(self.look(image), phrases)
