"""What training on sentences (section 5) and on phrases (section 4) have in common.

`sentences_task.py` and `phrases_task.py` add the pairs, the sampler and the validation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from deixis.corpus import Corpus, TrainingSet
from deixis.features.centring import mean_direction
from deixis.papers.two_branch.loss import LogisticRecipe, LossRecipe, RankingRecipe, make_loss
from deixis.papers.two_branch.network import EmbeddingRecipe, SimilarityNetwork, SimilarityRecipe, TwoBranchEmbedding
from deixis.text.featurizers import TextFeatures, TextRecipe, load_text_features
from deixis.training.contrastive import Contrast
from deixis.training.inputs import TEXT, check_caption_count, initial_vectors
from deixis.training.kind import Kind
from deixis.training.placing import rows_of
from deixis.training.recipe import Recipe
from deixis.training.sampling import PairBatch, RankingBatch
from deixis.training.task import Batches, Gather, Loss, compute_all

if TYPE_CHECKING:
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

    def _embed_images(self, rows: Tensor, mask: Tensor) -> Tensor:
        return self.module.network.embed_images(rows_of(self.visual, rows).float(), mask)

    def _embed_texts(self, rows: Tensor, mask: Tensor) -> Tensor:
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
