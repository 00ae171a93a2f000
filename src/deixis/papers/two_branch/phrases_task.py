"""Training on regions and phrases (section 4): recipes of the kind `phrases`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from deixis.corpus import Corpus, TrainingSet, training_set
from deixis.features.feature_recipe import FeatureRecipe
from deixis.features.store import FeatureStore
from deixis.metrics.localization import phrase_key
from deixis.papers.two_branch.loss import RankingRecipe
from deixis.papers.two_branch.network import SimilarityNetwork, SimilarityRecipe
from deixis.papers.two_branch.phrase_sampling import PhraseSampler, PhraseSamplerRecipe
from deixis.papers.two_branch.task import Batch, TwoBranchKind, TwoBranchRecipe, TwoBranchTask
from deixis.text.featurizers import text_features
from deixis.text.tokens import tokens_of_captions
from deixis.training.inputs import find_store, region_recipes
from deixis.training.phrase_pairs import PositivePool, phrase_data, positive_recipe, resample
from deixis.training.run_protocols import Evaluation, RunProtocol, phrase_localization, phrase_presence
from deixis.training.sampling import PairBatch, RankingBatch
from deixis.training.task import Batches
from deixis.training.validation import LocalizationCheck


class PhraseRecipe(TwoBranchRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: Number of proposals per picture that are ranked, best first.
    regions: Annotated[int, Meta(ge=1)] = 200
    sampler: PhraseSamplerRecipe = PhraseSamplerRecipe()
    #: More boxes to take positives from; None: the ranked proposals alone.
    positive_pool: PositivePool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        constrained = isinstance(self.loss, RankingRecipe) and any(self.loss.weights[2:])
        if constrained and self.sampler.neighbourhood != "sampling":
            raise ValueError("loss.weights: λ₃ and λ₄ need sampler.neighbourhood = 'sampling'")
        if self.positive_pool is not None and self.sampler.positives == "single":
            raise ValueError("positive_pool: sampler.positives = 'single' uses the ground-truth box alone")

    @property
    def learns_from_boxes(self) -> bool:
        return True


class PhraseTask(TwoBranchTask):
    """Validated by phrase localization among the proposals."""

    def __init__(
        self,
        recipe: PhraseRecipe,
        training: TrainingSet,
        corpus: Corpus,
        chains: FeatureStore,
        proposals: FeatureStore,
        device: torch.device,
        positives: FeatureStore | None = None,
    ) -> None:
        text = text_features(recipe.text, training, also=tokens_of_captions(corpus), device=device.type)
        super().__init__(recipe, training, text, proposals.plan.arrays["regions"].shape[0], device)
        self.data = phrase_data(training, chains, proposals, text, positives=positives, device=device, may_stay=True)
        self.held_out = phrase_data(corpus.split("val"), chains, proposals, text, device=device)
        self.check = LocalizationCheck(self.held_out, recipe.regions)
        self.set_centre()
        token_ids = self.data.strings if recipe.model.recurrent else None
        rows = None
        if recipe.sampler.exemplars is not None:
            keys = [phrase_key(" ".join(phrase)) for phrase in self.data.phrases]
            phrases = [keys[string] for string in self.data.pair_string.tolist()]
            rows = resample(phrases, recipe.sampler.exemplars, np.random.default_rng(recipe.seed))
        self.sampler = PhraseSampler(self.data, recipe.sampler, recipe.seed, token_ids, rows)

    @property
    def visual(self) -> Tensor:
        return self.data.regions

    @property
    def texts(self) -> Tensor:
        return self.data.strings

    def sampled(self, epoch: int) -> Batches[RankingBatch] | Batches[PairBatch]:
        pairs = isinstance(self.module.network, SimilarityNetwork)
        return self.sampler.pairs(epoch) if pairs else self.sampler.triplets(epoch)

    def validate(self) -> Mapping[str, float]:
        network = self.module.network
        strings = torch.cat([network.embed_texts(part) for part in torch.split(self.held_out.strings, 4096)])
        if isinstance(network, SimilarityNetwork):
            return self.check.figures(network.embed_images, strings, network.compare)
        return self.check.figures(network.embed_images, strings)

    def describe(self, batch: Batch) -> str:
        images = self.data.pair_image.cpu()[batch.pairs[:5]].tolist()
        return "phrases of images " + ", ".join(self.data.image_ids[image] for image in images) + ", …"


class PhrasesKind(TwoBranchKind[PhraseRecipe]):
    recipe_type = PhraseRecipe

    def features(self, recipe: PhraseRecipe, run: Path | None = None) -> list[FeatureRecipe]:
        pool = recipe.positive_pool
        further = [] if pool is None or run is not None else [positive_recipe(recipe.feature_recipe, pool)]
        return [*region_recipes(recipe.feature_recipe), *further]

    def task(
        self, recipe: PhraseRecipe, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device
    ) -> PhraseTask:
        chains, proposals = find_store(stores, "chains"), find_store(stores, "proposals")
        positives = None if recipe.positive_pool is None else find_store(stores, "positives")
        return PhraseTask(recipe, training_set(corpus), corpus, chains, proposals, device, positives)

    def protocols(self, evaluation: Evaluation[PhraseRecipe]) -> Sequence[RunProtocol]:
        # `presence` scores every phrase with every region of all pictures, too many pairs for the similarity network.
        if isinstance(evaluation.recipe.model, SimilarityRecipe):
            return [phrase_localization]
        return [phrase_localization, phrase_presence]

    def published_batch(self, recipe: PhraseRecipe) -> Mapping[str, str]:
        """Section 4.5, for batches of 100 pairs."""
        if recipe.sampler.batch != 100:
            return {}
        if isinstance(recipe.model, SimilarityRecipe):
            return {"pairs": "2,138"}
        return {"triplets": "5,378" if recipe.sampler.neighbourhood == "none" else "10,756"}

    def regions_kept(self, recipe: PhraseRecipe) -> int:
        return recipe.regions
