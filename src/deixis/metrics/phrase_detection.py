"""Average precision of phrases after non-maximum suppression: AP-NMS of Flickr30k Entities (section 3.2, Tables 2, 3).

Each unique phrase string, in lower case, is a detector and runs on every image of the split, whether or not its
captions name the phrase; the localizer gets it without its sentence. In Table 3, which ignores determiners, "a man" and
"the man" are one detector under its most frequent spelling (`unit="phrase"`). The proposals that suppression keeps are
pooled over the images and ranked. The ground truth are the distinct boxes that the phrase names in an image: five
captions that call the same man "a man" give one box. Going down the ranking, a proposal is correct if the ground-truth
box it overlaps most has an IoU of at least 0.5 with it and was not taken before. Ties count against the model, and
precision is interpolated at all points (`deixis.metrics.precision`).

A type's AP is the mean over the phrases that occur with the type; mAP is the unweighted mean over the types. The paper
does not give the suppression threshold; we use 0.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from deixis.corpus.boxes import Boxes, iou_matrix, merge, suppress_each
from deixis.corpus.records import TYPES, Image, Phrase, make_caption
from deixis.errors import DeixisError
from deixis.metrics.box_recall import Rule
from deixis.metrics.localization import Localization, Localizer, PhraseQuery, checked, gold_queries, phrase_key
from deixis.metrics.precision import precision_of_counts

Floats = npt.NDArray[np.float64]
#: One detector per phrase as it is written, or per phrase without its determiner.
Unit = Literal["string", "phrase"]

#: The number of wrong proposals gathered before they are counted: about 60 MB.
GATHERED = 4_000_000


@dataclass(frozen=True)
class AveragePrecision:
    """APs in percent: by detector, by type, and their mean over the types."""

    by_phrase: dict[str, float]
    by_type: dict[str, float]
    mean: float
    unit: Unit

    def beside(self, recalls: Localization) -> Localization:
        """The same localization with its APs, as in the paper's tables. Rows by phrase need detectors by phrase."""
        rows = recalls.by_phrase.items()
        precise = {name: replace(row, ap_nms=self.by_phrase[name]) for name, row in rows if self.unit == "phrase"}
        return replace(
            recalls,
            overall=replace(recalls.overall, ap_nms=self.mean),
            by_type={name: replace(row, ap_nms=self.by_type[name]) for name, row in recalls.by_type.items()},
            by_phrase=precise or recalls.by_phrase,
        )


@dataclass
class _Detector:
    """One unique phrase: its spellings, the boxes it should find, and the scores of what it found."""

    spellings: Counter[str] = field(default_factory=Counter)
    types: dict[str, None] = field(default_factory=dict)
    gold: dict[str, set[tuple[float, ...]]] = field(default_factory=dict)
    right: list[float] = field(default_factory=list)
    wrong: list[Floats] = field(default_factory=list)

    @property
    def gold_boxes(self) -> int:
        return sum(map(len, self.gold.values()))

    @cached_property
    def query(self) -> PhraseQuery:
        spelling = min(self.spellings, key=lambda text: (-self.spellings[text], text))
        words = spelling.split()
        phrase = Phrase(0, len(words))
        return PhraseQuery(make_caption(spelling, phrases=[phrase]), phrase)


def evaluate_average_precision(
    images: Sequence[Image],
    localize: Localizer,
    *,
    rule: Rule = "merged",
    unit: Unit = "string",
    threshold: float = 0.5,
    suppression: float = 0.5,
) -> AveragePrecision:
    """Run every unique phrase of the images on all of them.

    The localizer is called twice per image: first for the phrases that the image names, then for all phrases that were
    correct anywhere. The second list is the same object for every image, so a localizer can cache what it computes from
    it.
    """
    detectors = _detectors(images, rule, unit)
    if not detectors:
        raise DeixisError("nothing to localize: no phrase of these images has a box")
    for image in images:
        _detect_named(image, detectors, localize, threshold, suppression)
    with_right = {key: detector for key, detector in detectors.items() if detector.right}
    counts = _WrongCounts(list(with_right.values()))
    everywhere = [detector.query for detector in with_right.values()]
    lowest = np.array([min(detector.right) for detector in with_right.values()])
    for image in images if with_right else ():
        named = np.array([image.id in detector.gold for detector in with_right.values()])
        least = np.where(named, np.inf, lowest)
        counts.add(*_wrong_elsewhere(image, everywhere, least, localize, suppression))
    before = dict(zip(with_right, counts.before_right(), strict=True))

    by_phrase = {
        key: 100 * precision_of_counts(before[key], detector.gold_boxes) if key in before else 0.0
        for key, detector in detectors.items()
    }
    by_type = {}
    for name in [*TYPES, *sorted({name for detector in detectors.values() for name in detector.types} - set(TYPES))]:
        precisions = [by_phrase[key] for key, detector in detectors.items() if name in detector.types]
        if precisions:
            by_type[name] = float(np.mean(precisions))
    mean = float(np.mean(list(by_type.values() or by_phrase.values())))
    return AveragePrecision(by_phrase, by_type, mean, unit)


def match(boxes: Boxes, scores: Floats, gold: Boxes, threshold: float = 0.5) -> tuple[Floats, Floats]:
    """The scores of the correct and of the wrong boxes in an image; each ground-truth box is found only once.

    >>> boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9], [50, 50, 60, 60]], float)
    >>> [scores.tolist() for scores in match(boxes, np.array([0.9, 0.8, 0.7]), boxes[:1])]
    [[0.9], [0.8, 0.7]]
    """
    overlaps = iou_matrix(boxes, gold)
    taken = np.zeros(len(gold), dtype=bool)
    is_right = np.zeros(len(boxes), dtype=bool)
    for box in np.argsort(-scores, kind="stable"):
        nearest = int(np.argmax(overlaps[box]))
        is_right[box] = overlaps[box, nearest] >= threshold and not taken[nearest]
        taken[nearest] |= is_right[box]
    return scores[is_right], scores[~is_right]


def _detectors(images: Iterable[Image], rule: Rule, unit: Unit) -> dict[str, _Detector]:
    detectors: dict[str, _Detector] = {}
    key = phrase_key if unit == "phrase" else str.lower
    for image in images:
        for query, boxes in zip(*gold_queries(image), strict=True):
            detector = detectors.setdefault(key(query.text), _Detector())
            detector.spellings[query.text.lower()] += 1
            detector.types.update(dict.fromkeys(query.phrase.types))
            wanted = merge(boxes)[None] if rule == "merged" else boxes
            detector.gold.setdefault(image.id, set()).update(map(tuple, wanted.tolist()))
    return detectors


def _detect_named(
    image: Image, detectors: dict[str, _Detector], localize: Localizer, threshold: float, suppression: float
) -> None:
    """Run the detectors of the phrases that an image names, and add their correct and wrong answers."""
    named = [detector for detector in detectors.values() if image.id in detector.gold]
    if not named:
        return
    boxes, scores = _answer(image, [detector.query for detector in named], localize)
    boxes_of_each = np.broadcast_to(boxes, (len(named), *boxes.shape[-2:]))
    kept_of_each = _suppress(boxes, scores, suppression, np.full(len(named), -np.inf))
    for detector, places, detector_scores, selection in zip(named, boxes_of_each, scores, kept_of_each, strict=True):
        gold = np.array(sorted(detector.gold[image.id]))
        right, wrong = match(places[selection], detector_scores[selection], gold, threshold)
        detector.right += right.tolist()
        detector.wrong.append(wrong)


def _wrong_elsewhere(
    image: Image, everywhere: Sequence[PhraseQuery], lowest: Floats, localize: Localizer, suppression: float
) -> tuple[npt.NDArray[np.intp], Floats]:
    """Run the detectors of the phrases that an image does not name: all their answers are wrong.

    Answers below a detector's worst correct answer, `lowest`, change nothing and are left out, most of them before
    suppression.

    Returns:
        The index of the detector and the score of each answer.
    """
    boxes, scores = _answer(image, everywhere, localize)
    active = np.flatnonzero(scores.max(axis=1, initial=-np.inf) >= lowest)
    active_boxes = boxes if boxes.ndim == 2 else boxes[active]
    remaining = _suppress(active_boxes, scores[active], suppression, lowest[active])
    rows, proposals = np.nonzero(remaining)
    return active[rows], scores[active[rows], proposals]


def _suppress(boxes: Boxes, scores: Floats, threshold: float, least: Floats) -> npt.NDArray[np.bool_]:
    """Which boxes each query keeps; boxes are shared by all queries or given for each."""
    if boxes.ndim == 2:
        return suppress_each(boxes, scores, threshold, least)
    queries = zip(boxes, scores, least, strict=True)
    remaining = [
        suppress_each(query_boxes, row[None], threshold, lowest[None])[0] for query_boxes, row, lowest in queries
    ]
    return np.array(remaining, dtype=bool).reshape(scores.shape)


def _answer(image: Image, queries: Sequence[PhraseQuery], localize: Localizer) -> tuple[Boxes, Floats]:
    boxes, scores = checked(image, queries, localize(image, queries))
    return boxes, scores.astype(np.float64)


class _WrongCounts:
    """Counts, for each correct answer of each detector, the wrong ones that score at least as much."""

    def __init__(self, detectors: Sequence[_Detector]) -> None:
        self._right = [np.sort(detector.right)[::-1] for detector in detectors]
        self._counts = [np.zeros(len(right), np.int64) for right in self._right]
        self._gathered: list[tuple[npt.NDArray[np.intp], Floats]] = []
        self._waiting = 0
        for index, detector in enumerate(detectors):
            wrong = np.concatenate(detector.wrong)
            self.add(np.full(len(wrong), index), wrong)

    def add(self, owners: npt.NDArray[np.intp], scores: Floats) -> None:
        """Add wrong answers: the index of the detector and the score of each."""
        self._gathered.append((owners, scores))
        self._waiting += len(scores)
        if self._waiting > GATHERED:
            self._count()

    def before_right(self) -> list[npt.NDArray[np.int64]]:
        """For each detector: how many wrong answers rank before each correct one, best first."""
        self._count()
        return self._counts

    def _count(self) -> None:
        if not self._gathered:
            return
        owners, scores = (np.concatenate(parts) for parts in zip(*self._gathered, strict=True))
        order = np.lexsort((scores, owners))
        borders = np.searchsorted(owners[order], np.arange(len(self._right) + 1))
        for index, (start, end) in enumerate(pairwise(borders)):
            ascending = scores[order[start:end]]
            self._counts[index] += len(ascending) - np.searchsorted(ascending, self._right[index], side="left")
        self._gathered, self._waiting = [], 0
