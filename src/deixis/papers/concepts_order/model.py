"""Paper 3's model as a matcher: pictures and sentences in one space, and sentences from pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deixis.model import ImageFeatures, Tokens
from deixis.papers.concepts_order.concepts import ConceptMatcher
from deixis.papers.concepts_order.network import WIDTH, ConceptsOrderNetwork, SentenceGenerator
from deixis.text.features import TokenIds

Array = NDArray[Any]
#: Texts and pictures encoded at a time.
BLOCK = 1024
#: Sentences whose likelihood is taken together: each of their words has a number for every word there is.
SPOKEN = 512


class OrderMatcher:
    """Encodes pictures by their concepts and context, and sentences.

    Args:
        concepts: predicts the concepts of a picture; None: context alone.
        uses_context: False: concepts alone.
        context: how many numbers of a picture's vector, the first ones, are its context; None: all.
        speaker: tells the sentences that stand for pictures ("ctx + sen"), with the same words; None: none do.
    """

    def __init__(
        self,
        network: ConceptsOrderNetwork,
        text: TokenIds,
        concepts: ConceptMatcher | None,
        device: torch.device,
        *,
        uses_context: bool,
        speaker: ConceptsOrderNetwork | None = None,
        context: int | None = None,
    ) -> None:
        self.network, self.text, self.concepts = network.eval().to(device), text, concepts
        self._device, self._uses_context, self._context = device, uses_context, context
        self._speaker = speaker.eval().to(device) if speaker else None

    @torch.no_grad()
    def encode_images(self, images: Sequence[ImageFeatures]) -> Array:
        parts = [self.network.embed_images(*self.sources(some)) for some in _blocks(images)]
        return torch.cat(parts).cpu().numpy()

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[Tokens]) -> Array:
        ids = (torch.from_numpy(self.text.transform(some)).to(self._device) for some in _blocks(texts))
        return torch.cat([self.network.embed_texts(part) for part in ids]).cpu().numpy()

    def sources(self, images: Sequence[ImageFeatures]) -> tuple[Tensor | None, Tensor | None]:
        """Concepts and context, as the network takes them."""
        concepts = self._send(self.concepts.predict(images)) if self.concepts else None
        context = (
            self._send(np.stack([image.image[: self._context] for image in images])) if self._uses_context else None
        )
        return concepts, self._speaker.tell(None, context) if self._speaker else context

    def _send(self, rows: Array) -> Tensor:
        return torch.from_numpy(rows.astype(np.float32)).to(self._device)


class DescribingOrderMatcher(OrderMatcher):
    """With a generator: describes pictures, by the logarithms of the sentences' probabilities, and tells these."""

    @torch.no_grad()
    def describe(self, image: ImageFeatures, count: int) -> list[tuple[Tokens, float]]:
        generator = self.network.generator
        assert isinstance(generator, SentenceGenerator)
        fused = self.network.fuse(*self.sources([image]))
        spoken = generator.speak(fused, width=max(count, WIDTH), longest=self.network.longest)[0]
        return [(self.text.vocabulary.decode(each.words), each.score) for each in spoken[:count]]

    @torch.no_grad()
    def log_likelihood(self, images: Sequence[ImageFeatures], texts: Sequence[Tokens]) -> Array:
        generator = self.network.generator
        assert isinstance(generator, SentenceGenerator)
        fused = torch.cat([self.network.fuse(*self.sources(some)) for some in _blocks(images)])
        ids = torch.from_numpy(self.text.transform(texts)).to(self._device)[:, : self.network.longest]
        # One more column, since texts may all be empty.
        ids = torch.nn.functional.pad(ids, (0, 1))
        pairs = torch.cartesian_prod(torch.arange(len(fused)), torch.arange(len(ids))).to(self._device)
        told = [
            -generator.negative_log_likelihood(fused[some[:, 0]], ids[some[:, 1]])
            for some in torch.split(pairs, SPOKEN)
        ]
        return torch.cat(told).view(len(fused), len(ids)).cpu().numpy()


def _blocks(items: Sequence[Any]) -> list[Sequence[Any]]:
    return [items[start : start + BLOCK] for start in range(0, len(items), BLOCK)]
