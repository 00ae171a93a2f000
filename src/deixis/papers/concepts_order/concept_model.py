"""Trained concept networks as models: the concepts of a picture, and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from deixis.errors import DeixisError
from deixis.model import Concept, ImageFeatures, ImageInput, as_box
from deixis.papers.concepts_order.concepts import Array, ConceptNetwork, box_centres, diverse_regions
from deixis.text.concept_words import ConceptVocabulary
from deixis.training.feature_model import FeatureModel


class ConceptPlaces(NamedTuple):
    """Confidences by region; row 0 is the whole picture."""

    boxes: Array  # (places, 4)
    confidences: Array  # (places, concepts)


class ConceptModel(FeatureModel):
    """A concept network with its vocabulary.

    Args:
        regions: number of regions per picture, beside the whole picture.
        places: `predict` also returns where concepts are (`ConceptNetwork.confidences`).
    """

    def __init__(
        self,
        network: ConceptNetwork,
        vocabulary: ConceptVocabulary,
        regions: int,
        device: torch.device,
        *,
        places: bool = False,
    ) -> None:
        super().__init__(device)
        self.network, self.vocabulary, self.regions = network.eval().to(device), vocabulary, regions
        self._gives_places = places

    def concepts(self, image: ImageInput, words: Sequence[str] | None = None) -> list[Concept]:
        places = self.places(self.look(image))
        best = places.confidences.argmax(0).tolist()
        concepts = [
            Concept(
                concept.word,
                concept.part,
                float(places.confidences[region, column]),
                as_box(places.boxes[region]) if region else None,
            )
            for column, (concept, region) in enumerate(zip(self.vocabulary.concepts, best, strict=True))
        ]
        if words is None:
            return sorted(concepts, key=lambda concept: -concept.confidence)
        named = [(word, concepts[column]) for word in words for column in self.vocabulary.find([word])]
        return [
            Concept(concept.concept, concept.part, concept.confidence, concept.box, word) for word, concept in named
        ]

    @torch.no_grad()
    def places(self, image: ImageFeatures) -> ConceptPlaces:
        """Confidences of all concepts in the whole picture and in its regions."""
        rows, boxes = self._regions(image)
        logits = self.network(torch.from_numpy(rows).to(self._device))
        return ConceptPlaces(boxes, torch.sigmoid(logits).cpu().numpy())

    def predict(self, images: Sequence[ImageFeatures]) -> Array:
        """Confidences `(images, concepts)`, followed by places if the model gives these."""
        return np.stack([self._highest(self.places(image), image.size) for image in images])

    def _highest(self, places: ConceptPlaces, size: Sequence[float]) -> Array:
        highest: Array = places.confidences.max(0)
        if not self._gives_places:
            return highest
        centres = box_centres(places.boxes, size)[places.confidences.argmax(0)]
        return np.concatenate([highest, *(highest * centres.T)])

    def _regions(self, image: ImageFeatures) -> tuple[Array, Array]:
        """Features and boxes of the whole picture and of the regions that are used."""
        whole = np.asarray(image.image if image.whole is None else image.whole, np.float32)[None]
        frame = np.array([[0, 0, *image.size]], np.float32)
        if not self.regions:
            return whole, frame
        if image.regions is None or image.boxes is None:
            raise DeixisError("concepts are predicted in regions; extract features with a recipe that has [regions]")
        chosen = diverse_regions(np.asarray(image.boxes), self.regions)
        return (
            np.concatenate([whole, np.asarray(image.regions)[chosen]]).astype(np.float32),
            np.concatenate([frame, np.asarray(image.boxes)[chosen]]),
        )


class CellConceptModel(ConceptModel):
    """Concepts that are part of a picture's vector (`PictureTower.rows`): of the whole picture and the map's cells.

    Args:
        context: size of the vector before the concepts.
    """

    def __init__(self, vocabulary: ConceptVocabulary, context: int) -> None:
        # No network: the confidences are part of the picture's features.
        self.vocabulary, self._context, self._gives_places = vocabulary, context, False

    def places(self, image: ImageFeatures) -> ConceptPlaces:
        confidences = np.asarray(image.image[self._context :], np.float32).reshape(-1, len(self.vocabulary))
        side = round((len(confidences) - 1) ** 0.5)
        rows, columns = np.divmod(np.arange(side**2), side)
        cells = np.stack([columns, rows, columns + 1, rows + 1], 1) * (np.tile(image.size, 2) / side)
        return ConceptPlaces(np.concatenate([[[0, 0, *image.size]], cells]).astype(np.float32), confidences)

    def predict_whole(self, images: Sequence[ImageFeatures]) -> Array:
        """As `predict`, for whole pictures alone."""
        return np.stack([self.places(image).confidences[0] for image in images])
