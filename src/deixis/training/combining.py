"""Table rows that two runs fill together: a distance of whole images and sentences, mixed with one of their parts.

The distance of the parts is that of a sentence's phrases and an image's regions (`region_distances`). Each paper
declares its own mix (`deixis.training.kinds.COMBINATIONS`): eq. 2 of Flickr30k Entities, eq. 8 of two-branch networks.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from deixis.corpus import Corpus
from deixis.errors import DeixisError
from deixis.features.store import FeatureStore
from deixis.metrics.protocols import Pictures, retrieval
from deixis.metrics.results import Recipe as RecipeReference
from deixis.metrics.results import Result
from deixis.model import ImageInput, Text, Tokens, as_tokens, has_own_score, regions_of
from deixis.text.chunker import Chunker
from deixis.training.feature_model import EmbeddingModel, FeatureModel
from deixis.training.inputs import find_store
from deixis.training.kinds import kind_of
from deixis.training.recipe_reference import reference
from deixis.training.region_distances import region_phrase_distances
from deixis.training.run_models import load_run, read_recipe

Array = NDArray[Any]


@dataclass(frozen=True)
class Combination(ABC):
    """A table row, the two recipes whose runs fill it, and how their distances are mixed."""

    row: str
    #: Names of the recipes.
    sentences: str
    phrases: str
    #: How much the region-phrase distance counts.
    region_weight: float
    #: A sum over L phrases is divided by L^gamma.
    gamma: float
    #: Distances are squared.
    squared: bool

    @abstractmethod
    def mix(self, whole: Array, region_phrase: Array) -> Array:
        """Both distances `(images, sentences)` as one; that of a sentence without phrases is NaN in the second."""


class CombinedModel(FeatureModel):
    """Scores images with sentences by the mixed distance.

    Args:
        sentences: embeds whole images and sentences.
        phrases: embeds regions and phrases.
        find: the phrases of sentences.
    """

    def __init__(
        self,
        sentences: EmbeddingModel,
        phrases: EmbeddingModel,
        find: Callable[[Sequence[Tokens]], list[list[Tokens]]],
        combination: Combination,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(torch.device(device))
        self._sentences, self._phrases, self._find = sentences, phrases, find
        self._combination = combination

    def score(self, images: Sequence[ImageInput], texts: Sequence[Text]) -> Array:
        images = self.features_of(images)
        cosines = self._sentences.embed_images(images) @ self._sentences.embed_texts(texts).T
        squares = np.maximum(2 - 2 * cosines, 0)
        phrases = self._find([as_tokens(text) for text in texts])
        rows = {
            phrase: row
            for row, phrase in enumerate(
                {tuple(phrase_tokens): 0 for caption_phrases in phrases for phrase_tokens in caption_phrases}
            )
        }
        if not rows:
            return np.asarray(-squares)
        regions = [regions_of(image)[0] for image in images]
        parts = region_phrase_distances(
            np.concatenate([self._phrases.embed_visual(image_regions) for image_regions in regions]),
            np.cumsum([0, *map(len, regions)]),
            self._phrases.embed_texts(list(rows)),
            [rows[tuple(phrase)] for caption_phrases in phrases for phrase in caption_phrases],
            np.cumsum([0, *map(len, phrases)]),
            gamma=self._combination.gamma,
            squared=self._combination.squared,
            device=self._device,
        )
        return np.asarray(-self._combination.mix(squares if self._combination.squared else np.sqrt(squares), parts))


def evaluate_combined(
    sentences: str | Path,
    phrases: str | Path,
    corpus: Corpus,
    stores: Sequence[FeatureStore],
    device: torch.device,
    combination: Combination,
    *,
    split: str = "test",
) -> Result:
    """Retrieval by two runs together. The phrases of a sentence are those that the caption chunker finds."""
    whole, parts = read_recipe(sentences), read_recipe(phrases)
    models = _embedding_model(sentences, device), _embedding_model(phrases, device)
    pictures = Pictures(
        corpus,
        split,
        find_store(stores, "image"),
        regions=find_store(stores, "proposals"),
        learned_from_boxes=True,
        regions_kept=kind_of(parts.kind).regions_kept(parts),
    )
    weights = (combination.region_weight, combination.gamma, combination.squared)
    settings = [reference(whole).hash, reference(parts).hash, *weights]
    digest = hashlib.sha256(msgspec.json.encode(settings)).hexdigest()
    made_by = RecipeReference(f"{whole.name} + {parts.name}", digest)
    combined = CombinedModel(*models, phrase_finder(), combination, device)
    return retrieval(combined, pictures, recipe=made_by, seed=whole.seed, rows=[combination.row])


def _embedding_model(run: str | Path, device: torch.device) -> EmbeddingModel:
    model = load_run(run, device)
    if not isinstance(model, EmbeddingModel) or has_own_score(model):
        raise DeixisError(f"{run} has no embedding space in which distances could be measured")
    return model


def phrase_finder() -> Callable[[Sequence[Tokens]], list[list[Tokens]]]:
    """Finds the phrases of tokenized sentences with the caption chunker."""
    chunker = Chunker.load()

    def find(texts: Sequence[Tokens]) -> list[list[Tokens]]:
        spans = chunker.phrases_of(texts)
        return [
            [tuple(text[start:end]) for start, end in text_spans] for text, text_spans in zip(texts, spans, strict=True)
        ]

    return find
