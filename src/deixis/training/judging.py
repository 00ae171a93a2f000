"""A finished run under the protocols that its kind calls for, as result records that name the rows they reproduce."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from deixis.base.base_task import BaseRecipe
from deixis.corpus import Corpus
from deixis.errors import DeixisError
from deixis.features.store import FeatureStore
from deixis.metrics.concept_prediction import concept_prediction
from deixis.metrics.localization import PhraseQuery
from deixis.metrics.mention_localization import mention_localization
from deixis.metrics.paper_tables import paper_tables
from deixis.metrics.presence import BestRegion
from deixis.metrics.protocols import (
    Pictures,
    localization,
    presence,
    query_tokens,
    region_phrase_ranking,
    retrieval,
    sentence_retrieval,
)
from deixis.metrics.results import Recipe as RecipeReference
from deixis.metrics.results import Result, flatten
from deixis.metrics.word_order import order_accuracy
from deixis.model import Encodes, LocalizesMentions, Scores, Tokens
from deixis.papers.concepts_order.concepts import CellConceptMatcher, ConceptMatcher
from deixis.papers.dvsa.model import AlignmentMatcher
from deixis.papers.dvsa.protocols import judge_aligner, judge_captioner
from deixis.papers.entities_cca.model import CombinedMatcher
from deixis.papers.hm_lstm.correspondence_quality import correspondence_quality
from deixis.text.chunker import Chunker
from deixis.text.parsing import ParserMissing
from deixis.text.twins import corpus_twins
from deixis.training.feature_model import Embedding
from deixis.training.inputs import find_store
from deixis.training.kinds import kind_of
from deixis.training.recipe import FitRecipe
from deixis.training.recipe_reference import reference
from deixis.training.run_models import load_matcher, read_recipe
from deixis.training.run_records import batch_means
from deixis.training.runs import read_log, read_model

#: Kinds whose matchers score a picture with a sentence by its regions.
BY_REGIONS = frozenset({"alignment", "hm-lstm"})
#: In the metrics of a run's first result: what it was trained with, beside what was scored.
TRAINING_SIZES = ("training_pairs", "batch")
#: Kinds of the papers that ask whether the order of words counts.
BY_ORDER = frozenset({"captioner", "concepts-order", "order-pictures"})


@dataclasses.dataclass(frozen=True)
class Combination:
    """A row that two runs make together: eq. 2 of paper 0, eq. 8 of paper 1."""

    row: str
    #: Names of the recipes.
    sentences: str
    phrases: str
    region_weight: float
    gamma: float
    squared: bool


def judge(
    run: str | Path,
    corpus: Corpus,
    stores: Sequence[FeatureStore],
    device: torch.device,
    *,
    split: str = "test",
    folds: int = 1,
    drawn_regions: bool = False,
) -> list[Result]:
    """Score a run on a split: retrieval and sentence to sentence, or phrase localization and presence.

    Args:
        folds: of the retrieval; two on the 2,000 test images of COCO-mini is the 1K protocol.
        drawn_regions: also rank drawn regions and phrases (paper 2, Table 4) where the recipe does not ask for it.
    """
    recipe, matcher = read_recipe(run), load_matcher(run, device)
    told: Any = {"recipe": reference(recipe), "seed": recipe.seed, "readings": recipe.readings}
    results: list[Result] = []
    if isinstance(matcher, LocalizesMentions):
        own = recipe.grounding.model if isinstance(recipe, BaseRecipe) else recipe.model  # type: ignore[attr-defined]
        results.append(mention_localization(matcher, corpus, split, regions=own.regions, **told))
        if not isinstance(matcher, Scores):
            return [_with_rows(result, recipe.rows) for result in results]
    if isinstance(matcher, ConceptMatcher):
        pictures = Pictures(corpus, split, find_store(stores, "proposals"), learned_from_boxes=False)
        whole = ConceptMatcher(matcher.network, matcher.vocabulary, 0, device)
        predictors = {"whole": whole.predict, "regional": matcher.predict}
        return [_with_rows(concept_prediction(predictors, matcher.vocabulary, pictures, **told), recipe.rows)]
    of_phrases = recipe.kind == "phrases" or getattr(recipe, "pairs", None) == "phrases"
    if of_phrases or recipe.kind == "joint":
        count = recipe.regions  # type: ignore[attr-defined]
        pictures = Pictures(corpus, split, find_store(stores, "proposals"), learned_from_boxes=True, regions_kept=count)
        _remember_phrases(matcher, pictures)
        found = localization(matcher, pictures, recall_at=(1, 5, 10, 100), precision=recipe.kind == "cca", **told)
        results.append(found)
        if not isinstance(matcher, Scores):
            # A network on every pair of phrase and region of all pictures: too many pairs for a figure beside.
            results.append(presence(BestRegion(matcher), pictures, **told))
    if not of_phrases:
        boxes = recipe.learns_from_boxes
        pictures = retrieval_pictures(recipe, corpus, split, stores)
        if recipe.kind == "captioner":
            results += judge_captioner(run, matcher, pictures, corpus, stores, told)
        results.append(retrieval(matcher, pictures, folds=folds, **told))
        if isinstance(matcher, AlignmentMatcher):
            results += judge_aligner(matcher, corpus, split, find_store(stores, "proposals"), told)
        if isinstance(matcher, Encodes) and not isinstance(matcher, Scores):
            results.append(sentence_retrieval(matcher, pictures, **told))
        # Aligners and captioners rank drawn regions wherever there are some, but not who wants the picture beside them.
        chains = any((each.plan.provenance.get("regions") or {}).get("boxes") == "chains" for each in stores)
        alone = recipe.kind in ("alignment", "captioner") and not getattr(recipe, "context", False)
        if drawn_regions or getattr(recipe, "drawn_regions", chains and alone):
            drawn = Pictures(corpus, split, find_store(stores, "chains"), learned_from_boxes=boxes)
            results.append(region_phrase_ranking(matcher, drawn, **told))
            if recipe.kind == "hm-lstm" and recipe.alternation.rounds:  # type: ignore[attr-defined]
                results.append(correspondence_quality(run, corpus, **told))
        if isinstance(concepts := getattr(matcher, "concepts", None), CellConceptMatcher):
            predictors = {"whole": concepts.predict_whole, "regional": concepts.predict}
            results.append(concept_prediction(predictors, concepts.vocabulary, pictures, **told))
        if recipe.kind in BY_ORDER:
            results += _judge_order(matcher, corpus.split(split), pictures, told)
    results[0] = msgspec.structs.replace(results[0], metrics={**results[0].metrics, **_training_sizes(run)})
    return [_with_rows(result, recipe.rows) for result in results]


def _training_sizes(run: str | Path) -> dict[str, Any]:
    """What stands beside a paper's: training pairs of a CCA, the mean counts of a network's batches."""
    figures = read_model(run).report.figures
    sizes = dict(zip(TRAINING_SIZES, (figures.get("training_pairs"), batch_means(read_log(run))), strict=True))
    return {name: value for name, value in sizes.items() if value}


def retrieval_pictures(recipe: FitRecipe, corpus: Corpus, split: str, stores: Sequence[FeatureStore]) -> Pictures:
    """The pictures of a split with the features that a matcher of whole pictures and sentences was trained on."""
    by_regions = recipe.kind in BY_REGIONS or getattr(recipe, "pairs", None) == "regions"
    regions = find_store(stores, "proposals") if getattr(recipe, "concepts", "") else None
    store = find_store(stores, "proposals" if by_regions else "image")
    kept = recipe.regions if recipe.kind == "hm-lstm" else None  # type: ignore[attr-defined]
    boxes = recipe.learns_from_boxes
    return Pictures(
        corpus,
        split,
        store,
        regions=regions,
        learned_from_boxes=boxes,
        # Features that a run makes itself come from the network that it trained.
        backbone_saw_boxes=boxes and kind_of(recipe.kind).makes_features,
        regions_kept=kept,
    )


def _judge_order(matcher: Any, split: Corpus, pictures: Pictures, told: dict[str, Any]) -> list[Result]:
    """Order, where some of the split's captions have twins; none without them and a parser to make them with."""
    try:
        twins = corpus_twins(split)
    except ParserMissing:
        return []
    return [order_accuracy(matcher, pictures, twins, **told)] if twins else []


def judge_combined(
    sentences: str | Path,
    phrases: str | Path,
    corpus: Corpus,
    stores: Sequence[FeatureStore],
    device: torch.device,
    combination: Combination,
    *,
    split: str = "test",
) -> Result:
    """Retrieval by whole pictures and sentences and by their regions and phrases together (`CombinedMatcher`).

    The phrases of a sentence are those that the caption chunker finds.
    """
    whole, parts = read_recipe(sentences), read_recipe(phrases)
    first, second = load_matcher(sentences, device), load_matcher(phrases, device)
    for matcher, run in ((first, sentences), (second, phrases)):
        if not isinstance(matcher, Embedding) or isinstance(matcher, Scores):
            raise DeixisError(f"{run} has no space of its own in which distances could be taken")
    combined = CombinedMatcher(
        first,
        second,
        phrase_finder(),
        region_weight=combination.region_weight,
        gamma=combination.gamma,
        squared=combination.squared,
        device=device,
    )
    pictures = Pictures(
        corpus,
        split,
        find_store(stores, "image"),
        regions=find_store(stores, "proposals"),
        learned_from_boxes=True,
        regions_kept=parts.regions,  # type: ignore[attr-defined]
    )
    weights = (combination.region_weight, combination.gamma, combination.squared)
    settings = [reference(whole).hash, reference(parts).hash, *weights]
    digest = hashlib.sha256(msgspec.json.encode(settings)).hexdigest()
    told = RecipeReference(f"{whole.name} + {parts.name}", digest)
    return retrieval(combined, pictures, recipe=told, seed=whole.seed, rows=[combination.row])


def phrase_finder() -> Callable[[Sequence[Tokens]], list[list[Tokens]]]:
    """The phrases that the caption chunker finds in tokenized sentences."""
    chunker = Chunker.load()

    def find(texts: Sequence[Tokens]) -> list[list[Tokens]]:
        spans = chunker.phrases_of(texts)
        return [[tuple(text[start:end]) for start, end in own] for text, own in zip(texts, spans, strict=True)]

    return find


def _with_rows(result: Result, rows: Sequence[str]) -> Result:
    """The result with those rows of the papers' tables that it has the figures of."""
    names = {name for name, _ in flatten(result.metrics)}
    own = []
    for name in rows:
        table = paper_tables().get(name) or paper_tables()[name.rpartition("/")[0]]
        keys = table.keys
        if table.one_run:
            keys = tuple(f"{row.at}.{key}" if row.at else key for row in table.rows for key in keys)
        if any(key in names for key in keys):
            own.append(name)
    return msgspec.structs.replace(result, rows=tuple(own))


def _remember_phrases(matcher: Any, pictures: Pictures) -> None:
    """Have every phrase of the split encoded at once."""
    strings = {
        tuple(query_tokens(PhraseQuery(caption, phrase)))
        for image in pictures.images
        for caption in image.captions
        for phrase in caption.phrases
    }
    matcher.prepare_phrases(sorted(strings))
