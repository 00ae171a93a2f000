"""The protocols by which finished runs are evaluated, over the measurements of `deixis.metrics`.

Each takes an `Evaluation` and yields results, usually one. A kind of training lists those that apply to its runs
(`Kind.protocols`); protocols of a single paper are in that paper's folder. Measurements are imported when they are
made: training needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from deixis.training.inputs import find_store
from deixis.training.kinds import kind_of
from deixis.training.recipe import FitRecipe

if TYPE_CHECKING:
    import torch

    from deixis.corpus import Corpus
    from deixis.features.store import FeatureStore
    from deixis.metrics.protocols import Pictures, ResultFields
    from deixis.metrics.results import Result

R = TypeVar("R", bound=FitRecipe)


@dataclass(frozen=True, eq=False)
class Evaluation(Generic[R]):
    """A finished run, and the split of a corpus that it is scored on.

    Args:
        stores: feature stores of the corpus, as `Kind.features` asks for them.
        details: what every result says of the run: its recipe, its seed, readings of the papers.
        folds: parts of the images that retrieval ranks within.
        drawn_regions: rank ground-truth regions and phrases even if the recipe does not ask for it.
    """

    run: Path
    recipe: R
    model: Any
    corpus: Corpus
    split: str
    stores: Sequence[FeatureStore]
    device: torch.device
    details: ResultFields
    folds: int = 1
    drawn_regions: bool = False

    @cached_property
    def pictures(self) -> Pictures:
        """The images of the split with the features that retrieval uses."""
        return kind_of(self.recipe.kind).pictures(self.recipe, self.corpus, self.split, self.stores)

    @cached_property
    def localized_pictures(self) -> Pictures:
        """The images of the split with the proposals among which phrases are localized."""
        from deixis.metrics.protocols import Pictures

        return Pictures(
            self.corpus,
            self.split,
            find_store(self.stores, "proposals"),
            learned_from_boxes=True,
            regions_kept=kind_of(self.recipe.kind).regions_kept(self.recipe),
        )


#: A protocol yields one result; none where the corpus or the machine lacks what it needs.
RunProtocol = Callable[[Evaluation[Any]], "Iterable[Result]"]


def image_text_ranking(evaluation: Evaluation[Any]) -> Iterator[Result]:
    """Images for every caption, and captions for every image."""
    from deixis.metrics.protocols import retrieval

    yield retrieval(evaluation.model, evaluation.pictures, folds=evaluation.folds, **evaluation.details)


def sentence_ranking(evaluation: Evaluation[Any]) -> Iterator[Result]:
    """The other captions of the same image for every caption; for models that embed texts."""
    from deixis.metrics.protocols import sentence_retrieval

    yield sentence_retrieval(evaluation.model, evaluation.pictures, **evaluation.details)


def phrase_localization(evaluation: Evaluation[Any]) -> Iterator[Result]:
    """The proposals of its image for every phrase."""
    yield _localization(evaluation)


def phrase_localization_and_precision(evaluation: Evaluation[Any]) -> Iterator[Result]:
    """The proposals of its image for every phrase, with average precision over all images."""
    yield _localization(evaluation, precision=True)


def _localization(evaluation: Evaluation[Any], *, precision: bool = False) -> Result:
    from deixis.metrics.localization import PhraseQuery
    from deixis.metrics.protocols import localization, query_tokens

    pictures = evaluation.localized_pictures
    phrases = {
        tuple(query_tokens(PhraseQuery(caption, phrase)))
        for image in pictures.images
        for caption in image.captions
        for phrase in caption.phrases
    }
    # Embedding all phrases at once is much faster than image by image.
    evaluation.model.prepare_texts(sorted(phrases))
    return localization(
        evaluation.model, pictures, recall_at=(1, 5, 10, 100), precision=precision, **evaluation.details
    )


def phrase_presence(evaluation: Evaluation[Any]) -> Iterator[Result]:
    """Whether phrases are in pictures, by the score of the best proposal."""
    from deixis.metrics.presence import BestRegion
    from deixis.metrics.protocols import presence

    yield presence(BestRegion(evaluation.model), evaluation.localized_pictures, **evaluation.details)


def ground_truth_region_ranking(evaluation: Evaluation[Any]) -> Iterator[Result]:
    """Phrases for every ground-truth region, and regions for every phrase (HM-LSTM, Table 4)."""
    from deixis.metrics.protocols import Pictures, region_phrase_ranking

    boxes = evaluation.recipe.learns_from_boxes
    store = find_store(evaluation.stores, "chains")
    pictures = Pictures(evaluation.corpus, evaluation.split, store, learned_from_boxes=boxes)
    yield region_phrase_ranking(evaluation.model, pictures, **evaluation.details)


def word_order(evaluation: Evaluation[Any]) -> Iterator[Result]:
    """A caption against the same words with two roles exchanged. Without a parser there are no such captions."""
    from deixis.metrics.word_order import order_accuracy
    from deixis.text.parsing import ParserMissing
    from deixis.text.twins import corpus_twins

    try:
        twins = corpus_twins(evaluation.corpus.split(evaluation.split))
    except ParserMissing:
        return
    if twins:
        yield order_accuracy(evaluation.model, evaluation.pictures, twins, **evaluation.details)


def has_ground_truth_regions(stores: Sequence[FeatureStore]) -> bool:
    """Whether one of the stores has features of the merged ground-truth boxes."""
    return any((store.plan.provenance.get("regions") or {}).get("boxes") == "chains" for store in stores)
