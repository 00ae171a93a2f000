"""How many of a corpus' phrases a proposal method can ever localize: recall by number of boxes, IoU and phrase type.

A target is a phrase with its boxes merged into one (papers 0 and 1), counted as often as captions mention it. A phrase
with two types counts under both, and once overall.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deixis.corpus import TYPES, Image
from deixis.corpus.boxes import iou_matrix

COUNTS = (10, 50, 100, 200)
IOUS = (0.5, 0.7)


@dataclass(frozen=True)
class ProposalRecall:
    """`percent[type][iou][count]`, with `overall` beside the types; `phrases` counts the targets of each."""

    percent: Mapping[str, Mapping[float, Mapping[int, float]]]
    phrases: Mapping[str, int]
    pictures: int


def phrase_targets(image: Image) -> tuple[NDArray[np.float64], list[tuple[str, ...]]]:
    """Each boxed phrase of each caption as one merged box `(phrases, 4)` in the original's pixels, and its types."""
    merged = {}
    for chain in image.chains:
        if chain.boxes:
            rows = np.array([[box.x1, box.y1, box.x2, box.y2] for box in image.chain_boxes(chain.id)])
            merged[chain.id] = np.concatenate([rows[:, :2].min(0), rows[:, 2:].max(0)])
    phrases = [p for caption in image.captions for p in caption.phrases if p.chain in merged]
    boxes = np.array([merged[phrase.chain] for phrase in phrases]).reshape(-1, 4)
    return boxes, [phrase.types for phrase in phrases]


def proposal_recall(pairs: Iterable[tuple[Image, NDArray[np.floating]]]) -> ProposalRecall:
    """Score ranked boxes `(proposals, 4)` in [0, 1], picture by picture."""
    hits: dict[tuple[str, float, int], int] = {}
    phrases = dict.fromkeys((*TYPES, "overall"), 0)
    pictures = 0
    for image, boxes in pairs:
        pictures += 1
        targets, types = phrase_targets(image)
        if not len(targets):
            continue
        scale = np.array([image.width, image.height] * 2, dtype=np.float64)
        overlap = iou_matrix(targets, np.asarray(boxes, dtype=np.float64) * scale)
        best = np.maximum.accumulate(overlap, axis=1) if overlap.shape[1] else np.zeros((len(targets), 1))
        for row, names in zip(best, types, strict=True):
            for name in (*names, "overall"):
                if name not in phrases:
                    continue
                phrases[name] += 1
                for iou in IOUS:
                    for count in COUNTS:
                        key = (name, iou, count)
                        hits[key] = hits.get(key, 0) + int(row[min(count, len(row)) - 1] >= iou)
    percent = {
        name: {iou: {n: 100 * hits.get((name, iou, n), 0) / total for n in COUNTS} for iou in IOUS}
        for name, total in phrases.items()
        if total
    }
    return ProposalRecall(percent, phrases, pictures)
