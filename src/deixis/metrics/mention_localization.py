"""Phrase localization by a matcher that looks at pictures itself and reads phrases in their caption."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from deixis.corpus import Corpus, Image
from deixis.metrics.localization import Localized, Localizer, PhraseQuery, evaluate_localization
from deixis.metrics.ranking import TIES
from deixis.metrics.results import BoxSupervision, Protocol, Result, corpus_reference, make_result
from deixis.metrics.text_blind import text_blind_recall
from deixis.model import LocalizesMentions, Mention
from deixis.text.tokens import tokens_of
from deixis.vision.reading import read_picture


def mention_localizer(matcher: LocalizesMentions, corpus: Corpus) -> Localizer:
    """A matcher as what the localization protocols call; boxes are scaled to the original picture's pixels."""

    def localize(image: Image, queries: Sequence[PhraseQuery]) -> Localized:
        picture = read_picture(corpus, image)
        mentions = [Mention(tokens_of(query.caption), query.phrase.start, query.phrase.end) for query in queries]
        boxes, scores = matcher.localize_mentions(picture, mentions)
        original = (image.width or picture.width, image.height or picture.height)
        return Localized(boxes * np.tile(np.divide(original, picture.size), 2), scores)

    return localize


def mention_localization(
    matcher: LocalizesMentions,
    corpus: Corpus,
    split: str,
    *,
    regions: int,
    parameters: dict[str, str | int | float | bool] | None = None,
    track: Callable[[Iterable[Image]], Iterable[Image]] = iter,
    **told: Any,
) -> Result:
    """The result record of one split: `localization`, recalls and upper bound overall, by type, by phrase.

    Args:
        matcher: learned from drawn boxes, backbone and proposals included, which the record says.
        corpus: with pictures.
        split: what is scored.
        regions: how many boxes it proposes at most.
        parameters: what else decides the figures, such as the weights' hash.
        track: shows progress over the images.
        told: for the result, see `deixis.metrics.results.Result`.
    """
    start = time.monotonic()
    images = corpus.split(split).images
    found = evaluate_localization(track(images), mention_localizer(matcher, corpus))
    blind = text_blind_recall(images, lambda image: _size(corpus, image))
    return make_result(
        Protocol("phrase localization", TIES, {"boxes": "merged", "iou": 0.5, **(parameters or {})}),
        {"localization": {**found.as_dict(), "text_blind": blind}},
        duration=time.monotonic() - start,
        corpus=corpus_reference(corpus, split),
        counts={"images": len(images), "phrases": found.phrases, "without_box": found.without_box},
        box_supervision=BoxSupervision(
            backbone=True,
            proposals=True,
            statement="backbone, proposals and matcher were learned from drawn boxes; the upper bound is that of the "
            "proposals after each phrase has moved them",
            regions=regions,
            upper_bound=found.overall.upper_bound,
        ),
        **told,
    )


def _size(corpus: Corpus, image: Image) -> tuple[float, float]:
    if image.width and image.height:
        return image.width, image.height
    return read_picture(corpus, image).size
