"""Matching and generation together (paper 3, section 3.4): recipes of the kind `concepts-order`.

`features` gives the context, `concepts` the recipe, or a finished run, of the concept network; a recipe that names one
of the two learns from it alone. The concept network is trained once for a corpus and kept in the cache: it is no part
of the joint learning. Rows of Table 2 differ by `features`, `concepts`, `model.fusion`, `model.shared_words` and
`loss`.

Readings: the mismatched pairs of a pair are the others of its batch, so a batch has one pair more than there are
mismatches; a caption of the same picture, or an equal one, is none. L_mat and L_gen are sums over a pair's mismatches
and over a sentence's words, both meaned over the pairs of a batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, cast

import msgspec
import torch
from msgspec import Meta
from torch import Tensor, nn

from deixis.corpus import Corpus, TrainingSet, training_set
from deixis.errors import DeixisError
from deixis.features.recipe import FeatureRecipe
from deixis.features.store import FeatureStore
from deixis.files import cache_folder
from deixis.learning.checks import retrieval_figures
from deixis.learning.concepts import VOCABULARY, ConceptRecipe, load_concepts, predicted_concepts
from deixis.learning.concepts import feature_recipes as concept_features
from deixis.learning.data import SentenceData, sentence_data
from deixis.learning.losses import Contrast, Direction
from deixis.learning.recipe import Recipe, RecipeFile, check_recipe, load_recipe
from deixis.learning.run_records import make_run_plan
from deixis.learning.running import run_recipe
from deixis.learning.runs import is_finished, read_plan, read_weights
from deixis.learning.sampling import RankingBatch, SentenceSampler, SentenceSamplerRecipe
from deixis.learning.task import Loss, SizedBatches
from deixis.learning.two_branch import TEXT, find_store, fitted_text
from deixis.models.concepts import ConceptMatcher, ConceptNetwork
from deixis.models.concepts_order import ConceptsOrderNetwork, OrderRecipe
from deixis.models.order_matcher import DescribingOrderMatcher, OrderMatcher
from deixis.text.concepts import ConceptVocabulary
from deixis.text.features import TextRecipe, TokenIds, load_text_features

#: Prefixes of the weights in a run: what is learned, and the concept network it stands on.
NETWORK, CONCEPTS = "network.", "concepts."


class OrderLossRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Eq. 4. Without `generation` there is no generator."""

    margin: Annotated[float, Meta(gt=0)] = 0.2
    #: λ.
    generation: Annotated[float, Meta(ge=0)] = 1.0
    #: Scheduled sampling: share of the words read that are the model's own, reached in even steps by the last of
    #: `sampling_epochs`; the first epoch has none.
    sampling: Annotated[float, Meta(ge=0, le=1)] = 0.0
    sampling_epochs: Annotated[int, Meta(ge=2)] = 10

    def sampled(self, epoch: int) -> float:
        return self.sampling * min(1.0, (epoch - 1) / (self.sampling_epochs - 1))


class ConceptsOrderRecipe(Recipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: Of the context; None: concepts alone.
    features: str | FeatureRecipe | None = None  # type: ignore[assignment]
    #: The recipe of the concept network, or a finished run of one; empty: context alone.
    concepts: str = ""
    #: r: regions in which concepts are looked for, beside the whole picture.
    regions: Annotated[int, Meta(ge=1)] = 50
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


class OrderModule(nn.Module):
    """The network, and the concept network it stands on, whose weights stay."""

    def __init__(self, recipe: ConceptsOrderRecipe, context: int, words: int, concepts: ConceptNetwork | None) -> None:
        super().__init__()
        count = concepts.output.out_features if concepts else 0
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(recipe.seed)
            self.network = make_network(recipe, count, context, words)
        self.concepts = concepts.requires_grad_(False) if concepts else None


def make_network(recipe: ConceptsOrderRecipe, concepts: int, context: int, words: int) -> ConceptsOrderNetwork:
    return ConceptsOrderNetwork(concepts, context, words, recipe.model, generates=recipe.loss.generation > 0)


class ConceptsOrderTask:
    """Validated by retrieval in both directions on the validation split."""

    def __init__(
        self,
        recipe: ConceptsOrderRecipe,
        training: TrainingSet,
        corpus: Corpus,
        stores: Sequence[FeatureStore],
        device: torch.device,
    ) -> None:
        self.recipe, self.device = recipe, device
        self.text = fitted_text(recipe.text, training, corpus, device)
        store = find_store(stores, "image")
        held_out = corpus.split("val")
        self.data = sentence_data(training, store, self.text, device=device)
        self.held_out = sentence_data(held_out, store, self.text, device=device)
        concepts, self.vocabulary = None, None
        self.predicted: tuple[Tensor | None, Tensor | None] = (None, None)
        if recipe.concepts:
            regions = find_store(stores, "proposals")
            concepts, self.vocabulary = load_concepts(concept_run(recipe.concepts, corpus, regions, device))
            self.predicted = tuple(  # type: ignore[assignment]
                _concepts_of(data, images, concepts, regions, recipe.regions, device)
                for data, images in ((self.data, training.corpus), (self.held_out, held_out))
            )
        context = 0 if recipe.features is None else self.data.images.shape[1]
        self.module = OrderModule(recipe, context, self.text.dim, concepts).to(device)
        sampler = SentenceSamplerRecipe(batch=recipe.mismatched + 1)
        self.sampler = SentenceSampler(self.data, sampler, recipe.seed)

    def batches(self, epoch: int) -> SizedBatches[RankingBatch]:
        return self.sampler.triplets(epoch)

    def _sources(self, data: SentenceData, predicted: Tensor | None, rows: Tensor) -> tuple[Tensor | None, ...]:
        """Concepts and context of some pictures."""
        context = None if self.recipe.features is None else data.images[rows]
        return None if predicted is None else predicted[rows], context

    def loss(self, batch: RankingBatch) -> Loss:
        network, settings = self.module.network, self.recipe.loss
        fused = network.fuse(*self._sources(self.data, self.predicted[0], batch.images))
        ids = self.data.texts[batch.texts][:, : self.recipe.model.longest]
        ids = ids[:, : int((ids != 0).sum(1).max())]
        images, texts = nn.functional.normalize(fused), network.embed_texts(ids)
        matching = structured_ranking(images, texts, batch.contrast, settings.margin) / len(ids)
        if network.generator is None:
            return Loss(matching, {"matching": matching})
        share = settings.sampled(batch.contrast.epoch)
        pictures = fused[batch.contrast.image_to_text.anchor]
        if share:
            losses = network.generator.sampled_negative_log_likelihood(pictures, ids, share)
        else:
            losses = network.generator.negative_log_likelihood(pictures, ids)
        told = losses.mean()
        return Loss(matching + settings.generation * told, {"matching": matching, "generation": told})

    def validate(self) -> Mapping[str, float]:
        network, data = self.module.network, self.held_out
        rows = torch.arange(len(data.images), device=self.device)
        images = network.embed_images(*self._sources(data, self.predicted[1], rows))
        texts = torch.cat([network.embed_texts(part) for part in torch.split(data.texts, 4096)])
        return retrieval_figures(images @ texts.T, data.image_of)

    def describe(self, batch: RankingBatch) -> str:
        images = self.data.image_of.cpu()[batch.pairs[:5]].tolist()
        return "sentences of images " + ", ".join(self.data.image_ids[number] for number in images) + ", …"

    def save(self, folder: Path) -> None:
        self.text.save(folder / TEXT)
        if self.vocabulary is not None:
            self.vocabulary.save(folder / VOCABULARY)


def structured_ranking(images: Tensor, texts: Tensor, contrast: Contrast, margin: float) -> Tensor:
    """L_mat of section 3.4: Σ_ik max(0, m − s_ii + s_ik) + max(0, m − s_ii + s_ki), over the mismatched pairs.

    Args:
        images, texts: unit rows; s are their cosines.
        contrast: who matches whom, and who does not.
    """
    # Under mixed precision too, half precision would blur the cosines.
    with torch.autocast(images.device.type, enabled=False):
        full = torch.promote_types(images.dtype, torch.float32)
        cosines = images.to(full) @ texts.to(full).T
    total = cosines.new_zeros(())
    for table, direction in ((cosines, contrast.image_to_text), (cosines.T, contrast.text_to_image)):
        total = total + _hinges(table, direction, margin).sum()
    return total


def _hinges(cosines: Tensor, direction: Direction, margin: float) -> Tensor:
    """`(pairs, candidates)`, 0 where a candidate is no mismatch."""
    matched = cosines[direction.anchor, direction.positive]
    hinges = nn.functional.relu(margin - matched[:, None] + cosines[direction.anchor])
    return hinges.masked_fill(~direction.negative, 0.0)


def concept_run(name: str, corpus: Corpus, regions: FeatureStore, device: torch.device) -> Path:
    """The finished run of a concept network: the one named, or that of a recipe, trained now unless it is kept."""
    file = _concept_recipe(name)
    if is_finished(name):
        return Path(name)
    plan = make_run_plan(file.recipe, corpus, [regions])
    folder = cache_folder() / "runs" / hashlib.sha256(msgspec.json.encode(plan)).hexdigest()[:32]
    run_recipe(file, corpus, [regions], folder, device)
    return folder


def _concept_recipe(name: str) -> RecipeFile:
    file = RecipeFile("", check_recipe(dict(read_plan(name).recipe), name)) if is_finished(name) else load_recipe(name)
    if not isinstance(file.recipe, ConceptRecipe):
        raise DeixisError(f"concepts: {name!r} is a recipe of the kind {file.recipe.kind!r}, not of a concept network")
    return file


def _concepts_of(
    data: SentenceData,
    source: Corpus,
    network: ConceptNetwork,
    regions: FeatureStore,
    count: int,
    device: torch.device,
) -> Tensor:
    images = {image.id: image for image in source}
    chosen = [images[image_id] for image_id in data.image_ids]
    return predicted_concepts(network, chosen, regions, count, device)


RECIPE = ConceptsOrderRecipe


def feature_recipes(recipe: ConceptsOrderRecipe) -> list[FeatureRecipe]:
    wanted = [] if recipe.features is None else [recipe.feature_recipe]
    if recipe.concepts:
        wanted += concept_features(cast(ConceptRecipe, _concept_recipe(recipe.concepts).recipe))
    return wanted


def build_task(
    recipe: ConceptsOrderRecipe, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device
) -> ConceptsOrderTask:
    return ConceptsOrderTask(recipe, training_set(corpus), corpus, stores, device)


def load_matcher(folder: Path, recipe: ConceptsOrderRecipe, device: torch.device) -> OrderMatcher:
    text = cast(TokenIds, load_text_features(folder / TEXT))
    stored = read_weights(folder)
    weights = {name.removeprefix(NETWORK): value for name, value in stored.items() if name.startswith(NETWORK)}
    concepts = None
    if recipe.concepts:
        vocabulary = ConceptVocabulary.load(folder / VOCABULARY)
        predictor = ConceptNetwork(stored[f"{CONCEPTS}output.weight"].shape[1], len(vocabulary))
        predictor.load_state_dict(
            {name.removeprefix(CONCEPTS): value for name, value in stored.items() if name.startswith(CONCEPTS)}
        )
        concepts = ConceptMatcher(predictor, vocabulary, recipe.regions, device)
    context = 0 if recipe.features is None else weights["fusion.context.weight"].shape[1]
    network = make_network(recipe, len(concepts.vocabulary) if concepts else 0, context, text.dim)
    network.load_state_dict(weights)
    kind = DescribingOrderMatcher if network.generator else OrderMatcher
    return kind(network, text, concepts, device, uses_context=bool(context))
