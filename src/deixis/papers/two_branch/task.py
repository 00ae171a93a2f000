"""Training on images and sentences (section 5, recipes of the kind `sentences`), and what training on phrases shares.

`phrases_task.py` trains on regions and phrases (section 4), `joint_task.py` on both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from deixis.corpus import Corpus, TrainingSet, training_set
from deixis.features.centring import mean_direction
from deixis.features.feature_recipe import FeatureRecipe
from deixis.papers.two_branch.loss import LogisticRecipe, LossRecipe, RankingRecipe, make_loss
from deixis.papers.two_branch.network import EmbeddingRecipe, SimilarityNetwork, SimilarityRecipe, TwoBranchEmbedding
from deixis.text.featurizers import TextFeatures, TextRecipe, load_text_features, text_features
from deixis.text.tokens import tokens_of_captions
from deixis.training.contrastive import Contrast
from deixis.training.inputs import TEXT, check_caption_count, find_store, initial_vectors, region_recipes
from deixis.training.kind import Kind
from deixis.training.placing import rows_of
from deixis.training.recipe import Recipe
from deixis.training.run_protocols import (
    Evaluation,
    RunProtocol,
    ground_truth_region_ranking,
    image_text_ranking,
    sentence_ranking,
)
from deixis.training.sampling import PairBatch, RankingBatch
from deixis.training.sentence_pairs import SentenceSampler, SentenceSamplerRecipe, sentence_data
from deixis.training.task import Batches, Gather, Loss, compute_all
from deixis.training.validation import retrieval_figures

if TYPE_CHECKING:
    from deixis.features.store import FeatureStore
    from deixis.papers.two_branch.model import TwoBranchModel

#: Visual features processed together: 32,768 of 1,280 float32 are 168 MB.
ROWS = 1 << 15
Batch = RankingBatch | PairBatch


class TwoBranchRecipe(Recipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that recipes for sentences and for phrases share."""

    text: TextRecipe
    model: EmbeddingRecipe | SimilarityRecipe
    loss: LossRecipe
    #: Initialize the words of a recurrent branch with `text.vectors`.
    word_vectors: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = isinstance(self.model, SimilarityRecipe)
        if pairs != isinstance(self.loss, LogisticRecipe):
            raise ValueError("model.kind 'similarity' and loss.kind 'logistic' go together")
        if (self.model.recurrent is None) != (self.text.kind != "tokens"):
            raise ValueError("text.kind 'tokens' and a [model.recurrent] section go together")


class TwoBranchTask(ABC):
    """A `Task`: the network, its loss, and the visual and text features that batches index."""

    def __init__(
        self,
        recipe: TwoBranchRecipe,
        training: TrainingSet,
        text: TextFeatures,
        visual_dim: int,
        device: torch.device,
    ) -> None:
        self.recipe, self.text, self.device = recipe, text, device
        vectors = initial_vectors(recipe.text, training, text) if recipe.word_vectors else None
        self.module = TwoBranchModule(recipe, visual_dim, text.dim, vectors).to(device)

    def set_centre(self) -> None:
        """Set the mean direction of the training data's visual features, if the network centres them."""
        if self.module.network.centre is not None:
            self.module.network.centre.copy_(mean_direction(torch.split(self.visual, ROWS)))

    @property
    @abstractmethod
    def visual(self) -> Tensor:
        """Visual features of the training data."""

    @property
    @abstractmethod
    def texts(self) -> Tensor:
        """Text features, or token ids, of the training data."""

    @abstractmethod
    def sampled(self, epoch: int) -> Batches[RankingBatch] | Batches[PairBatch]:
        """The batches of an epoch as the sampler makes them."""

    def batches(self, epoch: int) -> Batches[Any]:
        loss, sampled = self.recipe.loss, self.sampled(epoch)
        if isinstance(loss, RankingRecipe) and any(loss.weights[2:]) and epoch > loss.constraints_after:
            return sampled

        def unconstrained(batch: Batch) -> Batch:
            if isinstance(batch, PairBatch):
                return batch
            return batch._replace(contrast=Contrast(*batch.contrast[:4]))

        return Batches(len(sampled), map(unconstrained, sampled))

    @abstractmethod
    def validate(self) -> Mapping[str, float]: ...

    @abstractmethod
    def describe(self, batch: Batch) -> str: ...

    def loss(self, batch: Batch, gather: Gather = compute_all) -> Loss:
        network = self.module.network
        images = gather(self._embed_images, batch.images, batch.image_mask)
        if batch.token_ids is None:
            texts = gather(self._embed_texts, batch.texts, batch.text_mask)
        else:
            texts = gather(network.embed_texts, batch.token_ids, batch.text_mask)
        if isinstance(batch, PairBatch):
            assert isinstance(network, SimilarityNetwork)
            logits = gather(network.compare, images[batch.image], texts[batch.text])
            total, parts = self.module.loss(logits, batch.labels, batch.pair_mask)
        elif batch.targets is None:
            total, parts = self.module.loss(images, texts, batch.contrast)
        else:
            candidates = images if batch.candidates is None else images[batch.candidates]
            total, parts = self.module.loss(images[batch.targets], texts, batch.contrast, candidates)
        return Loss(total, {**parts, **batch.statistics})

    def _embed_images(self, rows: Tensor, mask: Tensor | None) -> Tensor:
        return self.module.network.embed_images(rows_of(self.visual, rows).float(), mask)

    def _embed_texts(self, rows: Tensor, mask: Tensor | None) -> Tensor:
        return self.module.network.embed_texts(rows_of(self.texts, rows), mask)

    def save(self, folder: Path) -> None:
        self.text.save(folder / TEXT)


class TwoBranchModule(nn.Module):
    """The network, and the loss, which may have a temperature to learn."""

    network: TwoBranchEmbedding

    def __init__(self, recipe: TwoBranchRecipe, visual_dim: int, text_dim: int, vectors: Tensor | None = None) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(recipe.seed)
            self.network = make_network(recipe.model, visual_dim, text_dim, vectors)
            self.loss = make_loss(recipe.loss)


def make_network(
    recipe: EmbeddingRecipe, visual_dim: int, text_dim: int, vectors: Tensor | None = None
) -> TwoBranchEmbedding:
    if isinstance(recipe, SimilarityRecipe):
        return SimilarityNetwork(visual_dim, text_dim, recipe, vectors)
    return TwoBranchEmbedding(visual_dim, text_dim, recipe, vectors)


R = TypeVar("R", bound=TwoBranchRecipe)


class TwoBranchKind(Kind[R]):
    """Base class of the kinds `sentences`, `phrases` and `joint`."""

    distributed = True

    def load_model(self, folder: Path, recipe: R, device: torch.device) -> TwoBranchModel:
        from deixis.papers.two_branch.model import SimilarityModel, TwoBranchModel
        from deixis.training.runs import read_weights

        text = load_text_features(folder / TEXT, device=device.type)
        prefix = "network."
        stored = read_weights(folder)
        weights = {name.removeprefix(prefix): value for name, value in stored.items() if name.startswith(prefix)}
        # The input size is that of the image branch's first layer.
        network = make_network(recipe.model, weights["images.0.weight"].shape[1], text.dim)
        network.load_state_dict(weights)
        model_type = SimilarityModel if isinstance(recipe.model, SimilarityRecipe) else TwoBranchModel
        return model_type(network, text, device)

    def published_batch(self, recipe: R) -> Mapping[str, str]:
        return {}

    def training_sizes(self, run: Path) -> dict[str, Any]:
        from deixis.training.run_records import batch_means
        from deixis.training.runs import read_log

        return {"batch": batch_means(read_log(run))}

    def check_corpus(self, recipe: R, corpus: Corpus) -> None:
        check_caption_count(recipe.text, corpus)


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
        return "sentences of images " + ", ".join(self.data.image_ids[image] for image in images) + ", …"


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
