"""Quality of the learned correspondences (section 5.3.2), measured with annotated boxes that training did not use.

Only noun phrases that are also annotated phrases with a box, token for token, are measured: a region is correct if its
IoU with the box is at least 0.5. The result also has the upper bound of the candidates, and two baselines that ignore
the phrase. The paper's 82 % is people's judgment of all kinds of phrases, so it cannot be compared. A hierarchy is
consistent where a phrase's region covers those of the phrases inside it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import msgspec
import numpy as np
from numpy.typing import NDArray

from deixis.corpus import Box, Caption, Corpus, Image, Phrase, training_set
from deixis.corpus.boxes import box_array, iou_matrix, merge
from deixis.errors import DeixisError
from deixis.metrics.localization import LocalizationRow, Localized, PhraseQuery, evaluate_localization, gold_queries
from deixis.metrics.protocols import ResultFields, boxes_seen
from deixis.metrics.results import BoxSupervision, Protocol, Result, corpus_reference, make_result
from deixis.papers.hm_lstm.correspondences import FoundRegions, Indices, read_correspondences
from deixis.training.runs import read_plan
from deixis.vision.drawing.pages import FoundPhrase

#: Smallest overlap with the annotated box at which a region is correct.
IOU = 0.5
#: Part of the statement of box supervision, where regions are chosen with a temperature.
CHOSEN_BY_BOXES = "temperature of the correspondences chosen by the boxes of the validation split"
#: The position of a phrase: image, index of the caption, first token, one past the last.
Place = tuple[str, int, int, int]


def correspondence_quality(run: str | Path, corpus: Corpus, **fields: Unpack[ResultFields]) -> Result:
    """Each round's correspondences against the annotated boxes of the training images: `round_1`, …

    Two baselines ignore the phrase: `whole_picture` is always the whole picture, `central_region` the region that
    overlaps most with the picture's other regions.
    """
    start = time.monotonic()
    correspondences = read_correspondences(run)
    places = _places(correspondences)
    known = set(correspondences.image_ids)
    images = [_measurable(image, places) for image in training_set(corpus) if image.id in known]
    if not len(correspondences.region):
        raise DeixisError(f"{run} was trained without rounds: it has no correspondences to measure")
    measured = {
        f"round_{round_}": {
            **_quality(correspondences, region, images, places),
            "hierarchy": _hierarchy(correspondences, round_ - 1),
        }
        for round_, region in enumerate(correspondences.region, start=1)
    }
    measured["whole_picture"] = _quality(correspondences, np.zeros_like(correspondences.region[0]), images, places)
    measured["central_region"] = _quality(
        correspondences, _central(correspondences)[correspondences.image], images, places
    )
    counts = {"images": len(images), "mentions": len(correspondences.image)}
    counts["measured"] = sum(len(gold_queries(image)[0]) for image in images)
    return make_result(
        Protocol("phrase-region correspondences", "none: one region a phrase", {"boxes": "merged", "iou": IOU}),
        measured,
        duration=time.monotonic() - start,
        corpus=corpus_reference(corpus, "train"),
        counts=counts,
        box_supervision=_supervision(run, correspondences, measured["whole_picture"]["overall"]["upper_bound"]),
        **fields,
    )


def _supervision(run: str | Path, correspondences: FoundRegions, upper_bound: float) -> BoxSupervision:
    """What the run's features, training and choices saw of annotated boxes, and the upper bound of the candidates.

    The recipes' temperature above 0 was chosen with annotated boxes of the validation split.
    """
    plan = read_plan(run)
    # The store of annotated regions is only for evaluation.
    features = next(stored for stored in plan.features if stored.proposals != "chains")
    proposals = (features.proposals, bool(features.proposals_saw_boxes)) if features.proposals else None
    seen = boxes_seen((features.backbone or "(unnamed)", False), proposals, plan.learns_from_boxes)
    chosen = f"; {CHOSEN_BY_BOXES}" if plan.recipe["alternation"]["temperature"] else ""
    return msgspec.structs.replace(
        seen,
        statement=seen.statement + chosen,
        regions=int(np.diff(correspondences.offsets).max()),
        upper_bound=upper_bound,
    )


def _central(correspondences: FoundRegions) -> NDArray[np.int16]:
    """By image, the candidate that overlaps most with all of them."""
    candidates = (
        correspondences.candidates[first:last].astype(np.float64)
        for first, last in itertools.pairwise(correspondences.offsets)
    )
    return np.array([iou_matrix(boxes, boxes).sum(0).argmax() for boxes in candidates], np.int16)


def _places(correspondences: FoundRegions) -> dict[Place, int]:
    """The index of the mention at each position."""
    return {
        (correspondences.image_ids[image], caption, first, last): mention
        for mention, (image, caption, (first, last)) in enumerate(
            zip(
                correspondences.image.tolist(),
                correspondences.caption.tolist(),
                correspondences.spans.tolist(),
                strict=True,
            )
        )
    }


class ShownCaption(NamedTuple):
    """A caption of a training image, and for each round where its phrases were found."""

    image: Image
    caption: Caption
    rounds: tuple[tuple[FoundPhrase, ...], ...]


def shown_captions(run: str | Path, corpus: Corpus, count: int, random: np.random.Generator) -> list[ShownCaption]:
    """At most `count` random captions among those with two or more phrases that can be measured."""
    correspondences = read_correspondences(run)
    places = _places(correspondences)
    boxes = correspondences.boxes
    known = set(correspondences.image_ids)
    worth: list[tuple[Image, Caption, list[tuple[int, Phrase]]]] = []
    for image in training_set(corpus):
        for caption_index, caption in enumerate(image.captions if image.id in known else ()):
            mentions = [
                (places[key], phrase)
                for phrase in caption.phrases
                if (key := (image.id, caption_index, phrase.start, phrase.end)) in places
                and image.chain_boxes(phrase.chain)
            ]
            if len(mentions) >= 2:
                worth.append((image, caption, mentions))
    chosen = random.permutation(len(worth))[:count]
    return [
        ShownCaption(
            image,
            caption,
            tuple(
                tuple(
                    _found(image, phrase, boxes[round_index, row], correspondences.confidence[round_index, row])
                    for row, phrase in phrase_boxes
                )
                for round_index in range(len(correspondences.region))
            ),
        )
        for image, caption, phrase_boxes in (worth[row] for row in sorted(chosen.tolist()))
    ]


def _found(image: Image, phrase: Phrase, box: NDArray[np.float32], confidence: float) -> FoundPhrase:
    gold = merge(box_array(image.chain_boxes(phrase.chain)))
    right = bool(iou_matrix(box[None].astype(np.float64), gold[None])[0, 0] >= IOU)
    return FoundPhrase(phrase, Box(*box.tolist()), float(confidence), right)


def _measurable(image: Image, places: dict[Place, int]) -> Image:
    """The image with only those of its phrases that are noun phrases of the captions' trees."""
    captions = [
        msgspec.structs.replace(
            caption,
            phrases=tuple(
                phrase for phrase in caption.phrases if (image.id, index, phrase.start, phrase.end) in places
            ),
        )
        for index, caption in enumerate(image.captions)
    ]
    return msgspec.structs.replace(image, captions=tuple(captions))


def _quality(
    correspondences: FoundRegions, region: NDArray[np.int16], images: Sequence[Image], places: dict[Place, int]
) -> dict[str, Any]:
    """Percentages for these candidates `(mentions,)`."""
    rows = {image_id: index for index, image_id in enumerate(correspondences.image_ids)}

    def localize(image: Image, queries: Sequence[PhraseQuery]) -> Localized:
        """The image's candidates; the chosen one has the score 1, the others 0."""
        index = rows[image.id]
        boxes = correspondences.candidates[correspondences.offsets[index] : correspondences.offsets[index + 1]]
        scores = np.zeros((len(queries), len(boxes)))
        captions = {caption: caption_number for caption_number, caption in enumerate(image.captions)}
        for line, (caption, phrase) in zip(scores, queries, strict=True):
            mention = places[image.id, captions[caption], phrase.start, phrase.end]
            line[region[mention]] = 1
        return Localized(boxes, scores)

    measured = evaluate_localization(images, localize, recall_at=(1,))
    types = {name: _figures(row) for name, row in measured.by_type.items()}
    return {"overall": _figures(measured.overall), "by_type": types}


def _figures(row: LocalizationRow) -> dict[str, float]:
    right = row.recall[1]
    share = {"share_of_upper_bound": 100 * right / row.upper_bound} if row.upper_bound else {}
    return {"instances": row.instances, "right": right, "upper_bound": row.upper_bound, **share}


def _hierarchy(correspondences: FoundRegions, round_index: int) -> dict[str, float]:
    """Percent of a phrase's region inside that of the phrase around it, and inside those of phrases beside it."""
    boxes = correspondences.boxes[round_index]
    figures: dict[str, float] = {}
    for name, pairs in (("inside", _nested(correspondences)), ("beside", _side_by_side(correspondences))):
        inner, outer = boxes[pairs[:, 0]], boxes[pairs[:, 1]]
        shared = np.minimum(inner[:, 2:], outer[:, 2:]) - np.maximum(inner[:, :2], outer[:, :2])
        area = (inner[:, 2:] - inner[:, :2]).prod(1)
        covered = np.maximum(shared, 0).prod(1)[area > 0] / area[area > 0]
        figures[f"{name}_pairs"] = len(covered)
        if len(covered):
            figures[f"{name}_covered"] = 100 * float(covered.mean())
    return figures


def _captions(correspondences: FoundRegions) -> Iterator[tuple[Indices, NDArray[np.bool_]]]:
    """By caption: its mentions, and which (row) is strictly inside which (column)."""
    changes = np.flatnonzero(np.diff(correspondences.image) | np.diff(correspondences.caption)) + 1
    for mentions in np.split(np.arange(len(correspondences.image)), changes):
        first, last = correspondences.spans[mentions].T
        within = (first[:, None] >= first) & (last[:, None] <= last)
        np.fill_diagonal(within, False)
        yield mentions, within


def _nested(correspondences: FoundRegions) -> Indices:
    """Pairs `(pairs, 2)` of a mention and the smallest one around it."""
    pairs = []
    for mentions, within in _captions(correspondences):
        length = np.diff(correspondences.spans[mentions], axis=1)[:, 0]
        for row in np.flatnonzero(within.any(1)):
            around = np.flatnonzero(within[row])
            pairs.append((mentions[row], mentions[around[np.argmin(length[around])]]))
    return np.array(pairs, np.int64).reshape(-1, 2)


def _side_by_side(correspondences: FoundRegions) -> Indices:
    """Pairs of mentions of one caption, in both orders, of which neither contains the other."""
    pairs = [
        mentions[np.argwhere(~(within | within.T | np.eye(len(mentions), dtype=bool)))]
        for mentions, within in _captions(correspondences)
    ]
    return np.concatenate([np.empty((0, 2), np.int64), *pairs])
