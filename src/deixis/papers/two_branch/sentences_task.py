"""Training on images and sentences (section 5): recipes of the kind `sentences`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from deixis.corpus import Corpus, TrainingSet, training_set
from deixis.features.feature_recipe import FeatureRecipe
from deixis.features.store import FeatureStore
from deixis.papers.two_branch.loss import RankingRecipe
from deixis.papers.two_branch.network import SimilarityNetwork, SimilarityRecipe
from deixis.papers.two_branch.task import Batch, TwoBranchKind, TwoBranchRecipe, TwoBranchTask
from deixis.text.featurizers import text_features
from deixis.text.tokens import tokens_of_captions
from deixis.training.inputs import find_store, region_recipes
from deixis.training.run_protocols import (
    Evaluation,
    RunProtocol,
    ground_truth_region_ranking,
    image_text_ranking,
    sentence_ranking,
)
from deixis.training.sampling import PairBatch, RankingBatch
from deixis.training.sentence_pairs import SentenceSampler, SentenceSamplerRecipe, sentence_data
from deixis.training.task import Batches
from deixis.training.validation import retrieval_figures


class SentenceRecipe(TwoBranchRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sampler: SentenceSamplerRecipe = SentenceSamplerRecipe()
    #: Also evaluate region-phrase ranking on ground-truth boxes. They are not used for training.
    drawn_regions: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.loss, RankingRecipe):
            _, _, among_images, among_texts = self.loss.weights
            if among_images:
                raise ValueError("loss.weights: sentences have no neighbours among images, so λ₃ must be 0")
            if among_texts and self.sampler.neighbourhood != "sampling":
                raise ValueError("loss.weights: λ₄ needs sampler.neighbourhood = 'sampling'")


class SentenceTask(TwoBranchTask):
    """Validated by retrieval in both directions."""

    def __init__(
        self,
        recipe: SentenceRecipe,
        training: TrainingSet,
        corpus: Corpus,
        store: FeatureStore,
        device: torch.device,
    ) -> None:
        text = text_features(recipe.text, training, also=tokens_of_captions(corpus), device=device.type)
        super().__init__(recipe, training, text, store.image_vectors().shape[1], device)
        self.data = sentence_data(training, store, text, device=device, may_stay=True)
        self.held_out = sentence_data(corpus.split("val"), store, text, device=device)
        self.set_centre()
        token_ids = self.data.texts if recipe.model.recurrent else None
        self.sampler = SentenceSampler(self.data, recipe.sampler, recipe.seed, token_ids)

    @property
    def visual(self) -> Tensor:
        return self.data.images

    @property
    def texts(self) -> Tensor:
        return self.data.texts

    def sampled(self, epoch: int) -> Batches[RankingBatch] | Batches[PairBatch]:
        pairs = isinstance(self.module.network, SimilarityNetwork)
        return self.sampler.pairs(epoch) if pairs else self.sampler.triplets(epoch)

    def validate(self) -> Mapping[str, float]:
        network, held_out = self.module.network, self.held_out
        if isinstance(network, SimilarityNetwork):
            return retrieval_figures(network.score_all(held_out.images, held_out.texts), held_out.image_of)
        texts = torch.cat([network.embed_texts(part) for part in torch.split(held_out.texts, 4096)])
        return retrieval_figures(network.embed_images(held_out.images) @ texts.T, held_out.image_of)

    def describe(self, batch: Batch) -> str:
        images = self.data.image_of.cpu()[batch.pairs[:5]].tolist()
        return "sentences of images " + ", ".join(self.data.image_ids[number] for number in images) + ", …"


class SentencesKind(TwoBranchKind[SentenceRecipe]):
    recipe_type = SentenceRecipe

    def features(self, recipe: SentenceRecipe, run: Path | None = None) -> list[FeatureRecipe]:
        return region_recipes(recipe.feature_recipe) if recipe.drawn_regions else [recipe.feature_recipe]

    def task(
        self, recipe: SentenceRecipe, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device
    ) -> SentenceTask:
        return SentenceTask(recipe, training_set(corpus), corpus, find_store(stores, "image"), device)

    def protocols(self, evaluation: Evaluation[SentenceRecipe]) -> Sequence[RunProtocol]:
        protocols = [image_text_ranking]
        if not isinstance(evaluation.recipe.model, SimilarityRecipe):
            protocols.append(sentence_ranking)
        if evaluation.drawn_regions or evaluation.recipe.drawn_regions:
            protocols.append(ground_truth_region_ranking)
        return protocols
