"""The model of a run of the kind `base`: a tower that also grounds phrases, as `deixis-base` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from deixis.base.grounding_model import GroundingModel, SeenRegions
from deixis.base.text_tower import TextTower
from deixis.base.tower_model import FineTowerModel
from deixis.model import Grounding, ImageFeatures, ImageInput, Localized, Text, Tokens
from deixis.text.featurizers import TextFeatures
from deixis.vision.picture_files import as_picture


class SeenPicture(NamedTuple):
    """A picture as the tower and as the grounding network see it."""

    features: ImageFeatures
    regions: SeenRegions


class DeixisBaseRunModel(FineTowerModel):
    """Scores pictures with sentences, and grounds phrases."""

    lacks = frozenset()
    localizes_features = False

    def __init__(
        self, texts: TextTower, text: TextFeatures, grounder: GroundingModel, device: torch.device, tower: Path
    ) -> None:
        super().__init__(texts, text, device, tower)
        self.grounder = grounder

    def look(self, image: ImageInput) -> Any:
        if isinstance(image, ImageFeatures | SeenPicture):
            return image
        picture = as_picture(image)
        return SeenPicture(super().look(picture), self.grounder.look(picture))

    def features_of(self, images: Sequence[ImageInput]) -> list[ImageFeatures]:
        return super().features_of([image.features if isinstance(image, SeenPicture) else image for image in images])

    def localize(self, image: ImageInput, phrases: Sequence[Tokens]) -> Localized:
        return self.grounder.localize(image, phrases)

    def proposals(self, image: ImageInput) -> NDArray[Any]:
        return self.grounder.proposals(image)

    def ground(self, image: ImageInput, phrases: str | Sequence[Text]) -> list[Grounding]:
        return self.grounder.ground(image.regions if isinstance(image, SeenPicture) else image, phrases)
