"""Joint training from raw pictures (section 3.4): recipes of the kind `order-pictures`.

Frozen features say what is in a picture, but hardly who does what to whom, so a model on them cannot separate a caption
from its twin with exchanged roles. Here the backbone is trained too: the cells of its map have positions and attend to
each other (`deixis.vision.tower`), and their pooled vector is the context of eq. 2. Sentences, L_mat, L_gen and
exchanged captions are as in `task.py`.

Pictures are mirrored in half of the steps; "left" and "right" are then exchanged in their captions.

With a `vocabulary`, concepts are trained as well, by a layer on the map: the regions are the map's cells, and eq. 1
applies to the maximum over the cells and the whole map. As in the paper, concepts are trained on the words of captions
alone, not by L_mat and L_gen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, cast

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
from deixis.metrics.concept_prediction import concept_precision, concept_prediction
from deixis.metrics.results import Result
from deixis.papers.concepts_order.concept_model import CellConceptModel
from deixis.papers.concepts_order.concepts_task import VOCABULARY
from deixis.papers.concepts_order.loss import concept_loss, mismatched_pictures
from deixis.papers.concepts_order.model import ConceptsOrderModel
from deixis.papers.concepts_order.network import ConceptsOrderNetwork, OrderRecipe
from deixis.papers.concepts_order.order_training import (
    Captions,
    OrderLossRecipe,
    caption_lengths,
    order_figures,
    order_loss,
    twin_ids,
)
from deixis.text.concept_words import ConceptVocabulary, VocabularyRecipe, concept_vocabulary
from deixis.text.featurizers import TextRecipe, TokenIds, load_text_features, text_features
from deixis.text.tokens import tokens_of_captions
from deixis.training.augmentation import (
    MARGIN,
    MIRRORED_WORDS,
    Views,
    mirrored_words,
    random_colours,
    random_views,
    recoloured,
    some_of_each,
    squashed_pictures,
    view_pictures,
)
from deixis.training.inputs import TEXT
from deixis.training.kind import Kind
from deixis.training.recipe import Recipe
from deixis.training.run_protocols import (
    Evaluation,
    RunProtocol,
    ground_truth_region_ranking,
    image_text_ranking,
    sentence_ranking,
    word_order,
)
from deixis.training.runs import read_weights
from deixis.training.sampling import shuffled
from deixis.training.sentence_pairs import SentenceData
from deixis.training.task import Batches, Gather, Loss, compute_all
from deixis.vision import TOWER as TOWER_PREFIX
from deixis.vision.efficientnet_lite import VARIANTS, load_efficientnet_lite
from deixis.vision.proposer import normalize
from deixis.vision.reading import Skipped
from deixis.vision.tower import TOWER, PictureTower, save_tower

#: Pictures that are validated together.
_PICTURES = 64


class LookingRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The picture network, and its crops: random windows whose sides are at least 1 − zoom of the picture's."""

    backbone: str = "efficientnet-lite0"
    side: Annotated[int, Meta(ge=32, le=1024)] = 256
    dim: Annotated[int, Meta(ge=1)] = 1024
    queries: Annotated[int, Meta(ge=1, le=64)] = 8
    #: Layers of attention among the cells of the map; 0: none.
    relating: Annotated[int, Meta(ge=0, le=16)] = 2
    zoom: Annotated[float, Meta(ge=0, lt=1)] = 0.15

    def __post_init__(self) -> None:
        if self.backbone not in VARIANTS:
            raise ValueError(f"backbone: only {', '.join(VARIANTS)} can be fine-tuned")


class OrderPictureRecipe(Recipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: Always None: it is trained on pictures.
    features: None = None  # type: ignore[assignment]
    text: TextRecipe = TextRecipe(kind="tokens")
    looking: LookingRecipe = LookingRecipe()
    model: OrderRecipe = OrderRecipe()
    loss: OrderLossRecipe = OrderLossRecipe()
    #: Vocabulary of the concepts; None: context alone.
    vocabulary: VocabularyRecipe | None = None
    #: Weight of eq. 1 beside eq. 4.
    concept_weight: Annotated[float, Meta(gt=0)] = 0.1
    #: Pictures per batch, and captions per picture.
    images: Annotated[int, Meta(ge=2)] = 128
    captions: Annotated[int, Meta(ge=1)] = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text.kind != "tokens":
            raise ValueError("text.kind must be 'tokens': sentences are read word by word")


class OrderPictureModule(nn.Module):
    def __init__(self, recipe: OrderPictureRecipe, concepts: int, words: int) -> None:
        super().__init__()
        looking = recipe.looking
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(recipe.seed)
            network = load_efficientnet_lite(looking.backbone)
            self.tower = PictureTower(
                network,
                looking.backbone,
                looking.side,
                looking.dim,
                queries=looking.queries,
                relating=looking.relating,
                concepts=concepts,
            )
            self.network = _network(recipe, concepts, words)

    def look(self, pictures: Tensor) -> tuple[Tensor, Tensor | None]:
        """Context `(pictures, dim)` and, with concepts, their highest logits `(pictures, K)`."""
        maps = self.tower.backbone.map(pictures)
        logits = self.tower.concept_logits(maps).amax(1) if self.tower.concepts else None
        return self.tower.pooled(maps).float(), logits

    def fuse(self, context: Tensor, logits: Tensor | None) -> Tensor:
        return self.network.fuse(None if logits is None else torch.sigmoid(logits.detach()), context)


def _network(recipe: OrderPictureRecipe, concepts: int, words: int) -> ConceptsOrderNetwork:
    generates = recipe.loss.generation > 0
    return ConceptsOrderNetwork(concepts, recipe.looking.dim, words, recipe.model, generates=generates)


class PictureBatch(NamedTuple):
    """Pictures are not padded: the backbone's batch norm would include the padding."""

    #: Indices of the pictures, and their random windows and colours.
    images: Annotated[Tensor, None]
    views: Annotated[Views, None]
    colours: Annotated[Tensor, None]
    captions: Captions
    mismatch: Annotated[Tensor, "captions", None]
    #: () of scheduled sampling.
    share: Tensor | None


class OrderPictureTask:
    """Validated by retrieval and, with `loss.order`, by how often a caption scores above its twin."""

    def __init__(self, recipe: OrderPictureRecipe, training: TrainingSet, corpus: Corpus, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.text = cast(
            TokenIds, text_features(recipe.text, training, also=tokens_of_captions(corpus), device=device.type)
        )
        self.vocabulary = concept_vocabulary(recipe.vocabulary, training) if recipe.vocabulary else None
        self.module = OrderPictureModule(recipe, len(self.vocabulary or ()), self.text.dim).to(device)
        self.module.tower.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        side, held_out = recipe.looking.side, corpus.split("val")
        self.data = self._read(training.corpus, round(side * MARGIN / 32) * 32)
        self.held_out = self._read(held_out, side)
        self.starts = np.searchsorted(self.data.image_of.cpu().numpy(), np.arange(len(self.data.image_ids) + 1))
        self.mirrored = mirrored_words(self.text.vocabulary).to(device)
        read = torch.cat([self.data.texts, self.mirrored[self.data.texts]]).cpu()
        #: (2, captions): an id of the caption's words, as they are and mirrored; equal captions have equal ids.
        self.string = torch.unique(read, dim=0, return_inverse=True)[1].view(2, -1).to(device)
        #: (2, images, concepts) of the training and the validation data: as they are, and mirrored.
        self.labels, self.held_out_labels = (
            concept_labels(self.vocabulary, data).to(device) if self.vocabulary else None
            for data in (self.data, self.held_out)
        )
        #: Of the training and the validation captions: ids of their twins, 0 where there is none.
        self.twins, self.held_out_twins = (
            twin_ids(data, source, self.text).to(device) if recipe.loss.order else None
            for data, source in ((self.data, training.corpus), (self.held_out, held_out))
        )
        self.lengths = caption_lengths(self.data, self.twins)

    def _read(self, corpus: Corpus, side: int) -> SentenceData:
        skipped = Skipped()
        read = squashed_pictures(corpus, (image for image in corpus if image.captions), side, skipped)
        if not read.images:
            raise DeixisError(f"no picture of corpus {corpus.name or '(unnamed)'} with captions can be read")
        captions = tokens_of_captions(read.images)
        counts = torch.tensor([len(image.captions) for image in read.images])
        return SentenceData(
            images=read.pixels.to(self.device),
            texts=torch.from_numpy(self.text.transform(captions)).to(self.device),
            image_of=torch.repeat_interleave(torch.arange(len(counts)), counts).to(self.device),
            image_ids=tuple(image.id for image in read.images),
            captions=tuple(captions),
            without_features=len(skipped),
        )

    def batches(self, epoch: int) -> Batches[PictureBatch]:
        return shuffled(len(self.data.image_ids), self.recipe.images, self.recipe.seed, epoch, self._batch)

    def _batch(
        self, epoch: int, images: NDArray[np.int64], following: object, random: np.random.Generator
    ) -> PictureBatch:
        texts, owner = some_of_each(self.starts, images, self.recipe.captions, random)
        rows, caption, image = (
            torch.from_numpy(numbers).to(self.device, non_blocking=True) for numbers in (images, texts, owner)
        )
        generator = torch.Generator(self.device).manual_seed(int(random.integers(1 << 62)))
        share = self.recipe.loss.sampled(epoch)
        views = random_views(len(images), self.recipe.looking.zoom, generator)
        flipped = (views.flip < 0)[image]
        return PictureBatch(
            rows,
            views,
            random_colours(len(images), generator),
            self._captions(caption, image, flipped, int(self.lengths[texts].max(initial=1))),
            mismatched_pictures(image, self.string[flipped.long(), caption], len(images)),
            torch.full((), share, device=self.device) if share else None,
        )

    def _captions(self, texts: Tensor, owner: Tensor, flipped: Tensor, longest: int) -> Captions:
        """The captions of the pictures, some of which are mirrored."""

        def mirror(ids: Tensor) -> Tensor:
            words = ids[texts, :longest]
            return torch.where(flipped[:, None], self.mirrored[words], words)

        return Captions(
            ids=mirror(self.data.texts),
            owner=owner,
            twins=None if self.twins is None else mirror(self.twins),
        )

    def loss(self, batch: PictureBatch, gather: Gather = compute_all) -> Loss:
        context, logits = gather(self._look, batch.images, *batch.views, batch.colours.transpose(0, 1))
        # Only the picture network runs in half precision: gradients through sentences would underflow.
        with torch.autocast(self.device.type, enabled=False):
            fused = self.module.fuse(context, logits)
            loss = order_loss(
                self.module.network, self.recipe.loss, fused, batch.captions, batch.mismatch, batch.share, gather
            )
            if logits is None or self.labels is None:
                return loss
            mirrored = batch.views.flip < 0
            named = concept_loss(logits, self.labels[mirrored.long(), batch.images].float(), "cross-entropy")
            return Loss(loss.total + self.recipe.concept_weight * named, {**loss.parts, "concepts": named})

    def _look(
        self, rows: Tensor, start: Tensor, sides: Tensor, flip: Tensor, colours: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        windows = view_pictures(self.data.images[rows], Views(start, sides, flip), self.recipe.looking.side)
        pictures = recoloured(windows, colours.transpose(0, 1))
        return self.module.look(pictures.contiguous(memory_format=torch.channels_last))

    @torch.no_grad()
    def validate(self) -> Mapping[str, float]:
        parts = torch.split(self.held_out.images, _PICTURES)
        looked = [self.module.look(normalize(part)) for part in parts]
        with torch.autocast(self.device.type, enabled=False):
            fused = torch.cat([self.module.fuse(*outputs) for outputs in looked])
            figures = order_figures(self.module.network, fused, self.held_out, self.held_out_twins)
        if self.held_out_labels is not None:
            confidences = torch.cat([logits for _, logits in looked if logits is not None]).sigmoid().cpu().numpy()
            figures["map"] = float(np.nanmean(concept_precision(confidences, self.held_out_labels[0].cpu().numpy())))
        return figures

    def describe(self, batch: PictureBatch) -> str:
        return "images " + ", ".join(self.data.image_ids[row] for row in batch.images[:5].tolist()) + ", …"

    def save(self, folder: Path) -> None:
        save_tower(self.module.tower, folder / TOWER)
        self.text.save(folder / TEXT)
        if self.vocabulary is not None:
            self.vocabulary.save(folder / VOCABULARY)


def concept_labels(vocabulary: ConceptVocabulary, data: SentenceData) -> Tensor:
    """`(2, images, concepts)`: the concepts that the captions of an image name, as they are and mirrored."""
    labels = np.zeros((2, len(data.image_ids), len(vocabulary)), bool)
    for image, caption in zip(data.image_of.tolist(), data.captions, strict=True):
        labels[0, image] |= vocabulary.labels([caption])
        labels[1, image] |= vocabulary.labels([tuple(MIRRORED_WORDS.get(word, word) for word in caption)])
    return torch.from_numpy(labels)


class OrderPicturesKind(Kind[OrderPictureRecipe]):
    recipe_type = OrderPictureRecipe
    distributed = True
    makes_features = True

    def features(self, recipe: OrderPictureRecipe, run: Path | None = None) -> list[FeatureRecipe]:
        """It learns from the pictures themselves; a run is used with the vectors of its own network."""
        return [] if run is None else [FeatureRecipe(backbone=f"{TOWER_PREFIX}{run / TOWER}", crops="squash")]

    def task(
        self, recipe: OrderPictureRecipe, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device
    ) -> OrderPictureTask:
        return OrderPictureTask(recipe, training_set(corpus), corpus, device)

    def load_model(self, folder: Path, recipe: OrderPictureRecipe, device: torch.device) -> ConceptsOrderModel:
        text, prefix = cast(TokenIds, load_text_features(folder / TEXT)), "network."
        concepts = None
        if recipe.vocabulary:
            concepts = CellConceptModel(ConceptVocabulary.load(folder / VOCABULARY), recipe.looking.dim)
        network = _network(recipe, len(concepts.vocabulary) if concepts else 0, text.dim)
        stored = read_weights(folder)
        network.load_state_dict(
            {name.removeprefix(prefix): value for name, value in stored.items() if name.startswith(prefix)}
        )
        return ConceptsOrderModel(network, text, concepts, device, uses_context=True, context=recipe.looking.dim)

    def protocols(self, evaluation: Evaluation[OrderPictureRecipe]) -> Sequence[RunProtocol]:
        protocols: list[RunProtocol] = [image_text_ranking, sentence_ranking]
        if evaluation.drawn_regions:
            protocols.append(ground_truth_region_ranking)
        if evaluation.recipe.vocabulary:
            protocols.append(predict_cell_concepts)
        return [*protocols, word_order]


def predict_cell_concepts(evaluation: Evaluation[OrderPictureRecipe]) -> Iterator[Result]:
    """Average precision of the concepts, over whole pictures and over these and the cells of the map."""
    concepts: CellConceptModel = evaluation.model.predictor
    predictors = {"whole": concepts.predict_whole, "regional": concepts.predict}
    yield concept_prediction(predictors, concepts.vocabulary, evaluation.pictures, **evaluation.details)
