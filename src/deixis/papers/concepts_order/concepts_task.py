"""Training the concept network (section 3.2) on stored features: recipes of the kind `concepts`.

It is trained on whole pictures and the concept words of their captions, or through the maximum over the whole picture
and its regions (`trained_on`). It is evaluated on whole pictures and on whole pictures with regions. `loss = "printed"`
is the printed form of eq. 1, to see what it does (`loss.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import numpy as np
import safetensors.torch
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor

from deixis.corpus import Corpus, Image, TrainingSet, training_set
from deixis.errors import DeixisError
from deixis.features.arrays import RaggedArray
from deixis.features.feature_recipe import FeatureRecipe
from deixis.features.store import FeatureStore
from deixis.files import atomic_write, cache_folder
from deixis.metrics.concept_prediction import concept_precision, concept_prediction
from deixis.metrics.results import Result
from deixis.papers.concepts_order.concept_model import ConceptModel
from deixis.papers.concepts_order.concepts import ConceptNetwork, box_centres, diverse_regions
from deixis.papers.concepts_order.loss import concept_loss
from deixis.text.concept_words import ConceptVocabulary, VocabularyRecipe, concept_vocabulary
from deixis.text.tokens import tokens_of
from deixis.training.inputs import find_store
from deixis.training.kind import Kind
from deixis.training.recipe import Recipe
from deixis.training.run_protocols import Evaluation, RunProtocol
from deixis.training.runs import read_weights
from deixis.training.sampling import shuffled
from deixis.training.task import Batches, Loss

#: The file of the vocabulary in a run.
VOCABULARY = "concepts.tsv"
#: Images whose regions are processed together.
_IMAGES = 64
#: Version of the cached confidences; increase it when regions are chosen or scored differently.
_VERSION = 1


class ConceptRecipe(Recipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`regions` is r, the number of regions of a picture beside the whole picture; with 0, features need none."""

    vocabulary: VocabularyRecipe = VocabularyRecipe()
    regions: Annotated[int, Meta(ge=0)] = 50
    #: What the loss sees: logits of whole pictures, or the largest logit among the whole picture and its regions.
    trained_on: Literal["whole", "maximum"] = "whole"
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.5
    loss: Literal["cross-entropy", "printed"] = "cross-entropy"
    batch: Annotated[int, Meta(ge=2)] = 256
    #: Scale all features to the mean length of the whole pictures of the training set.
    one_length: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trained_on == "maximum" and not self.regions:
            raise ValueError("trained_on = 'maximum' needs regions: set regions above 0")


class Regions(NamedTuple):
    """The diverse regions of all images."""

    vectors: Tensor  # (regions, channels)
    image_of: Tensor  # (regions,) the index of each region's image
    centres: Tensor  # (regions, 2) from −1 to 1


class ConceptBatch(NamedTuple):
    rows: Tensor  # (pictures,)


class ConceptTask:
    """Validated by mean average precision: `map.whole` and `map.regional`."""

    def __init__(
        self, recipe: ConceptRecipe, training: TrainingSet, corpus: Corpus, store: FeatureStore, device: torch.device
    ) -> None:
        self.recipe, self.device, self.store = recipe, device, store
        self.vocabulary = concept_vocabulary(recipe.vocabulary, training)
        self.images = captioned(training, store)
        self.held_out = captioned(corpus.split("val"), store)
        self.wholes, self.labels = whole_vectors(self.images, store, device), self._labels(self.images).to(device)
        length = float(self.wholes.norm(dim=1).mean()) if recipe.one_length else 0.0
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(recipe.seed)
            channels = self.wholes.shape[1]
            self.module = ConceptNetwork(channels, len(self.vocabulary), recipe.dropout, length).to(device)
        self.held_out_wholes = whole_vectors(self.held_out, store, device)
        self.held_out_regions = region_vectors(self.held_out, store, recipe.regions, device) if recipe.regions else None
        #: Only if the loss sees regions.
        self.regions, self.present = None, None
        if recipe.trained_on == "maximum":
            self.regions, self.present = padded_regions(self.images, store, recipe.regions, device)

    def _labels(self, images: Sequence[Image]) -> Tensor:
        rows = [self.vocabulary.labels(map(tokens_of, image.captions)) for image in images]
        return torch.from_numpy(np.stack(rows)).float()

    def batches(self, epoch: int) -> Batches[ConceptBatch]:
        return shuffled(len(self.images), self.recipe.batch, self.recipe.seed, epoch, self._batch)

    def _batch(
        self, epoch: int, rows: NDArray[np.int64], following: object, random: np.random.Generator
    ) -> ConceptBatch:
        return ConceptBatch(torch.from_numpy(rows).to(self.device))

    def loss(self, batch: ConceptBatch) -> Loss:
        logits = self.module(self.wholes[batch.rows])
        if self.regions is not None and self.present is not None:
            of_regions = self.module(self.regions[batch.rows].float())  # (pictures, regions, concepts)
            absent = ~self.present[batch.rows][..., None]
            logits = torch.maximum(logits, of_regions.masked_fill(absent, -torch.inf).amax(1))
        return Loss(concept_loss(logits, self.labels[batch.rows], self.recipe.loss))

    def validate(self) -> Mapping[str, float]:
        labels = self._labels(self.held_out).bool().numpy()
        figures = {}
        for name, regions in (("whole", None), ("regional", self.held_out_regions)):
            confidences = self.module.confidences(self.held_out_wholes, *(regions or ())).cpu().numpy()
            figures[f"map.{name}"] = float(np.nanmean(concept_precision(confidences, labels)))
        return figures

    def describe(self, batch: ConceptBatch) -> str:
        return "images " + ", ".join(self.images[row].id for row in batch.rows[:5].tolist()) + ", …"

    def save(self, folder: Path) -> None:
        self.vocabulary.save(folder / VOCABULARY)


def captioned(source: TrainingSet | Corpus, store: FeatureStore) -> list[Image]:
    """The images with captions and features."""
    images = [image for image in source if image.captions and image.id not in store.skipped]
    if not images:
        raise DeixisError("none of these images has captions and features")
    return images


def whole_vectors(images: Sequence[Image], store: FeatureStore, device: torch.device) -> Tensor:
    """`(images, channels)`."""
    vectors = store.image_vectors().gather(store.numbers(image.id for image in images))
    return torch.from_numpy(vectors).to(device, torch.float32)


def region_vectors(images: Sequence[Image], store: FeatureStore, count: int, device: torch.device) -> Regions:
    channels = cast(RaggedArray, store["regions"]).spec.shape
    rows, image_of = [np.empty((0, *channels), np.float32)], [np.empty(0, np.int64)]
    centres = [np.empty((0, 2), np.float32)]
    for index, stored in enumerate(store.numbers(image.id for image in images).tolist()):
        boxes = store["boxes"][stored]
        chosen = diverse_regions(boxes, count)
        rows.append(store["regions"][stored][chosen])
        image_of.append(np.full(len(chosen), index))
        centres.append(box_centres(boxes[chosen], store["size"][stored]))
    vectors = np.concatenate(rows, dtype=np.float32)
    parts = (torch.from_numpy(part).to(device) for part in (vectors, np.concatenate(image_of), np.concatenate(centres)))
    return Regions(*parts)


def padded_regions(
    images: Sequence[Image], store: FeatureStore, count: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Diverse regions as `(images, count, channels)` in half precision, and the mask `(images, count)` of those there
    are.
    """
    (channels,) = cast(RaggedArray, store["regions"]).spec.shape
    rows = torch.zeros(len(images), count, channels, dtype=torch.float16)
    present = torch.zeros(len(images), count, dtype=torch.bool)
    for index, stored in enumerate(store.numbers(image.id for image in images).tolist()):
        chosen = diverse_regions(store["boxes"][stored], count)
        rows[index, : len(chosen)] = torch.from_numpy(np.array(store["regions"][stored][chosen], np.float16))
        present[index, : len(chosen)] = True
    return rows.to(device), present.to(device)


@torch.no_grad()
def predicted_concepts(
    network: ConceptNetwork,
    images: Sequence[Image],
    store: FeatureStore,
    count: int,
    device: torch.device,
    *,
    places: bool = False,
) -> Tensor:
    """Confidences `(images, concepts)` over whole pictures and `count` regions of each, cached.

    With `places`, followed by these (`ConceptNetwork.confidences`). Clustering the regions takes longer than the
    network, and all rows of a table use the same one.
    """
    digest = hashlib.sha256(f"{_VERSION} {store.fingerprint} {count}{' places' * places}".encode())
    for value in network.state_dict().values():
        digest.update(value.cpu().numpy().tobytes())
    for image in images:
        digest.update(b"\n" + image.id.encode())
    path = cache_folder() / "concepts" / f"{digest.hexdigest()[:32]}.safetensors"
    if path.exists():
        return safetensors.torch.load(path.read_bytes())["confidences"].to(device)
    network = network.eval().to(device)
    parts = []
    for start in range(0, len(images), _IMAGES):
        block = images[start : start + _IMAGES]
        regions = region_vectors(block, store, count, device) if count else ()
        parts.append(network.confidences(whole_vectors(block, store, device), *regions, places=places))
    confidences = torch.cat(parts)
    with atomic_write(path) as stream:
        stream.write(safetensors.torch.save({"confidences": confidences.cpu()}))
    return confidences


class ConceptsKind(Kind[ConceptRecipe]):
    recipe_type = ConceptRecipe

    def features(self, recipe: ConceptRecipe, run: Path | None = None) -> list[FeatureRecipe]:
        return [recipe.region_features if recipe.regions else recipe.feature_recipe]

    def task(
        self, recipe: ConceptRecipe, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device
    ) -> ConceptTask:
        store = find_store(stores, "proposals" if recipe.regions else "image")
        return ConceptTask(recipe, training_set(corpus), corpus, store, device)

    def load_model(self, folder: Path, recipe: ConceptRecipe, device: torch.device) -> ConceptModel:
        vocabulary = ConceptVocabulary.load(folder / VOCABULARY)
        return ConceptModel(ConceptNetwork.of(read_weights(folder)), vocabulary, recipe.regions, device)

    def protocols(self, evaluation: Evaluation[ConceptRecipe]) -> Sequence[RunProtocol]:
        return [predict_concepts]

    def by_regions(self, recipe: ConceptRecipe) -> bool:
        return recipe.regions > 0


def predict_concepts(evaluation: Evaluation[Any]) -> Iterator[Result]:
    """Average precision of the concepts: whole pictures, and whole pictures with regions."""
    regional: ConceptModel = evaluation.model
    whole = ConceptModel(regional.network, regional.vocabulary, 0, evaluation.device)
    predictors = {"whole": whole.predict, "regional": regional.predict}
    yield concept_prediction(predictors, regional.vocabulary, evaluation.pictures, **evaluation.details)
