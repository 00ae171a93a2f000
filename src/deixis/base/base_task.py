"""One network for pictures with sentences and regions with phrases, on one backbone: recipes of the kind `base`.

Beyond the papers: what the package's own model is trained by. A step looks once at every picture of its batch; all of
them are matched with their captions (`deixis.base.pictures_task`), those with drawn boxes also teach proposals and
phrase grounding (`deixis.base.grounding_task`). Both text branches have the same word vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from msgspec import Meta
from torch import Tensor, nn

from deixis.base.base_run_model import DeixisBaseRunModel
from deixis.base.grounding_data import as_tensors, grounding_data
from deixis.base.grounding_model import GroundingModel
from deixis.base.grounding_network import GroundingNetwork, GroundingRecipe
from deixis.base.grounding_task import Augmentation, GroundingLoss, GroundingTask, localize_mentions, recalls
from deixis.base.pictures_task import (
    PictureBatch,
    PictureRecipe,
    PictureTask,
    TowerKind,
    load_text_tower,
    tower_file,
)
from deixis.base.text_tower import TowerRecipe
from deixis.corpus import Corpus, TrainingSet, training_set
from deixis.errors import DeixisError
from deixis.features.store import FeatureStore
from deixis.metrics.localization import gold_queries
from deixis.text.features import TextFeatures, TokenIds
from deixis.text.vocabulary import Vocabulary
from deixis.training.augmentation import SquashedPictures, Views
from deixis.training.run_protocols import Evaluation, RunProtocol, ground_truth_region_ranking, image_text_ranking
from deixis.training.runs import read_weights
from deixis.training.task import Gather, Loss, compute_all
from deixis.training.tools.proposer_training import new_proposer
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite
from deixis.vision.proposer import Proposer
from deixis.vision.reading import Skipped


class GroundingPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: GroundingRecipe = GroundingRecipe(side=320)
    loss: GroundingLoss = GroundingLoss()
    augmentation: Augmentation = Augmentation()
    #: Pictures of a batch whose phrases are grounded, of those with boxes.
    images: Annotated[int, Meta(ge=1)] = 32
    #: Of the grounding in the whole loss.
    weight: Annotated[float, Meta(gt=0)] = 0.5


class DeixisBaseRecipe(PictureRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: TowerRecipe = TowerRecipe(side=320, fine=128)
    grounding: GroundingPart = GroundingPart()

    @property
    def learns_from_boxes(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        model, grounding = self.model, self.grounding.model
        if (model.backbone, model.side) != (grounding.backbone, grounding.side):
            raise ValueError("model and grounding.model must have the same backbone and side: there is one pass")
        if not model.fine:
            raise ValueError("model.fine must be 1 at the least")


class DeixisBaseTask(PictureTask):
    """Validated by retrieval and by phrase localization."""

    recipe: DeixisBaseRecipe

    def __init__(self, recipe: DeixisBaseRecipe, training: TrainingSet, corpus: Corpus, device: torch.device) -> None:
        super().__init__(recipe, training, corpus, device)
        if device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        part, words = recipe.grounding, _vocabulary(self.text)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(recipe.seed)
            trunk = new_proposer(part.model.backbone, recipe.seed)
            network = GroundingNetwork(part.model, trunk, len(words), recipe.model.recurrent.word)
        borrow(network, "words", self.module.texts.encoder.words)
        borrow(network.proposer, "backbone", self.module.tower.backbone)
        boxed = [row for row, image in enumerate(self.data.images) if gold_queries(image)[0]]
        if not boxed:
            raise DeixisError(f"corpus {corpus.name or '(unnamed)'} has no phrase with a box in its training pictures")
        #: Of every picture its row among those with boxes, or −1.
        self._boxed = np.full(len(self.data.images), -1)
        self._boxed[boxed] = np.arange(len(boxed))
        # Training looks at the pictures that are there already.
        own = SquashedPictures(
            tuple(self.data.images[row] for row in boxed),
            tuple(self.data.sizes[row] for row in boxed),
            self.data.pixels[:0],
        )
        self.grounding = GroundingTask(
            GroundingModel(network, words),
            as_tensors(own, words, device),
            grounding_data(corpus, corpus.split("val"), words, part.model.side, device, Skipped()),
            loss=part.loss,
            augmentation=part.augmentation,
            batch_size=part.images,
            seed=recipe.seed,
        )
        self.module.add_module("grounding", self.grounding.module)

    def loss(self, batch: PictureBatch, gather: Gather = compute_all) -> Loss:
        views, colours, generator = self._augmentation(batch)
        backbone, part = self.module.tower.backbone, self.recipe.grounding

        def look(*given: Tensor) -> tuple[Any, ...]:
            pyramid = backbone.pyramid(self._windows(*given))
            return *self._embed(backbone.head(pyramid[-1])), *pyramid

        images, cells, *pyramid = gather(look, batch.images, *views, colours)
        matching = self._match(batch, images, cells, generator, gather)
        boxed = np.flatnonzero(self._boxed[batch.rows] >= 0)
        if not len(boxed):
            return matching
        # Always as many, so that shapes repeat.
        boxed = np.resize(boxed, part.images)
        places = torch.from_numpy(boxed).to(self.device)
        levels = [level[places] for level in pyramid]
        output = self.grounding.network.proposer.read_pyramid(levels, self.recipe.model.side)
        rows = torch.from_numpy(self._boxed[batch.rows[boxed]])
        seen = Views(*(field[places] for field in views))
        grounding = self.grounding.loss_of(rows, seen, output, levels, generator)
        parts = {**matching.parts, **{f"grounding.{name}": value for name, value in grounding.parts.items()}}
        return Loss(matching.total + part.weight * grounding.total, parts)

    def validate(self) -> Mapping[str, float]:
        found = recalls(self.grounding.grounder, self.grounding.validation)
        return {**super().validate(), **{f"grounding.{name}": value for name, value in found.items()}}


def borrow(owner: nn.Module, name: str, module: nn.Module) -> None:
    """Let a part of `owner` be another's, which alone keeps, moves and trains it."""
    delattr(owner, name)
    object.__setattr__(owner, name, module)


def _vocabulary(text: TextFeatures) -> Vocabulary:
    assert isinstance(text, TokenIds)
    return text.vocabulary


class DeixisBaseKind(TowerKind[DeixisBaseRecipe]):
    recipe_type = DeixisBaseRecipe

    def task(
        self, recipe: DeixisBaseRecipe, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device
    ) -> DeixisBaseTask:
        return DeixisBaseTask(recipe, training_set(corpus), corpus, device)

    def load_model(self, folder: Path, recipe: DeixisBaseRecipe, device: torch.device) -> DeixisBaseRunModel:
        texts, text = load_text_tower(folder, recipe)
        return DeixisBaseRunModel(texts, text, load_grounder(folder, recipe, device), device, tower_file(folder))

    def protocols(self, evaluation: Evaluation[DeixisBaseRecipe]) -> Sequence[RunProtocol]:
        localization = partial(localize_mentions, regions=evaluation.recipe.grounding.model.regions)
        protocols: list[RunProtocol] = [localization, image_text_ranking]
        return [*protocols, ground_truth_region_ranking] if evaluation.drawn_regions else protocols


def load_grounder(folder: Path, recipe: DeixisBaseRecipe, device: torch.device) -> GroundingModel:
    """What points at phrases, with the backbone that the run shares."""
    _, text = load_text_tower(folder, recipe)
    words, weights = _vocabulary(text), read_weights(folder)
    model = recipe.grounding.model
    trunk = Proposer(EfficientNetLite(VARIANTS[model.backbone]), model.backbone)
    network = GroundingNetwork(model, trunk, len(words), recipe.model.recurrent.word)
    parts = {"grounding.network.": "", "texts.encoder.words.": "words.", "tower.backbone.": "proposer.backbone."}
    own = {
        to + name.removeprefix(prefix): value
        for prefix, to in parts.items()
        for name, value in weights.items()
        if name.startswith(prefix)
    }
    wanted = network.state_dict()
    network.load_state_dict({name: value for name, value in own.items() if name in wanted})
    return GroundingModel(network.eval().to(device), words)
