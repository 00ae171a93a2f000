"""Phrase localization with a model that takes pictures and reads phrases in their caption."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deixis.corpus import Corpus, Image
from deixis.metrics.localization import PhraseFinder, evaluate_localization
from deixis.metrics.protocols import mention_localizer
from deixis.metrics.ranking import TIES
from deixis.metrics.results import BoxSupervision, Protocol, Result, corpus_reference, make_result
from deixis.metrics.text_blind import baseline_figures, text_blind_localizations
from deixis.model import Model
from deixis.vision.reading import read_picture


def mention_localization(
    model: Model,
    corpus: Corpus,
    split: str,
    *,
    find_phrases: PhraseFinder | None = None,
    regions: int | None = None,
    parameters: dict[str, str | int | float | bool] | None = None,
    track: Callable[[Iterable[Image]], Iterable[Image]] = iter,
    **fields: Any,
) -> Result:
    """The result of one split: `localization`, with recalls and upper bound overall, by type and by phrase.

    Text-blind baselines beside it are the whole image and, of a model that makes proposals of its own, the largest
    proposal and the proposals in their own order.

    Args:
        model: trained on annotated boxes, backbone and proposals included; the result says so.
        corpus: with pictures.
        split: the split to evaluate.
        find_phrases: finds phrases in a caption; those it misses count as missed (`evaluate_localization`). Default:
            phrases are given.
        regions: the largest number of boxes that the model proposes, where it is known.
        parameters: what else the figures depend on, such as the weights' hash.
        track: shows progress over the images.
        fields: for the result, see `deixis.metrics.results.Result`.
    """
    start = time.monotonic()
    images = corpus.split(split).images
    localized = evaluate_localization(track(images), mention_localizer(model, corpus), find_phrases=find_phrases)
    counts = {"images": len(images), "phrases": localized.phrases, "without_box": localized.without_box}
    if find_phrases is not None:
        parameters = {"phrases": "found in the caption; others are missed", **(parameters or {})}
        counts["not_found"] = localized.not_found
    proposals = _proposals(model, corpus, images)
    blind = text_blind_localizations(
        images, lambda image: _size(corpus, image), None if proposals is None else lambda image: proposals[image.id]
    )
    return make_result(
        Protocol("phrase localization", TIES, {"boxes": "merged", "iou": 0.5, **(parameters or {})}),
        {"localization": {**localized.as_dict(), **baseline_figures(blind)}},
        duration=time.monotonic() - start,
        corpus=corpus_reference(corpus, split),
        counts=counts,
        box_supervision=BoxSupervision(
            backbone=True,
            proposals=True,
            statement="backbone, proposals and matcher were learned from drawn boxes; the upper bound is that of the "
            "proposals after each phrase has moved them",
            regions=regions,
            upper_bound=localized.overall.upper_bound,
        ),
        **fields,
    )


def _proposals(model: Model, corpus: Corpus, images: Iterable[Image]) -> dict[str, NDArray[Any]] | None:
    """The proposals of each image in the pixels of its boxes; None if the model makes none of its own."""
    proposals = {}
    for image in images:
        picture = read_picture(corpus, image)
        boxes = model.proposals(picture)
        if boxes is None:
            return None
        scale = np.divide((image.width or picture.width, image.height or picture.height), picture.size)
        proposals[image.id] = boxes * np.tile(scale, 2)
    return proposals


def _size(corpus: Corpus, image: Image) -> tuple[float, float]:
    if image.width and image.height:
        return image.width, image.height
    return read_picture(corpus, image).size
