"""A model under the papers' protocols: retrieval, sentence to sentence, phrase localization, phrase presence.

A model is any object with the methods of `deixis.model.Model` that a protocol needs. Each function returns the result
of one split. Its statement of box supervision comes from the feature store's provenance and from the caller.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypedDict, Unpack

import msgspec
import numpy as np

from deixis.corpus.boxes import box_array, merge
from deixis.corpus.records import Box, Corpus, Image
from deixis.errors import DeixisError
from deixis.features.store import FeatureStore
from deixis.metrics.localization import Localized, Localizer, PhraseQuery, evaluate_localization
from deixis.metrics.phrase_detection import evaluate_average_precision
from deixis.metrics.presence import DetectsPresence, evaluate_presence
from deixis.metrics.ranking import TIES, evaluate_ranking, evaluate_sentences
from deixis.metrics.region_phrase_ranking import evaluate_region_phrases, region_phrases
from deixis.metrics.results import BoxSupervision, Protocol, Recipe, Result, corpus_reference, make_result
from deixis.metrics.score_blocks import EmbeddingScores, FunctionScores, tie_tolerance
from deixis.metrics.score_blocks import Scores as ScoreMatrix
from deixis.metrics.text_blind import baseline_figures, text_blind_localizations
from deixis.model import ImageFeatures, Mention, Model, Tokens, has_own_score, regions_of, store_images
from deixis.text.tokens import tokens_of
from deixis.vision.reading import read_picture

#: IoU above which non-maximum suppression drops a region before average precision is computed.
SUPPRESSION = 0.5


class ResultFields(TypedDict, total=False):
    """Fields of a result beside its figures; see `deixis.metrics.results.Result`."""

    rows: Sequence[str]
    recipe: Recipe | None
    seed: int | None
    readings: Sequence[str]


class Pictures:
    """The images of one split, and their features, read from the store's files when used.

    Args:
        corpus: the whole corpus.
        split: the split to evaluate; None for all images.
        store: features of whole pictures, and of regions unless `regions` is given.
        regions: another store with the regions.
        learned_from_boxes: whether the model was trained on annotated boxes.
        backbone_saw_boxes: whether the features' backbone was, if their provenance does not say so.
        regions_kept: use the first so many regions of each picture; None uses all.
    """

    def __init__(
        self,
        corpus: Corpus,
        split: str | None,
        store: FeatureStore,
        *,
        regions: FeatureStore | None = None,
        learned_from_boxes: bool,
        backbone_saw_boxes: bool = False,
        regions_kept: int | None = None,
    ) -> None:
        self.reference = corpus_reference(corpus, split)
        self.images = corpus.images if split is None else corpus.split(split).images
        self._store, self._regions = store, regions
        self._learned_from_boxes, self._backbone_saw_boxes = learned_from_boxes, backbone_saw_boxes
        self._regions_kept = regions_kept
        self.parameters = {"features": store.fingerprint[:16]}
        if regions is not None:
            self.parameters["region_features"] = regions.fingerprint[:16]

    def features(self, image: Image) -> ImageFeatures:
        return self._cut(next(store_images(self._store, [image.id], regions=self._regions)))

    def all_features(self) -> list[ImageFeatures]:
        stored = store_images(self._store, (image.id for image in self.images), regions=self._regions)
        return [self._cut(features) for features in stored]

    def _cut(self, features: ImageFeatures) -> ImageFeatures:
        if self._regions_kept is None or features.regions is None or features.boxes is None:
            return features
        first_regions = slice(self._regions_kept)
        return replace(features, regions=features.regions[first_regions], boxes=features.boxes[first_regions])

    def captions(self) -> tuple[list[tuple[str, ...]], list[int]]:
        """The tokens of all captions, image by image, and the index of each caption's image."""
        pairs = [(tokens_of(caption), index) for index, image in enumerate(self.images) for caption in image.captions]
        return [tokens for tokens, _ in pairs], [image_index for _, image_index in pairs]

    def box_supervision(self, upper_bound: float | None = None) -> BoxSupervision:
        """The statement of box supervision, from the stores' provenance.

        Args:
            upper_bound: that of the proposals, where it was measured.
        """
        origin = (self._regions or self._store).plan.provenance
        regions = origin.get("regions") or {}
        supervision = boxes_seen(
            (origin.get("backbone", "(unnamed)"), self._backbone_saw_boxes or bool(origin.get("backbone_saw_boxes"))),
            (regions["boxes"], bool(regions.get("saw_boxes"))) if regions else None,
            self._learned_from_boxes,
        )
        count = None if upper_bound is None else self._regions_kept or regions.get("count")
        return msgspec.structs.replace(supervision, regions=count, upper_bound=upper_bound)


def retrieval(model: Model, pictures: Pictures, *, folds: int = 1, **fields: Unpack[ResultFields]) -> Result:
    """Images for every caption and captions for every image (two-branch, 5.4): `image_to_text`, `text_to_image`.

    A model with its own `score` is ranked by it, any other by the cosine of its embeddings.
    """
    start = time.monotonic()
    captions, owners = pictures.captions()
    scores = _scores(model, pictures.all_features(), captions)
    ranking = evaluate_ranking(scores, np.array(owners, np.int64), folds=folds)
    counts = {"images": len(pictures.images), "captions": len(captions)}
    parameters = {"folds": folds, "tie_tolerance": tie_tolerance(scores)}
    return _result("image-text ranking", TIES, pictures, parameters, ranking.as_dict(), counts, start, fields)


def sentence_retrieval(model: Model, pictures: Pictures, **fields: Unpack[ResultFields]) -> Result:
    """The other captions of the same image for every caption (two-branch, section 5.5): `sentence_to_sentence`."""
    start = time.monotonic()
    captions, owners = pictures.captions()
    embeddings = model.embed_texts(captions)
    scores = EmbeddingScores(embeddings, embeddings)
    figures = evaluate_sentences(scores, np.array(owners, np.int64))
    counts = {"images": len(pictures.images), "captions": len(captions), "queries": figures.queries}
    metrics = {"sentence_to_sentence": figures.as_dict()}
    parameters = {"tie_tolerance": tie_tolerance(scores)}
    return _result("sentence-to-sentence ranking", TIES, pictures, parameters, metrics, counts, start, fields)


def region_phrase_ranking(model: Model, pictures: Pictures, **fields: Unpack[ResultFields]) -> Result:
    """Phrases for every annotated region and regions for every phrase (HM-LSTM, Table 4): `strings`, `instances`.

    A region is given to the model as a picture of its own, a phrase as a text of its own.

    Args:
        pictures: with the regions of the feature recipe `chains`, one for each chain of an image that has boxes.
    """
    start = time.monotonic()
    items = region_phrases(pictures.images)
    vectors: dict[tuple[str, Box], Any] = {}
    for image in pictures.images:
        regions = pictures.features(image).regions
        if regions is None:
            raise DeixisError("region-phrase ranking needs features of annotated regions (the feature recipe `chains`)")
        merged = [Box(*merge(box_array(image.chain_boxes(chain.id))).tolist()) for chain in image.chains if chain.boxes]
        vectors.update(zip(((image.id, box) for box in merged), regions, strict=True))
    # Models that use a picture's regions as well get none.
    none = np.zeros((0, 4), np.float32)
    asked = [
        ImageFeatures(vectors[name, box], vectors[name, box][None][:0], none, _size(box)) for name, box in items.regions
    ]
    scores = _scores(model, asked, [tuple(string.split(" ")) for string in items.strings])
    metrics = evaluate_region_phrases(items, scores).as_dict()
    counts = {"images": len(pictures.images), "regions": len(asked), "strings": len(items.strings)}
    parameters = {"boxes": "merged", "tie_tolerance": tie_tolerance(scores)}
    return _result("region-phrase ranking", TIES, pictures, parameters, metrics, counts, start, fields)


def localization(
    model: Model,
    pictures: Pictures,
    *,
    recall_at: Sequence[int] = (1, 5, 10),
    precision: bool = False,
    **fields: Unpack[ResultFields],
) -> Result:
    """Regions for every phrase (Entities, section 3): `localization`, recalls and upper bound by type and phrase.

    `text_blind` has baselines that never read the phrase (`deixis.metrics.text_blind`).

    Args:
        model: localizes phrases.
        pictures: with regions.
        recall_at: the values of K.
        precision: also compute average precision after suppression (AP-NMS of Flickr30k Entities). Every phrase then
            runs on every image; phrases that differ only in leading determiners are one. Rows of single phrases
            (Table 3) come with it.
        fields: for the result.
    """
    start = time.monotonic()
    localizer = phrase_localizer(model, pictures)
    localized = evaluate_localization(pictures.images, localizer, recall_at=recall_at)
    parameters: dict[str, Any] = {"boxes": "merged", "iou": 0.5}
    if precision:
        parameters |= {"suppression": SUPPRESSION, "phrases": "without leading determiners"}
        precisions = evaluate_average_precision(pictures.images, localizer, unit="phrase", suppression=SUPPRESSION)
        localized = precisions.beside(localized)
    counts = {"images": len(pictures.images), "phrases": localized.phrases, "without_box": localized.without_box}
    blind = text_blind_localizations(
        pictures.images,
        lambda image: pictures.features(image).size,
        lambda image: regions_of(pictures.features(image))[1],
        recall_at=recall_at,
    )
    figures = localized.as_dict() if precision else localized.as_dict(frequent=0)
    metrics = {"localization": {**figures, **baseline_figures(blind)}}
    bound = localized.overall.upper_bound
    return _result("phrase localization", TIES, pictures, parameters, metrics, counts, start, fields, bound)


def presence(model: DetectsPresence, pictures: Pictures, **fields: Unpack[ResultFields]) -> Result:
    """Whether phrases are in pictures (`deixis.metrics.presence`): `presence` with pooled and mean AP.

    `deixis.metrics.presence.BestRegion` turns a model that only localizes into a detector.
    """
    start = time.monotonic()
    figures = evaluate_presence(
        pictures.images, lambda image, phrases: model.presence(pictures.features(image), phrases)
    )
    counts = {"images": len(pictures.images), "phrases": figures.phrases, "right": figures.right}
    counts |= {"wrong": figures.wrong, "left_out": figures.left_out}
    return _result("phrase presence", TIES, pictures, {}, {"presence": figures.as_dict()}, counts, start, fields)


def phrase_localizer(model: Model, pictures: Pictures) -> Localizer:
    """A localizer from a model of stored features; the model gets phrases without their sentence."""
    previous: Sequence[PhraseQuery] = ()
    phrases: tuple[Tokens, ...] = ()

    def localize(image: Image, queries: Sequence[PhraseQuery]) -> Localized:
        nonlocal previous, phrases
        # Average precision passes the same thousands of phrases with every image.
        if queries is not previous:
            previous, phrases = queries, tuple(query_tokens(query) for query in queries)
        return model.localize(pictures.features(image), phrases)

    return localize


def mention_localizer(model: Model, corpus: Corpus) -> Localizer:
    """A localizer from a model of pictures; the model gets phrases with their sentence."""

    def localize(image: Image, queries: Sequence[PhraseQuery]) -> Localized:
        picture = read_picture(corpus, image)
        mentions = [Mention(tokens_of(query.caption), query.phrase.start, query.phrase.end) for query in queries]
        boxes, scores = model.localize(picture, mentions)
        original = (image.width or picture.width, image.height or picture.height)
        return Localized(boxes * np.tile(np.divide(original, picture.size), 2), scores)

    return localize


def query_tokens(query: PhraseQuery) -> Tokens:
    """The lower-case tokens of a phrase."""
    return tokens_of(query.caption)[query.phrase.start : query.phrase.end]


def _scores(model: Model, images: list[ImageFeatures], texts: list[tuple[str, ...]]) -> ScoreMatrix:
    if has_own_score(model):
        score = model.score
        return FunctionScores(lambda rows, columns: score(images[rows], texts[columns]), (len(images), len(texts)))
    return EmbeddingScores(model.embed_images(images), model.embed_texts(texts))


def _size(box: Box) -> tuple[float, float]:
    return box.x2 - box.x1, box.y2 - box.y1


def boxes_seen(backbone: tuple[str, bool], proposals: tuple[str, bool] | None, model: bool) -> BoxSupervision:
    """Which parts were trained on annotated boxes: backbone and proposals, each with its name, and the model."""
    parts = [f"backbone {backbone[0]}{_saw(backbone[1])}"]
    if proposals:
        parts.append(f"proposals {proposals[0]}{_saw(proposals[1])}")
    parts.append(f"matcher{_saw(model)}")
    return BoxSupervision(backbone[1], proposals is not None and proposals[1], "; ".join(parts))


def _saw(boxes: bool) -> str:
    return ": learned from drawn boxes" if boxes else ": saw no drawn box"


def _result(
    name: str,
    ties: str,
    pictures: Pictures,
    parameters: dict[str, Any],
    metrics: dict[str, Any],
    counts: dict[str, int],
    start: float,
    fields: ResultFields,
    upper_bound: float | None = None,
) -> Result:
    return make_result(
        Protocol(name, ties, {**pictures.parameters, **parameters}),
        metrics,
        duration=time.monotonic() - start,
        corpus=pictures.reference,
        counts=counts,
        box_supervision=pictures.box_supervision(upper_bound),
        **fields,
    )
