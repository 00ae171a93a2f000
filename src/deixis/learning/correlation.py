"""Normalized CCA on stored features (paper 0, sections 3 and 4; the CCA rows of paper 1): recipes of the kind `cca`.

Nothing is descended: covariances are summed once, and ridge and exponent are chosen on the validation split among
those that the recipe names, each tried from the same sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from deixis.corpus import Corpus, TrainingSet, training_set
from deixis.features.recipe import FeatureRecipe
from deixis.features.store import FeatureStore
from deixis.learning.checks import LocalizationCheck, retrieval_figures
from deixis.learning.data import PhraseData, SentenceData, phrase_data, sentence_data
from deixis.learning.recipe import FitRecipe
from deixis.learning.two_branch import TEXT, find_store, fitted_text, region_recipes
from deixis.models.cca import NormalizedCCA
from deixis.models.matchers import CorrelationMatcher
from deixis.models.resampling import resample
from deixis.models.stacked_embedding import StackedAuxiliaryEmbedding
from deixis.text.features import TextRecipe, load_text_features

CCA = "cca.safetensors"
#: Pairs whose rows are gathered together: 4,096 of 18,000 float32 are 0.3 GB.
BLOCK = 4096


class AuxiliaryRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The region-phrase CCA under a stacked auxiliary embedding, already chosen, and the features of its regions."""

    features: FeatureRecipe
    exemplars: Annotated[int, Meta(ge=0)] = 10
    ridge: float = 0.01
    power: float = 1.0


class CorrelationRecipe(FitRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`exemplars`: keep so many random pairs of each phrase (Table 4 of paper 0); 0 keeps all."""

    learns_from_boxes: ClassVar[bool] = True

    pairs: Literal["sentences", "phrases"]
    text: TextRecipe = TextRecipe()
    exemplars: Annotated[int, Meta(ge=0)] = 0
    #: Proposals that are ranked, the best so many of each picture.
    regions: Annotated[int, Meta(ge=1)] = 100
    components: Annotated[int, Meta(ge=1)] | None = None
    ridges: tuple[float, ...] = (0.001, 0.01, 0.1, 1.0)
    powers: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    auxiliary: AuxiliaryRecipe | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pairs == "sentences" and self.exemplars:
            raise ValueError("exemplars are of phrases; sentences do not repeat")
        if self.pairs == "phrases" and self.auxiliary:
            raise ValueError("an auxiliary embedding is stacked under sentences, not under phrases")


class CorrelationFit:
    """What `deixis.learning.trainer.fit` runs."""

    def __init__(
        self,
        recipe: CorrelationRecipe,
        training: TrainingSet,
        corpus: Corpus,
        stores: Sequence[FeatureStore],
        device: torch.device,
    ) -> None:
        self.recipe, self._training, self._validation = recipe, training, corpus.split("val")
        self._stores, self._device = stores, device
        self.text = fitted_text(recipe.text, training, corpus, device)

    def fit(self, say: Callable[[str], None]) -> Mapping[str, float]:
        """Sum, solve and choose; the figures are those of the validation split, `training_pairs` beside them."""
        recipe = self.recipe
        if recipe.pairs == "phrases":
            pairs = self._phrases()
            count = self._sum(self._new(), _phrase_blocks(pairs, self._kept(pairs, recipe.exemplars)))
            figures = self._choose(self._localization(), "localization.r@1", say)
        else:
            data = self._sentences(self._training)
            count = self._sum(self._new(), _sentence_blocks(data))
            figures = self._choose(self._retrieval(), "rsum", say)
        return {**figures, "training_pairs": float(count)}

    def save(self, folder: Path) -> None:
        self.cca.save(folder / CCA)
        self.text.save(folder / TEXT)

    def weights(self) -> dict[str, Tensor]:
        return {"correlations": torch.from_numpy(self.cca.correlations_.copy())}

    def _new(self) -> NormalizedCCA:
        components, device = self.recipe.components, self._device.type
        if self.recipe.auxiliary is None:
            return NormalizedCCA(components, device=device)
        chosen = self.recipe.auxiliary
        auxiliary = NormalizedCCA(ridge=chosen.ridge, power=chosen.power, device=device)
        pairs = self._phrases()
        for x, y in _phrase_blocks(pairs, self._kept(pairs, chosen.exemplars)):
            auxiliary.partial_fit(x, y)
        return StackedAuxiliaryEmbedding(auxiliary, components, device=device)

    def _sum(self, cca: NormalizedCCA, blocks: Iterator[tuple[Tensor, Tensor]]) -> int:
        self.cca, count = cca, 0
        for x, y in blocks:
            cca.partial_fit(x, y)
            count += len(x)
        return count

    def _choose(
        self, check: Callable[[], Mapping[str, float]], decides: str, say: Callable[[str], None]
    ) -> Mapping[str, float]:
        """Try ridges and exponents, keep the best by the deciding figure."""
        tried: list[tuple[float, float, Mapping[str, float]]] = []
        solved = None
        for ridge, power in product(self.recipe.ridges, self.recipe.powers):
            self.cca.set_params(ridge=ridge, power=power)
            if ridge != solved:
                self.cca.solve()
                solved = ridge
            figures = check()
            tried.append((ridge, power, figures))
            say(f"ridge {ridge:g}, power {power:g}: {decides} {figures[decides]:.2f}")
        ridge, power, figures = max(tried, key=lambda trial: trial[2][decides])
        self.cca.set_params(ridge=ridge, power=power)
        self.cca.solve()
        return {**figures, "ridge": ridge, "power": power}

    def _phrases(self) -> PhraseData:
        return self._phrase_data(self._training)

    def _phrase_data(self, source: TrainingSet | Corpus) -> PhraseData:
        chains, proposals = find_store(self._stores, "chains"), find_store(self._stores, "proposals")
        return phrase_data(source, chains, proposals, self.text, device=self._device)

    def _sentences(self, source: TrainingSet | Corpus) -> SentenceData:
        return sentence_data(
            source, find_store(self._stores, "image"), self.text, device=self._device, dtype=torch.float32
        )

    def _kept(self, pairs: PhraseData, exemplars: int) -> Tensor:
        strings = pairs.pair_string.cpu().numpy()
        generator = np.random.default_rng(self.recipe.seed)
        kept = resample(strings.tolist(), exemplars, generator) if exemplars else np.arange(len(strings))
        return torch.from_numpy(kept).to(self._device)

    def _localization(self) -> Callable[[], Mapping[str, float]]:
        data = self._phrase_data(self._validation)
        check = LocalizationCheck(data, self.recipe.regions)

        def figures() -> Mapping[str, float]:
            strings = torch.from_numpy(self.cca.encode_y(data.strings)).to(self._device)
            return check.figures(lambda rows: torch.from_numpy(self.cca.encode_x(rows)).to(self._device), strings)

        return figures

    def _retrieval(self) -> Callable[[], Mapping[str, float]]:
        data = self._sentences(self._validation)

        def figures() -> Mapping[str, float]:
            scores = self.cca.encode_x(data.images) @ self.cca.encode_y(data.texts).T
            return retrieval_figures(torch.from_numpy(scores).to(self._device), data.image_of)

        return figures


def _phrase_blocks(data: PhraseData, kept: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for pairs in torch.split(kept, BLOCK):
        yield data.regions[data.pair_region[pairs]].float(), data.strings[data.pair_string[pairs]]


def _sentence_blocks(data: SentenceData) -> Iterator[tuple[Tensor, Tensor]]:
    for captions in torch.split(torch.arange(len(data.texts), device=data.texts.device), BLOCK):
        yield data.images[data.image_of[captions]].float(), data.texts[captions]


RECIPE = CorrelationRecipe


def feature_recipes(recipe: CorrelationRecipe) -> list[FeatureRecipe]:
    if recipe.pairs == "phrases":
        return region_recipes(recipe.feature_recipe)
    return [recipe.feature_recipe, *(region_recipes(recipe.auxiliary.features) if recipe.auxiliary else [])]


def load_matcher(folder: Path, recipe: CorrelationRecipe, device: torch.device) -> CorrelationMatcher:
    kind = StackedAuxiliaryEmbedding if recipe.auxiliary else NormalizedCCA
    text = load_text_features(folder / TEXT, device=device.type)
    return CorrelationMatcher(kind.load(folder / CCA, device=device.type), text)


def build_task(
    recipe: CorrelationRecipe, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device
) -> CorrelationFit:
    return CorrelationFit(recipe, training_set(corpus), corpus, stores, device)
