"""The trained model: embeds pictures and sentences; with a generator, also describes pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deixis.model import Concept, Description, ImageFeatures, ImageInput, Model, Text, as_tokens
from deixis.papers.concepts_order.concept_model import ConceptModel
from deixis.papers.concepts_order.network import WIDTH, ConceptsOrderNetwork, SentenceGenerator
from deixis.text.featurizers import TokenIds
from deixis.training.feature_model import FeatureModel

Array = NDArray[Any]
#: Texts or pictures embedded together.
BLOCK = 1024
#: Sentences whose likelihood is computed together: each of their words has logits of the whole vocabulary.
SPOKEN = 512
#: Pictures described together.
DESCRIBED = 256


class ConceptsOrderModel(FeatureModel):
    """Embeds pictures by their concepts and context, and sentences. With a generator it also describes pictures.

    Args:
        predictor: predicts the concepts of a picture; None: context alone.
        uses_context: False: concepts alone.
        context: size of the context, at the beginning of a picture's vector; None: all of it.
        speaker: describes pictures in the sentences that represent them ("ctx + sen"); None: none.
    """

    def __init__(
        self,
        network: ConceptsOrderNetwork,
        text: TokenIds,
        predictor: ConceptModel | None,
        device: torch.device,
        *,
        uses_context: bool,
        speaker: Model | None = None,
        context: int | None = None,
    ) -> None:
        super().__init__(device)
        self.network, self.text, self.predictor = network.eval().to(device), text, predictor
        self._uses_context, self._context = uses_context, context
        self.speaker = speaker
        lacks = set() if predictor else {"concepts"}
        self.lacks = frozenset(lacks if network.generator else {*lacks, "describe", "log_likelihood"})

    @torch.no_grad()
    def embed_images(self, images: Sequence[ImageInput]) -> Array:
        features = self.features_of(images)
        return torch.cat([self.network.embed_images(*self.sources(block)) for block in _blocks(features)]).cpu().numpy()

    @torch.no_grad()
    def embed_texts(self, texts: Sequence[Text]) -> Array:
        parts = [self.network.embed_texts(self._ids(block)) for block in _blocks(texts)]
        return torch.cat(parts).cpu().numpy()

    def concepts(self, image: ImageInput, words: Sequence[str] | None = None) -> list[Concept]:
        if self.predictor is None:
            raise self.cannot("concepts")
        return self.predictor.concepts(self.look(image), words)

    @torch.no_grad()
    def describe(self, image: ImageInput, count: int = 3) -> list[Description]:
        """Scores are the log probabilities of the sentences."""
        return self.describe_all([image], count)[0]

    @torch.no_grad()
    def describe_all(self, images: Sequence[ImageInput], count: int = 1) -> list[list[Description]]:
        generator, decode = self._generator("describe"), self.text.vocabulary.decode
        features = self.features_of(images)
        described: list[list[Description]] = []
        for start in range(0, len(features), DESCRIBED):
            fused = self.network.fuse(*self.sources(features[start : start + DESCRIBED]))
            beams = generator.speak(fused, width=max(count, WIDTH), longest=self.network.longest)
            described += [
                [Description(" ".join(decode(words)), score, "generation") for words, score in beam[:count]]
                for beam in beams
            ]
        return described

    @torch.no_grad()
    def log_likelihood(self, images: Sequence[ImageInput], texts: Sequence[Text]) -> Array:
        generator = self._generator("log_likelihood")
        fused = torch.cat([self.network.fuse(*self.sources(block)) for block in _blocks(self.features_of(images))])
        ids = self._ids(texts)[:, : self.network.longest]
        # One more column: all texts may be empty.
        ids = torch.nn.functional.pad(ids, (0, 1))
        pairs = torch.cartesian_prod(torch.arange(len(fused)), torch.arange(len(ids))).to(self._device)
        parts = [
            -generator.negative_log_likelihood(fused[block[:, 0]], ids[block[:, 1]])
            for block in torch.split(pairs, SPOKEN)
        ]
        return torch.cat(parts).view(len(fused), len(ids)).cpu().numpy()

    def unknown_words(self, text: Text) -> list[str]:
        return [token for token in as_tokens(text) if not self.text.knows(token)]

    def sources(self, images: Sequence[ImageFeatures]) -> tuple[Tensor | None, Tensor | None]:
        """Concepts and context, as the network takes them."""
        if self.speaker:
            return None, spoken_ids(self.speaker, images, self.text, self.network.longest).to(self._device)
        concepts = self._send(self.predictor.predict(images)) if self.predictor else None
        context = (
            self._send(np.stack([image.image[: self._context] for image in images])) if self._uses_context else None
        )
        return concepts, context

    def _generator(self, ability: str) -> SentenceGenerator:
        if not isinstance(self.network.generator, SentenceGenerator):
            raise self.cannot(ability)
        return self.network.generator

    def _ids(self, texts: Sequence[Text]) -> Tensor:
        return torch.from_numpy(self.text.transform([as_tokens(text) for text in texts])).to(self._device)

    def _send(self, rows: Array) -> Tensor:
        return torch.from_numpy(rows.astype(np.float32)).to(self._device)


def spoken_ids(speaker: Model, images: Sequence[ImageFeatures], text: TokenIds, longest: int) -> Tensor:
    """Ids `(images, longest)` of the best sentence of a speaker about each picture, 0 = padding."""
    texts = [descriptions[0].tokens[:longest] for descriptions in speaker.describe_all(images)]
    ids = torch.from_numpy(text.transform(texts))
    return torch.nn.functional.pad(ids, (0, longest - ids.shape[1]))


def _blocks(items: Sequence[Any]) -> list[Sequence[Any]]:
    return [items[start : start + BLOCK] for start in range(0, len(items), BLOCK)]
