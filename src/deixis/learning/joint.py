"""Pictures with sentences and regions with phrases in one embedding network: recipes of the kind `joint`.

Beyond paper 1, which trains one network for each (sections 4 and 5) and says that its attempts at one for both failed.
Every step takes a batch of each; the same branches embed pictures and regions, sentences and phrases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from msgspec import Meta
from torch import nn

from deixis.corpus import Corpus, training_set
from deixis.features.recipe import FeatureRecipe
from deixis.features.store import FeatureStore
from deixis.learning.losses import LossRecipe
from deixis.learning.phrase_sampling import PhraseSamplerRecipe
from deixis.learning.phrases import PhraseRecipe, PhraseTask
from deixis.learning.sampling import SentenceSamplerRecipe
from deixis.learning.sentences import SentenceRecipe, SentenceTask
from deixis.learning.task import Batches, Loss
from deixis.learning.two_branch import Batch, TwoBranchRecipe, find_store, load_two_branch, region_recipes


class JointRecipe(TwoBranchRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`loss` and `sampler` are the sentences'; the total is their loss + `phrase_weight` × that of the phrases."""

    sampler: SentenceSamplerRecipe = SentenceSamplerRecipe()
    phrase_loss: LossRecipe
    phrase_sampler: PhraseSamplerRecipe = PhraseSamplerRecipe()
    phrase_weight: Annotated[float, Meta(gt=0)] = 1.0
    #: Proposals that are ranked, the best so many of each picture.
    regions: Annotated[int, Meta(ge=1)] = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        self.alone()  # What either of them refuses is refused here.

    @property
    def learns_from_boxes(self) -> bool:
        return True

    def alone(self) -> tuple[SentenceRecipe, PhraseRecipe]:
        """The two recipes that it joins."""
        own = {name: getattr(self, name) for name in TwoBranchRecipe.__struct_fields__}
        sentences = SentenceRecipe(**own, sampler=self.sampler)
        return sentences, PhraseRecipe(
            **(own | {"loss": self.phrase_loss}), regions=self.regions, sampler=self.phrase_sampler
        )


class JointBatch(NamedTuple):
    sentences: Batch
    phrases: Batch


class JointModule(nn.Module):
    """One network, and both losses, which may learn temperatures."""

    def __init__(self, sentences: SentenceTask, phrases: PhraseTask) -> None:
        super().__init__()
        # The phrases' one knows the mean direction of regions.
        self.network = sentences.module.network = phrases.module.network
        self.loss, self.phrase_loss = sentences.module.loss, phrases.module.loss


class JointTask:
    """Validated by retrieval and by phrase localization."""

    def __init__(self, recipe: JointRecipe, sentences: SentenceTask, phrases: PhraseTask) -> None:
        self.sentences, self.phrases, self._weight = sentences, phrases, recipe.phrase_weight
        self.module = JointModule(sentences, phrases)

    def batches(self, epoch: int) -> Batches[JointBatch]:
        """As many steps as the longer of both has batches; the other begins again."""
        steps = max(len(self.sentences.batches(0)), len(self.phrases.batches(0)))
        both = zip(*(islice(_again(task, epoch, steps), steps) for task in (self.sentences, self.phrases)), strict=True)
        return Batches(steps, map(JointBatch._make, both))

    def loss(self, batch: JointBatch) -> Loss:
        sentences, phrases = self.sentences.loss(batch.sentences), self.phrases.loss(batch.phrases)
        parts = {f"sentences.{name}": part for name, part in sentences.parts.items()}
        parts |= {f"phrases.{name}": part for name, part in phrases.parts.items()}
        return Loss(sentences.total + self._weight * phrases.total, parts)

    def validate(self) -> Mapping[str, float]:
        """The figures of both, and `both`: the mean of retrieval's six recalls and of localization's R@1."""
        figures = {**self.sentences.validate(), **self.phrases.validate()}
        return {**figures, "both": (figures["rsum"] / 6 + figures["localization.r@1"]) / 2}

    def describe(self, batch: JointBatch) -> str:
        return f"{self.sentences.describe(batch.sentences)}; {self.phrases.describe(batch.phrases)}"

    def save(self, folder: Path) -> None:
        self.sentences.save(folder)


def _again(task: SentenceTask | PhraseTask, epoch: int, steps: int) -> Iterator[Any]:
    """The batches of a task, in another order each time they begin again, none of which an earlier epoch had."""
    times = -(-steps // len(task.batches(0)))
    return chain.from_iterable(task.batches(number) for number in count(epoch * times))


RECIPE = JointRecipe
load_matcher = load_two_branch


def feature_recipes(recipe: JointRecipe) -> list[FeatureRecipe]:
    return region_recipes(recipe.feature_recipe)


def build_task(recipe: JointRecipe, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device) -> JointTask:
    training, (sentences, phrases) = training_set(corpus), recipe.alone()
    chains, proposals = find_store(stores, "chains"), find_store(stores, "proposals")
    return JointTask(
        recipe,
        SentenceTask(sentences, training, corpus, find_store(stores, "image"), device),
        PhraseTask(phrases, training, corpus, chains, proposals, device),
    )
