"""Fitting normalized CCA to stored features (sections 3 and 4): recipes of the kind `cca`.

Covariances are summed once; ridge and power are chosen on the validation split among those of the recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor

from deixis.corpus import Corpus, Image, TrainingSet, training_set
from deixis.errors import DeixisError
from deixis.features.feature_recipe import FeatureRecipe
from deixis.features.store import FeatureStore
from deixis.metrics.localization import Localized, PhraseQuery, phrase_key
from deixis.metrics.phrase_detection import evaluate_average_precision
from deixis.metrics.protocols import SUPPRESSION, query_tokens
from deixis.papers.entities_cca.cca import NormalizedCCA
from deixis.papers.entities_cca.model import CCAModel
from deixis.papers.entities_cca.stacked_embedding import StackedAuxiliaryEmbedding
from deixis.text.featurizers import TextRecipe, load_text_features, text_features
from deixis.text.tokens import tokens_of_captions
from deixis.training.inputs import TEXT, check_caption_count, find_store, region_recipes
from deixis.training.kind import Kind
from deixis.training.phrase_pairs import PhraseData, phrase_data, resample
from deixis.training.recipe import FitRecipe
from deixis.training.run_protocols import (
    Evaluation,
    RunProtocol,
    ground_truth_region_ranking,
    image_text_ranking,
    phrase_localization_and_precision,
    phrase_presence,
    sentence_ranking,
)
from deixis.training.runs import read_model
from deixis.training.sentence_pairs import SentenceData, sentence_data
from deixis.training.validation import LocalizationCheck, retrieval_figures

CCA = "cca.safetensors"
#: Pairs added together: 4,096 of 18,000 float32 are 0.3 GB.
BLOCK = 4096
#: Validation pictures on which AP-NMS is computed for every ridge and power: every phrase runs on every picture.
PRECISION_IMAGES = 150


class AuxiliaryRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The region-phrase CCA of a stacked auxiliary embedding, and the features of its regions."""

    features: FeatureRecipe
    exemplars: Annotated[int, Meta(ge=0)] = 10
    unit_regions: bool = False


class CorrelationRecipe(FitRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`exemplars`: maximum number of random pairs per phrase (Table 4); 0: all."""

    pairs: Literal["sentences", "phrases"]
    text: TextRecipe = TextRecipe()
    exemplars: Annotated[int, Meta(ge=0)] = 0
    #: Number of proposals per picture that are ranked, best first.
    regions: Annotated[int, Meta(ge=1)] = 100
    #: Normalize the features of regions to unit length.
    unit_regions: bool = False
    components: Annotated[int, Meta(ge=1)] | None = None
    ridges: Annotated[tuple[Annotated[float, Meta(ge=0)], ...], Meta(min_length=1)] = (0.01, 0.1, 1.0, 10.0)
    powers: Annotated[tuple[float, ...], Meta(min_length=1)] = (0.5, 1.0, 2.0, 4.0)
    auxiliary: AuxiliaryRecipe | None = None
    #: The validation figure that chooses ridge and power of phrases: R@1, or AP-NMS on the first pictures of the split.
    chosen_by: Literal["localization.r@1", "ap_nms"] = "localization.r@1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pairs == "sentences" and self.exemplars:
            raise ValueError("exemplars: only for pairs = 'phrases'; sentences do not repeat")
        if self.pairs == "sentences" and self.unit_regions:
            raise ValueError("unit_regions: sentences have no regions; [auxiliary] has a setting of its own")
        if self.pairs == "phrases" and self.auxiliary:
            raise ValueError("an auxiliary embedding is stacked under sentences, not under phrases")

    @property
    def learns_from_boxes(self) -> bool:
        return self.pairs == "phrases" or self.auxiliary is not None


class CorrelationFit:
    """What `deixis.training.running.fit` runs."""

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
        self.text = text_features(recipe.text, training, also=tokens_of_captions(corpus), device=device.type)

    def fit(self, say: Callable[[str], None]) -> Mapping[str, float]:
        """Sum, solve and choose; returns the figures of the validation split and `training_pairs`."""
        recipe, device = self.recipe, self._device.type
        if recipe.pairs == "phrases":
            self.cca = NormalizedCCA(recipe.components, unit_x=recipe.unit_regions, device=device)
            return self._fit_phrases(self.cca, recipe.exemplars, say)
        if recipe.auxiliary is None:
            # With more numbers than captions, their inner products are smaller than the covariance.
            captions = sum(len(image.captions) for image in self._training)
            by_pairs = device == "cpu" and self.text.dim > captions
            self.cca = NormalizedCCA(recipe.components, device=device, by_pairs=by_pairs)
        else:
            auxiliary = NormalizedCCA(unit_x=recipe.auxiliary.unit_regions, device=device)
            self._fit_phrases(auxiliary, recipe.auxiliary.exemplars, say)
            self.cca = StackedAuxiliaryEmbedding(auxiliary, recipe.components, device=device)
        blocks = _sentence_blocks(self._sentences(self._training))
        return self._fit(self.cca, blocks, self._retrieval(self.cca), "rsum", say)

    def save(self, folder: Path) -> None:
        self.cca.save(folder / CCA)
        self.text.save(folder / TEXT)

    def weights(self) -> dict[str, Tensor]:
        return {"correlations": torch.from_numpy(self.cca.correlations_.copy())}

    def parameters(self) -> int:
        stacked = [self.cca.auxiliary] if isinstance(self.cca, StackedAuxiliaryEmbedding) else []
        fitted = ("correlations_", "x_mean_", "x_projection_", "y_mean_", "y_projection_")
        return sum(getattr(cca, name).size for cca in (self.cca, *stacked) for name in fitted)

    def _fit_phrases(self, cca: NormalizedCCA, exemplars: int, say: Callable[[str], None]) -> Mapping[str, float]:
        chains = find_store(self._stores, "chains")
        data = phrase_data(self._training, chains, None, self.text, device=self._device)
        # "a man" and "the man" are one phrase: the paper's numbers of pairs are those without leading determiners.
        keys = [phrase_key(" ".join(phrase)) for phrase in data.phrases]
        phrases = [keys[string] for string in data.pair_string.tolist()]
        generator = np.random.default_rng(self.recipe.seed)
        pairs = resample(phrases, exemplars, generator) if exemplars else np.arange(len(phrases))
        blocks = _phrase_blocks(data, torch.from_numpy(pairs).to(self._device))
        return self._fit(cca, blocks, self._localization(cca), self.recipe.chosen_by, say)

    def _fit(
        self,
        cca: NormalizedCCA,
        blocks: Iterator[tuple[Tensor, Tensor]],
        check: Callable[[], Mapping[str, float]],
        decides: str,
        say: Callable[[str], None],
    ) -> Mapping[str, float]:
        """Sum the pairs, try ridges and powers, keep the best by one figure."""
        for x, y in blocks:
            cca.partial_fit(x, y)
            most = min(x.shape[1], y.shape[1])
            if cca.n_components is not None and cca.n_components > most:
                raise DeixisError(f"components = {cca.n_components}: the narrower view has {most} numbers")
        tried: list[tuple[float, float, Mapping[str, float]]] = []
        for ridge in self.recipe.ridges:
            cca.set_params(ridge=ridge).solve()
            for power in self.recipe.powers:
                cca.set_params(power=power)
                figures = check()
                tried.append((ridge, power, figures))
                say(f"ridge {ridge:g}, power {power:g}: {decides} {figures[decides]:.2f}")
        ridge, power, figures = max(tried, key=lambda trial: trial[2][decides])
        cca.set_params(ridge=ridge, power=power).solve()
        return {**figures, "ridge": ridge, "power": power, "training_pairs": float(cca.n_samples_seen_)}

    def _sentences(self, source: TrainingSet | Corpus) -> SentenceData:
        dtype = torch.float16 if self.cca.by_pairs else torch.float32
        return sentence_data(source, find_store(self._stores, "image"), self.text, device=self._device, dtype=dtype)

    def _localization(self, cca: NormalizedCCA) -> Callable[[], Mapping[str, float]]:
        chains, proposals = find_store(self._stores, "chains"), find_store(self._stores, "proposals")
        data = phrase_data(self._validation, chains, proposals, self.text, device=self._device)
        check = LocalizationCheck(data, self.recipe.regions)

        def figures() -> Mapping[str, float]:
            strings = cca.encode_y(data.strings)
            reached = check.figures(
                lambda rows: torch.from_numpy(cca.encode_x(rows)).to(self._device),
                torch.from_numpy(strings).to(self._device),
            )
            if self.recipe.chosen_by == "ap_nms":
                reached["ap_nms"] = self._precision(cca, data, strings)
            return reached

        return figures

    def _precision(self, cca: NormalizedCCA, data: PhraseData, strings: NDArray[np.float32]) -> float:
        """AP-NMS of the first validation pictures, from embedded phrase strings `(strings, components)`."""
        images = [self._validation[name] for name in data.image_ids[:PRECISION_IMAGES]]
        index_of = {phrase: index for index, phrase in enumerate(data.phrases)}
        first = (data.image_offsets[:-1] + data.drawn).tolist()
        proposals: dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]] = {}
        for index, image in enumerate(images):
            end = min(int(data.image_offsets[index + 1]), first[index] + self.recipe.regions)
            rows = slice(first[index], end)
            proposals[image.id] = data.region_boxes[rows].cpu().numpy(), cca.encode_x(data.regions[rows].float())

        def localize(image: Image, queries: Sequence[PhraseQuery]) -> Localized:
            boxes, regions = proposals[image.id]
            chosen = [index_of[tuple(query_tokens(query))] for query in queries]
            return Localized(boxes, strings[chosen] @ regions.T)

        return evaluate_average_precision(images, localize, unit="phrase", suppression=SUPPRESSION).mean

    def _retrieval(self, cca: NormalizedCCA) -> Callable[[], Mapping[str, float]]:
        data = self._sentences(self._validation)

        def figures() -> Mapping[str, float]:
            scores = cca.encode_x(data.images) @ cca.encode_y(data.texts).T
            return retrieval_figures(torch.from_numpy(scores).to(self._device), data.image_of)

        return figures


def _phrase_blocks(data: PhraseData, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for pairs in torch.split(rows, BLOCK):
        yield data.regions[data.pair_region[pairs]].float(), data.strings[data.pair_string[pairs]]


def _sentence_blocks(data: SentenceData) -> Iterator[tuple[Tensor, Tensor]]:
    for images, texts in zip(torch.split(data.image_of, BLOCK), torch.split(data.texts, BLOCK), strict=True):
        yield data.images[images].float(), texts


class CCAKind(Kind[CorrelationRecipe]):
    recipe_type = CorrelationRecipe

    def features(self, recipe: CorrelationRecipe, run: Path | None = None) -> list[FeatureRecipe]:
        if recipe.pairs == "phrases":
            return region_recipes(recipe.feature_recipe)
        return [recipe.feature_recipe, *(region_recipes(recipe.auxiliary.features) if recipe.auxiliary else [])]

    def task(
        self, recipe: CorrelationRecipe, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device
    ) -> CorrelationFit:
        return CorrelationFit(recipe, training_set(corpus), corpus, stores, device)

    def load_model(self, folder: Path, recipe: CorrelationRecipe, device: torch.device) -> CCAModel:
        cca_type = StackedAuxiliaryEmbedding if recipe.auxiliary else NormalizedCCA
        text = load_text_features(folder / TEXT, device=device.type)
        return CCAModel(cca_type.load(folder / CCA, device=device.type), text)

    def protocols(self, evaluation: Evaluation[CorrelationRecipe]) -> Sequence[RunProtocol]:
        if evaluation.recipe.pairs == "phrases":
            return [phrase_localization_and_precision, phrase_presence]
        protocols = [image_text_ranking, sentence_ranking]
        return [*protocols, ground_truth_region_ranking] if evaluation.drawn_regions else protocols

    def regions_kept(self, recipe: CorrelationRecipe) -> int:
        return recipe.regions

    def training_sizes(self, run: Path) -> dict[str, Any]:
        figures = read_model(run).report.figures
        chosen = {name: figures[name] for name in ("ridge", "power") if name in figures}
        return {"training_pairs": figures.get("training_pairs"), "chosen": chosen}

    def check_corpus(self, recipe: CorrelationRecipe, corpus: Corpus) -> None:
        check_caption_count(recipe.text, corpus)
