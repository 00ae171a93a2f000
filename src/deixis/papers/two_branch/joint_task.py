"""One embedding network for image-sentence and region-phrase pairs: recipes of the kind `joint`.

Not in the paper, which trains a network for each (sections 4 and 5) and reports that training one for both failed. Here
all layers are shared except batch norm: most regions of a batch are background, so shared statistics would fit neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from msgspec import Meta
from torch import Tensor, nn

from deixis.corpus import Corpus, training_set
from deixis.features.feature_recipe import FeatureRecipe
from deixis.features.store import FeatureStore
from deixis.papers.two_branch.loss import LossRecipe
from deixis.papers.two_branch.model import JointModel
from deixis.papers.two_branch.network import TwoBranchEmbedding
from deixis.papers.two_branch.phrase_sampling import PhraseSamplerRecipe
from deixis.papers.two_branch.phrases_task import PhraseRecipe, PhraseTask
from deixis.papers.two_branch.task import (
    Batch,
    SentenceRecipe,
    SentenceTask,
    TwoBranchKind,
    TwoBranchRecipe,
    make_network,
)
from deixis.training.inputs import find_store, region_recipes
from deixis.training.run_protocols import (
    Evaluation,
    RunProtocol,
    ground_truth_region_ranking,
    image_text_ranking,
    phrase_localization,
    phrase_presence,
    sentence_ranking,
)
from deixis.training.runs import read_weights
from deixis.training.sentence_pairs import SentenceSamplerRecipe
from deixis.training.task import Batches, Gather, Loss, SizedBatches, compute_all

#: Names of the weights that only sentences use.
NORMS, CENTRE = "sentence_norms.", "sentence_centre"


class JointRecipe(TwoBranchRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`loss` and `sampler` are the sentences'; the total is their loss + `phrase_weight` × that of the phrases."""

    sampler: SentenceSamplerRecipe = SentenceSamplerRecipe()
    phrase_loss: LossRecipe
    phrase_sampler: PhraseSamplerRecipe = PhraseSamplerRecipe()
    phrase_weight: Annotated[float, Meta(gt=0)] = 1.0
    #: Number of proposals per picture that are ranked, best first.
    regions: Annotated[int, Meta(ge=1)] = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        self.alone()  # Checks both recipes.

    @property
    def learns_from_boxes(self) -> bool:
        return True

    def alone(self) -> tuple[SentenceRecipe, PhraseRecipe]:
        """The two recipes that it joins."""
        shared = {name: getattr(self, name) for name in TwoBranchRecipe.__struct_fields__}
        sentences = SentenceRecipe(**shared, sampler=self.sampler)
        return sentences, PhraseRecipe(
            **(shared | {"loss": self.phrase_loss}), regions=self.regions, sampler=self.phrase_sampler
        )


class JointBatch(NamedTuple):
    """A batch of each kind; None where a step has none."""

    sentences: Batch | None
    phrases: Batch | None


class JointModule(nn.Module):
    """The shared network, the batch norms of sentences, and both losses, which may have temperatures to learn."""

    def __init__(self, sentences: SentenceTask, phrases: PhraseTask) -> None:
        super().__init__()
        self.network = phrases.module.network
        whole = sentences.module.network
        self.sentence_norms = share_layers(whole, self.network)
        self.register_buffer("sentence_centre", whole.centre)
        self.loss, self.phrase_loss = sentences.module.loss, phrases.module.loss


def share_layers(network: TwoBranchEmbedding, other: TwoBranchEmbedding) -> nn.ModuleDict:
    """Replace the layers of a network by those of another, except its batch norms, which are returned."""
    network.encoder, norms = other.encoder, nn.ModuleDict()
    for side, branch, layers in (("images", network.images, other.images), ("texts", network.texts, other.texts)):
        for index, layer in enumerate(layers):
            if isinstance(layer, nn.BatchNorm1d):
                norms[side] = branch[index]
            else:
                branch[index] = layer
    return norms


class JointTask:
    """Validated by retrieval and by phrase localization."""

    def __init__(self, recipe: JointRecipe, sentences: SentenceTask, phrases: PhraseTask) -> None:
        self.sentences, self.phrases, self._weight = sentences, phrases, recipe.phrase_weight
        self.module = JointModule(sentences, phrases)

    def batches(self, epoch: int) -> Batches[JointBatch]:
        """Every pair once. The kind with more batches sets the number of steps; the other's are spread evenly."""
        both = self.sentences.batches(epoch), self.phrases.batches(epoch)
        steps = max(map(len, both))
        return Batches(steps, map(JointBatch, *(spread_evenly(batches, steps) for batches in both)))

    def loss(self, batch: JointBatch, gather: Gather = compute_all) -> Loss:
        total = torch.zeros((), device=self.phrases.device)
        parts: dict[str, Tensor | float] = {}
        for name, task, part_batch, weight in (
            ("sentences", self.sentences, batch.sentences, 1.0),
            ("phrases", self.phrases, batch.phrases, self._weight),
        ):
            if part_batch is not None:
                loss = task.loss(part_batch, gather)
                total = total + weight * loss.total
                parts |= {f"{name}.{part}": value for part, value in loss.parts.items()}
        return Loss(total, parts)

    def validate(self) -> Mapping[str, float]:
        """The figures of both, and `both`: the mean of retrieval's six recalls and of localization's R@1."""
        figures = {**self.sentences.validate(), **self.phrases.validate()}
        return {**figures, "both": (figures["rsum"] / 6 + figures["localization.r@1"]) / 2}

    def describe(self, batch: JointBatch) -> str:
        both = (self.sentences, batch.sentences), (self.phrases, batch.phrases)
        return "; ".join(task.describe(part) for task, part in both if part is not None)

    def save(self, folder: Path) -> None:
        self.sentences.save(folder)


def spread_evenly(batches: SizedBatches[Batch], steps: int) -> Iterator[Batch | None]:
    """The batches with None between them, `steps` items in all, spread evenly.

    >>> list(spread_evenly(["a", "b"], 5))
    [None, None, 'a', None, 'b']
    """
    coming, count = iter(batches), len(batches)
    for step in range(steps):
        yield next(coming) if (step + 1) * count // steps > step * count // steps else None


class JointKind(TwoBranchKind[JointRecipe]):
    recipe_type = JointRecipe

    def features(self, recipe: JointRecipe, run: Path | None = None) -> list[FeatureRecipe]:
        return region_recipes(recipe.feature_recipe)

    def task(
        self, recipe: JointRecipe, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device
    ) -> JointTask:
        training, (sentences, phrases) = training_set(corpus), recipe.alone()
        chains, proposals = find_store(stores, "chains"), find_store(stores, "proposals")
        return JointTask(
            recipe,
            SentenceTask(sentences, training, corpus, find_store(stores, "image"), device),
            PhraseTask(phrases, training, corpus, chains, proposals, device),
        )

    def load_model(self, folder: Path, recipe: JointRecipe, device: torch.device) -> JointModel:
        phrases = super().load_model(folder, recipe, device)
        stored = read_weights(folder)
        whole = make_network(recipe.model, stored["network.images.0.weight"].shape[1], phrases.text.dim)
        share_layers(whole, phrases.network).load_state_dict(
            {name.removeprefix(NORMS): value for name, value in stored.items() if name.startswith(NORMS)}
        )
        if whole.centre is not None:
            whole.centre.copy_(stored[CENTRE])
        return JointModel(whole, phrases, device)

    def protocols(self, evaluation: Evaluation[JointRecipe]) -> Sequence[RunProtocol]:
        protocols = [phrase_localization, phrase_presence, image_text_ranking, sentence_ranking]
        return [*protocols, ground_truth_region_ranking] if evaluation.drawn_regions else protocols

    def regions_kept(self, recipe: JointRecipe) -> int:
        return recipe.regions
