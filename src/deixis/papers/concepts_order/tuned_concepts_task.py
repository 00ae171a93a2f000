"""Training the concept network end to end (section 3.2): recipes of the kind `concept-pictures`.

A backbone and the concept layer on the mean of its map are trained together on random windows of whole pictures. The
run contains the backbone as a file (`tower:…`), for features of the regions that the layer is applied to; `features`
says which these are, and which backbone training starts from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor, nn

from deixis.corpus import Corpus, TrainingSet, training_set
from deixis.errors import DeixisError
from deixis.features.feature_recipe import FeatureRecipe
from deixis.features.store import FeatureStore
from deixis.metrics.concept_prediction import concept_precision
from deixis.papers.concepts_order.concept_model import ConceptModel
from deixis.papers.concepts_order.concepts import ConceptNetwork
from deixis.papers.concepts_order.concepts_task import VOCABULARY, ConceptRecipe, predict_concepts
from deixis.papers.concepts_order.loss import concept_loss
from deixis.text.concept_words import ConceptVocabulary, concept_vocabulary
from deixis.text.tokens import tokens_of
from deixis.training.augmentation import (
    MARGIN,
    SquashedPictures,
    random_colours,
    random_views,
    recoloured,
    squashed_pictures,
    view_pictures,
)
from deixis.training.kind import Kind
from deixis.training.run_protocols import Evaluation, RunProtocol
from deixis.training.runs import read_weights
from deixis.training.sampling import shuffled
from deixis.training.task import Batches, Loss
from deixis.vision import TOWER as TOWER_PREFIX
from deixis.vision.efficientnet_lite import VARIANTS, load_efficientnet_lite
from deixis.vision.proposer import normalize
from deixis.vision.reading import Skipped
from deixis.vision.tower import TOWER, PictureTower, save_tower

#: Pictures that are validated together.
_PICTURES = 64
#: Training pictures over which the mean length of features is computed.
_LENGTHS = 1000


class TuningRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Random windows of the training pictures: sides of at least 1 − zoom of the picture, resized to `side` pixels."""

    side: Annotated[int, Meta(ge=32, le=1024)] = 288
    zoom: Annotated[float, Meta(ge=0, lt=1)] = 0.45


class TunedConceptRecipe(ConceptRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tuning: TuningRecipe = TuningRecipe()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.feature_recipe.backbone not in VARIANTS:
            raise ValueError(f"features.backbone: only {', '.join(VARIANTS)} can be fine-tuned")


class TunedModule(nn.Module):
    def __init__(self, recipe: TunedConceptRecipe, concepts: int) -> None:
        super().__init__()
        name = recipe.feature_recipe.backbone
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(recipe.seed)
            self.tower = PictureTower(load_efficientnet_lite(name), name, recipe.tuning.side, dim=0)
            self.concepts = ConceptNetwork(self.tower.backbone.channels, concepts, recipe.dropout)


class PictureBatch(NamedTuple):
    rows: Tensor  # (pictures,)
    seed: int


class TunedConceptTask:
    """Validated by mean average precision over whole pictures of the validation split, `map.whole`."""

    def __init__(self, recipe: TunedConceptRecipe, training: TrainingSet, corpus: Corpus, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.vocabulary = concept_vocabulary(recipe.vocabulary, training)
        self.module = TunedModule(recipe, len(self.vocabulary)).to(device)
        self.module.tower.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        side = recipe.tuning.side
        self.data = _read(training.corpus, round(side * MARGIN / 32) * 32)
        self.held_out = _read(corpus.split("val"), side)
        self.pixels, self.held_out_pixels = self.data.pixels.to(device), self.held_out.pixels.to(device)
        self.labels = torch.from_numpy(self._labels(self.data)).to(device, torch.float32)
        if recipe.one_length:
            self.module.concepts.length.fill_(float(self._vectors(self.pixels[:_LENGTHS]).norm(dim=1).mean()))

    def _labels(self, read: SquashedPictures) -> NDArray[np.bool_]:
        return np.stack([self.vocabulary.labels(map(tokens_of, image.captions)) for image in read.images])

    @torch.no_grad()
    def _vectors(self, pixels: Tensor) -> Tensor:
        parts = torch.split(pixels, _PICTURES)
        return torch.cat([self.module.tower(normalize(part)).float() for part in parts])

    def batches(self, epoch: int) -> Batches[PictureBatch]:
        return shuffled(len(self.data.images), self.recipe.batch, self.recipe.seed, epoch, self._batch)

    def _batch(
        self, epoch: int, rows: NDArray[np.int64], following: object, random: np.random.Generator
    ) -> PictureBatch:
        return PictureBatch(torch.from_numpy(rows).to(self.device), int(random.integers(1 << 62)))

    def loss(self, batch: PictureBatch) -> Loss:
        generator = torch.Generator(self.device).manual_seed(batch.seed)
        views = random_views(len(batch.rows), self.recipe.tuning.zoom, generator)
        colours = random_colours(len(batch.rows), generator)
        pictures = recoloured(view_pictures(self.pixels[batch.rows], views, self.recipe.tuning.side), colours)
        vectors = self.module.tower(pictures.contiguous(memory_format=torch.channels_last))
        logits = self.module.concepts(vectors).float()
        return Loss(concept_loss(logits, self.labels[batch.rows], self.recipe.loss))

    def validate(self) -> Mapping[str, float]:
        confidences = self.module.concepts.confidences(self._vectors(self.held_out_pixels)).cpu().numpy()
        return {"map.whole": float(np.nanmean(concept_precision(confidences, self._labels(self.held_out))))}

    def describe(self, batch: PictureBatch) -> str:
        return "images " + ", ".join(self.data.images[row].id for row in batch.rows[:5].tolist()) + ", …"

    def save(self, folder: Path) -> None:
        save_tower(self.module.tower, folder / TOWER)
        self.vocabulary.save(folder / VOCABULARY)


def _read(corpus: Corpus, side: int) -> SquashedPictures:
    read = squashed_pictures(corpus, (image for image in corpus if image.captions), side, Skipped())
    if not read.images:
        raise DeixisError(f"no picture of corpus {corpus.name or '(unnamed)'} with captions can be read")
    return read


class ConceptPicturesKind(Kind[TunedConceptRecipe]):
    recipe_type = TunedConceptRecipe
    makes_features = True

    def features(self, recipe: TunedConceptRecipe, run: Path | None = None) -> list[FeatureRecipe]:
        """It learns from the pictures themselves; a run is used with its fine-tuned backbone's features."""
        if run is None:
            return []
        return [msgspec.structs.replace(recipe.region_features, backbone=f"{TOWER_PREFIX}{run / TOWER}")]

    def task(
        self, recipe: TunedConceptRecipe, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device
    ) -> TunedConceptTask:
        return TunedConceptTask(recipe, training_set(corpus), corpus, device)

    def load_model(self, folder: Path, recipe: TunedConceptRecipe, device: torch.device) -> ConceptModel:
        prefix, stored = "concepts.", read_weights(folder)
        weights = {name.removeprefix(prefix): value for name, value in stored.items() if name.startswith(prefix)}
        vocabulary = ConceptVocabulary.load(folder / VOCABULARY)
        return ConceptModel(ConceptNetwork.of(weights), vocabulary, recipe.regions, device)

    def protocols(self, evaluation: Evaluation[TunedConceptRecipe]) -> Sequence[RunProtocol]:
        return [predict_concepts]

    def by_regions(self, recipe: TunedConceptRecipe) -> bool:
        return True
