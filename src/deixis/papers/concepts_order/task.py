"""Training matching and generation together (section 3.4) on stored features: recipes of the kind `concepts-order`.

`features` gives the context; `concepts` names the concept network, by a recipe or a finished run. A recipe with one of
the two uses it alone. The concept network is trained once per corpus and cached; it is not part of the joint training.
With a `speaker`, any model that describes pictures, its sentences represent them ("ctx + sen"). The rows of Table 2
differ in these settings, `model.fusion`, `model.shared_words` and `loss`.

The concept network has learned the training pictures' own labels, so it predicts them better there than elsewhere. With
`concept_folds`, the concepts of each training picture come from a network that was trained without it.

Readings: the mismatched pairs of a pair are the others of its batch, so a batch has one pair more than mismatches; a
caption of the same picture, or an equal caption, is no mismatch. L_mat is a sum over a pair's mismatches, L_gen over a
sentence's words; both are averaged over a batch.

Not in the paper: with `loss.order`, captions with two roles exchanged are mismatches too. The validation figure `order`
is how often a held-out caption scores above its twin.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import msgspec
import torch
from msgspec import Meta
from torch import Tensor, nn

from deixis.corpus import Corpus, TrainingSet, training_set
from deixis.errors import DeixisError
from deixis.features.centring import mean_direction
from deixis.features.feature_recipe import FeatureRecipe
from deixis.features.store import FeatureStore
from deixis.metrics.captioning_protocol import captioning
from deixis.metrics.protocols import Pictures
from deixis.metrics.results import Result
from deixis.model import store_images
from deixis.papers.concepts_order.concept_model import ConceptModel
from deixis.papers.concepts_order.concepts import ConceptNetwork
from deixis.papers.concepts_order.concepts_task import VOCABULARY, ConceptRecipe, predicted_concepts
from deixis.papers.concepts_order.loss import mismatched_pairs
from deixis.papers.concepts_order.model import ConceptsOrderModel, spoken_ids
from deixis.papers.concepts_order.network import ConceptsOrderNetwork, OrderRecipe
from deixis.papers.concepts_order.order_training import (
    Captions,
    OrderLossRecipe,
    caption_lengths,
    order_figures,
    order_loss,
    twin_ids,
)
from deixis.text.concept_words import ConceptVocabulary
from deixis.text.featurizers import TextRecipe, TokenIds, load_text_features, text_features
from deixis.text.tokens import tokens_of_captions
from deixis.training.inputs import TEXT, find_store
from deixis.training.kind import Kind
from deixis.training.kinds import kind_of
from deixis.training.recipe import Recipe, RecipeFile
from deixis.training.run_models import load_run
from deixis.training.run_protocols import (
    Evaluation,
    RunProtocol,
    ground_truth_region_ranking,
    image_text_ranking,
    sentence_ranking,
    word_order,
)
from deixis.training.running import cached_run, recipe_of
from deixis.training.runs import CHECKPOINTS, LOG, is_finished, read_model, read_weights
from deixis.training.sampling import Indices, RankingBatch
from deixis.training.sentence_pairs import SentenceData, SentenceSampler, SentenceSamplerRecipe, sentence_data
from deixis.training.task import Batches, Gather, Loss, compute_all

#: The folder with the run of a run's speaker.
SPEAKER = "speaker"


class ConceptsOrderRecipe(Recipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: Features of the context; None: concepts alone.
    features: str | FeatureRecipe | None = None  # type: ignore[assignment]
    #: The recipe of the concept network, or a finished run of one; empty: context alone.
    concepts: str = ""
    #: "ctx + sen": a recipe or finished run that generates sentences from the same features, in place of the pictures.
    speaker: str = ""
    #: r: regions in which concepts are predicted, beside the whole picture; 0: the whole picture alone.
    regions: Annotated[int, Meta(ge=0)] = 50
    #: 1: one concept network, trained on all training pictures. n: n networks, each for one part of the training
    #: pictures and trained without it; other pictures get the concepts of the network that was trained on all.
    concept_folds: Annotated[int, Meta(ge=1)] = 1
    #: Not in the paper: append to each concept where in the picture it is most confident.
    places: bool = False
    text: TextRecipe = TextRecipe(kind="tokens")
    model: OrderRecipe = OrderRecipe()
    loss: OrderLossRecipe = OrderLossRecipe()
    #: Mismatched pairs for each matched one.
    mismatched: Annotated[int, Meta(ge=1)] = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text.kind != "tokens":
            raise ValueError("text.kind must be 'tokens': sentences are read word by word")
        if self.features is None and not self.concepts:
            raise ValueError("features, concepts: at least one of them must be named")
        if self.speaker and (self.features is None or self.concepts):
            raise ValueError("speaker: needs `features`, and its sentences replace `concepts`")
        if not self.loss.matching and not self.loss.generation:
            raise ValueError("loss: with neither matching nor generation there is nothing to learn")

    @property
    def builds_on(self) -> tuple[str, ...]:
        return (*filter(None, (self.concepts, self.speaker)), *super().builds_on)


class OrderModule(nn.Module):
    """The network, and the concept network that it uses, whose weights are fixed."""

    def __init__(
        self,
        recipe: ConceptsOrderRecipe,
        context: int,
        words: int,
        concepts: ConceptNetwork | None,
        centre: Tensor | None = None,
    ) -> None:
        super().__init__()
        count = concepts.output.out_features * _numbers(recipe) if concepts else 0
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(recipe.seed)
            self.network = make_network(recipe, count, context, words, centre)
        self.concepts = concepts.requires_grad_(False) if concepts else None


def make_network(
    recipe: ConceptsOrderRecipe, concepts: int, context: int, words: int, centre: Tensor | None = None
) -> ConceptsOrderNetwork:
    generates, spoken = recipe.loss.generation > 0, bool(recipe.speaker)
    return ConceptsOrderNetwork(
        concepts, context, words, recipe.model, generates=generates, spoken=spoken, centre=centre
    )


class OrderBatch(NamedTuple):
    #: Indices of the images, one for each caption.
    images: Annotated[Tensor, "captions"]
    captions: Captions
    mismatch: Annotated[Tensor, "captions", "captions"]
    #: Indices of the captions.
    pairs: Indices
    #: () of scheduled sampling.
    share: Tensor | None


class ConceptsOrderTask:
    """Validated by retrieval in both directions."""

    def __init__(
        self,
        recipe: ConceptsOrderRecipe,
        training: TrainingSet,
        corpus: Corpus,
        stores: Sequence[FeatureStore],
        device: torch.device,
    ) -> None:
        self.recipe, self.device = recipe, device
        self.text = text_features(recipe.text, training, also=tokens_of_captions(corpus), device=device.type)
        store = find_store(stores, "image")
        held_out = corpus.split("val")
        self.data = sentence_data(training, store, self.text, device=device)
        self.held_out = sentence_data(held_out, store, self.text, device=device)
        concepts, self.vocabulary = None, None
        self.predicted: tuple[Tensor | None, Tensor | None] = (None, None)
        if recipe.concepts:
            regions = _concept_store(stores)
            folder = cached_run(recipe.concepts, corpus, [regions], device)
            predictor = _concept_model(folder, device)
            concepts, self.vocabulary = predictor.network, predictor.vocabulary
            predicted = (
                _concepts_of(recipe, data, images, concepts, regions, device)
                for data, images in ((self.data, training.corpus), (self.held_out, held_out))
            )
            self.predicted = tuple(predicted)  # type: ignore[assignment]
            if recipe.concept_folds > 1:
                rows = _out_of_fold_concepts(recipe, self.data, corpus, folder, regions, device)
                self.predicted = (rows, self.predicted[1])
        #: Of the training and the validation data: vectors, or ids of generated sentences.
        self.context = (None, None) if recipe.features is None else (self.data.images, self.held_out.images)
        self.speaker: Path | None = None
        if recipe.speaker:
            self.speaker = cached_run(recipe.speaker, corpus, [store], device)
            speaker = load_run(self.speaker, device)
            if "describe" not in speaker.abilities:
                raise DeixisError(f"speaker: {recipe.speaker!r} does not describe pictures")
            self.context = tuple(  # type: ignore[assignment]
                spoken_ids(
                    speaker, [*store_images(store, data.image_ids)], cast(TokenIds, self.text), recipe.model.longest
                ).to(device)
                for data in (self.data, self.held_out)
            )
        context = 0 if recipe.features is None else self.data.images.shape[1]
        centre = mean_direction(torch.split(self.data.images, 4096)) if recipe.model.centred and context else None
        self.module = OrderModule(recipe, context, self.text.dim, concepts, centre).to(device)
        #: Of the training and the validation captions: ids of their twins, 0 where there is none.
        self.twins: tuple[Tensor | None, Tensor | None] = (None, None)
        if recipe.loss.order:
            self.twins = tuple(  # type: ignore[assignment]
                twin_ids(data, source, cast(TokenIds, self.text)).to(device)
                for data, source in ((self.data, training.corpus), (self.held_out, held_out))
            )
        sampler = SentenceSamplerRecipe(batch=recipe.mismatched + 1)
        self.sampler = SentenceSampler(self.data, sampler, recipe.seed)
        #: (captions,) equal for equal captions.
        self.string = torch.from_numpy(self.sampler.string).to(device)
        self._lengths = caption_lengths(self.data, self.twins[0])

    def batches(self, epoch: int) -> Batches[OrderBatch]:
        sampled, share = self.sampler.triplets(epoch), self.recipe.loss.sampled(epoch)
        sampling = torch.tensor(share, device=self.device) if share else None

        def make(batch: RankingBatch) -> OrderBatch:
            mismatch = mismatched_pairs(batch.images, self.string[batch.texts])
            return OrderBatch(batch.images, self._captions(batch), mismatch, batch.pairs, sampling)

        return Batches(len(sampled), map(make, sampled))

    def _captions(self, batch: RankingBatch) -> Captions:
        longest = max(1, int(self._lengths[batch.pairs].max()))
        return Captions(
            ids=self.data.texts[batch.texts, :longest],
            owner=torch.arange(len(batch.texts), device=self.device),
            twins=None if self.twins[0] is None else self.twins[0][batch.texts, :longest],
        )

    def _training_sources(self, rows: Tensor) -> tuple[Tensor | None, ...]:
        """Concepts and context of some pictures."""
        return tuple(None if source is None else source[rows] for source in (self.predicted[0], self.context[0]))

    def loss(self, batch: OrderBatch, gather: Gather = compute_all) -> Loss:
        network = self.module.network
        fused = gather(lambda rows: network.fuse(*self._training_sources(rows)), batch.images)
        return order_loss(network, self.recipe.loss, fused, batch.captions, batch.mismatch, batch.share, gather)

    def validate(self) -> Mapping[str, float]:
        fused = self.module.network.fuse(self.predicted[1], self.context[1])
        return order_figures(self.module.network, fused, self.held_out, self.twins[1])

    def describe(self, batch: OrderBatch) -> str:
        images = self.data.image_of.cpu()[batch.pairs[:5]].tolist()
        return "sentences of images " + ", ".join(self.data.image_ids[image] for image in images) + ", …"

    def save(self, folder: Path) -> None:
        self.text.save(folder / TEXT)
        if self.vocabulary is not None:
            self.vocabulary.save(folder / VOCABULARY)
        if self.speaker is not None:
            shutil.copytree(
                self.speaker, folder / SPEAKER, ignore=shutil.ignore_patterns(CHECKPOINTS, LOG), dirs_exist_ok=True
            )


def _concept_recipe(name: str) -> ConceptRecipe:
    recipe = recipe_of(name).recipe
    if not isinstance(recipe, ConceptRecipe):
        raise DeixisError(f"concepts: {name!r} is a recipe of the kind {recipe.kind!r}, not of a concept network")
    if kind_of(recipe.kind).makes_features and not is_finished(name):
        raise DeixisError(f"concepts: {name!r} fine-tunes its backbone; train it first, and name the folder of its run")
    return recipe


def _concept_model(folder: Path, device: torch.device) -> ConceptModel:
    learned = _concept_recipe(str(folder))
    model = kind_of(learned.kind).load_model(folder, learned, device)
    assert isinstance(model, ConceptModel)
    return model


def _concept_store(stores: Sequence[FeatureStore]) -> FeatureStore:
    """The features of the concept network: with regions, or the context's."""
    with_regions = [store for store in stores if "regions" in store.plan.arrays]
    return find_store(with_regions, "proposals") if with_regions else find_store(stores, "image")


def _out_of_fold_concepts(
    recipe: ConceptsOrderRecipe,
    data: SentenceData,
    corpus: Corpus,
    run: Path,
    regions: FeatureStore,
    device: torch.device,
) -> Tensor:
    """Concepts of the training pictures `(images, concepts)`, each by a network that was trained without it.

    Picture i is in part i mod `concept_folds`. All networks have the vocabulary of `run`.
    """
    learned = _concept_recipe(str(run))
    vocabulary = msgspec.structs.replace(learned.vocabulary, file=str(run / VOCABULARY))
    learned = msgspec.structs.replace(learned, vocabulary=vocabulary)
    images = {image.id: image for image in corpus}
    rows = None
    for fold in range(recipe.concept_folds):
        chosen = range(fold, len(data.image_ids), recipe.concept_folds)
        left_out = [images[data.image_ids[row]] for row in chosen]
        ids = {image.id for image in left_out}
        rest = corpus.with_images(image for image in corpus if image.id not in ids)
        folder = cached_run(RecipeFile("", learned), rest, [regions], device)
        network = _concept_model(folder, device).network
        predicted = predicted_concepts(network, left_out, regions, recipe.regions, device, places=recipe.places)
        rows = predicted.new_empty(len(data.image_ids), predicted.shape[1]) if rows is None else rows
        rows[torch.tensor(chosen, device=predicted.device)] = predicted
    assert rows is not None
    return rows


def _numbers(recipe: ConceptsOrderRecipe) -> int:
    """Numbers per concept: its confidence, and with `places` where it is."""
    return 3 if recipe.places else 1


def _concepts_of(
    recipe: ConceptsOrderRecipe,
    data: SentenceData,
    source: Corpus,
    network: ConceptNetwork,
    regions: FeatureStore,
    device: torch.device,
) -> Tensor:
    images = {image.id: image for image in source}
    chosen = [images[image_id] for image_id in data.image_ids]
    return predicted_concepts(network, chosen, regions, recipe.regions, device, places=recipe.places)


class ConceptsOrderKind(Kind[ConceptsOrderRecipe]):
    recipe_type = ConceptsOrderRecipe
    distributed = True

    def features(self, recipe: ConceptsOrderRecipe, run: Path | None = None) -> list[FeatureRecipe]:
        features = [] if recipe.features is None else [recipe.feature_recipe]
        if recipe.concepts:
            concepts = _concept_recipe(recipe.concepts)
            concept_features = kind_of(concepts.kind).features(concepts, Path(recipe.concepts))
            if any(wanted.regions is None for wanted in concept_features) and (
                recipe.regions or features not in ([], concept_features)
            ):
                raise DeixisError(
                    f"concepts: {recipe.concepts!r} has no regions: set regions = 0, and give the context its features"
                )
            features += concept_features if concept_features != features else []
        return features

    def task(
        self, recipe: ConceptsOrderRecipe, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device
    ) -> ConceptsOrderTask:
        return ConceptsOrderTask(recipe, training_set(corpus), corpus, stores, device)

    def load_model(self, folder: Path, recipe: ConceptsOrderRecipe, device: torch.device) -> ConceptsOrderModel:
        text = cast(TokenIds, load_text_features(folder / TEXT))
        stored = read_weights(folder)
        concepts = None
        if recipe.concepts:
            vocabulary = ConceptVocabulary.load(folder / VOCABULARY)
            predictor = ConceptNetwork.of(_below("concepts.", stored))
            concepts = ConceptModel(predictor, vocabulary, recipe.regions, device, places=recipe.places)
        speaker = load_run(folder / SPEAKER, device) if recipe.speaker else None
        count = len(concepts.vocabulary) * _numbers(recipe) if concepts else 0
        network = _filled(recipe, count, text.dim, _below("network.", stored))
        uses_context = recipe.features is not None
        return ConceptsOrderModel(network, text, concepts, device, uses_context=uses_context, speaker=speaker)

    def protocols(self, evaluation: Evaluation[ConceptsOrderRecipe]) -> Sequence[RunProtocol]:
        generated = [evaluate_generator] if evaluation.recipe.loss.generation else []
        generated += [evaluate_speaker] if evaluation.recipe.speaker else []
        regions = [ground_truth_region_ranking] if evaluation.drawn_regions else []
        return [image_text_ranking, sentence_ranking, *generated, *regions, word_order]

    def pictures(
        self, recipe: ConceptsOrderRecipe, corpus: Corpus, split: str | None, stores: Sequence[FeatureStore]
    ) -> Pictures:
        """Whole pictures for the context, regions for the concepts."""
        regions = _concept_store(stores) if recipe.concepts else None
        if regions is not None and "regions" not in regions.plan.arrays:
            regions = None
        return Pictures(corpus, split, find_store(stores, "image"), regions=regions, learned_from_boxes=False)


def evaluate_generator(evaluation: Evaluation[Any]) -> Iterator[Result]:
    """The generated sentences compared with people's captions, and the perplexity at the end of the training."""
    captions = tokens_of_captions(training_set(evaluation.corpus))
    result = captioning(evaluation.model, evaluation.pictures, captions, **evaluation.details)
    figures = read_model(evaluation.run).report.figures
    training = {name: figures[name] for name in ("perplexity",) if name in figures}
    yield msgspec.structs.replace(result, metrics={**result.metrics, "training": training})


def evaluate_speaker(evaluation: Evaluation[Any]) -> Iterator[Result]:
    """The sentences that represent the pictures ("ctx + sen") compared with people's captions."""
    captions = tokens_of_captions(training_set(evaluation.corpus))
    yield captioning(evaluation.model.speaker, evaluation.pictures, captions, **evaluation.details)


def _filled(
    recipe: ConceptsOrderRecipe, concepts: int, words: int, weights: Mapping[str, Tensor]
) -> ConceptsOrderNetwork:
    """The network of a recipe with its weights, which determine the size of the context."""
    context = weights.get("fusion.context.weight")
    network = make_network(recipe, concepts, 0 if context is None else context.shape[1], words)
    network.load_state_dict(weights)
    return network


def _below(prefix: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
