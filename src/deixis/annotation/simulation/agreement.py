"""Agreement of an annotated corpus with the ground truth: pairwise and B³ chain scores, box precision and recall."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from deixis.corpus import Box, Corpus, Image
from deixis.corpus.boxes import box_array, iou_matrix

#: Smallest IoU at which boxes match.
OVERLAP = 0.5

Span = tuple[int, int, int]


@dataclass
class Tally:
    """Counts for precision and recall. B³ adds fractions, so the counts are floats."""

    right: float = 0.0
    found: float = 0.0
    right_of_truth: float = 0.0
    truth: float = 0.0

    def figures(self) -> dict[str, float]:
        """Precision, recall and F1 in percent. 0 / 0 counts as 100 percent."""
        precision = self.right / self.found if self.found else 1.0
        recall = self.right_of_truth / self.truth if self.truth else 1.0
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        named = {"precision": precision, "recall": recall, "f1": f1}
        return {name: round(100 * value, 3) for name, value in named.items()}


def score_corpus(annotated: Corpus, truth: Corpus) -> dict[str, dict[str, float]]:
    """Scores of chains (over mentions), boxes of images and boxes of mentions, for all annotated images."""
    pairs, b_cubed, boxes, linked = Tally(), Tally(), Tally(), Tally()
    overlaps: list[float] = []
    for image in annotated:
        gold = truth[image.id]
        predicted, known = chain_of_mentions(image), chain_of_mentions(gold)
        add_pairs(pairs, predicted, known)
        add_b_cubed(b_cubed, predicted, known)
        matched = matches(image.boxes, gold.boxes)
        overlaps += matched
        _add(boxes, len(matched), len(image.boxes), len(gold.boxes))
        for span, chain in predicted.items():
            boxes_found = image.chain_boxes(chain)
            boxes_due = gold.chain_boxes(known[span]) if span in known else ()
            _add(linked, len(matches(boxes_found, boxes_due)), len(boxes_found), len(boxes_due))
    figures = {"pairs": pairs, "b_cubed": b_cubed, "boxes": boxes, "mention_boxes": linked}
    scores = {name: tally.figures() for name, tally in figures.items()}
    scores["boxes"]["mean_overlap"] = round(100 * float(np.mean(overlaps)), 3) if overlaps else 100.0
    return scores


def chain_of_mentions(image: Image) -> dict[Span, str]:
    """The chain of each mention; the first one if a phrase belongs to two chains."""
    chains: dict[Span, str] = {}
    for caption_index, caption in enumerate(image.captions):
        for phrase in caption.phrases:
            if phrase.visual:
                chains.setdefault((caption_index, phrase.start, phrase.end), phrase.chain)
    return chains


def add_pairs(tally: Tally, predicted: Mapping[Span, Hashable], truth: Mapping[Span, Hashable]) -> None:
    """Add the pairs of mentions in one chain, over the mentions that both sides have."""
    both = predicted.keys() & truth.keys()
    right = _pairs(Counter((predicted[m], truth[m]) for m in both))
    _add(tally, right, _pairs(Counter(predicted[m] for m in both)), _pairs(Counter(truth[m] for m in both)))


def add_b_cubed(tally: Tally, predicted: Mapping[Span, Hashable], truth: Mapping[Span, Hashable]) -> None:
    """Add B³: for each mention, the share of its chain that is right and the share of its true chain that was found."""
    both = predicted.keys() & truth.keys()
    joint = Counter((predicted[m], truth[m]) for m in both)
    sizes, true_sizes = Counter(predicted[m] for m in both), Counter(truth[m] for m in both)
    for mention in both:
        common = joint[predicted[mention], truth[mention]]
        tally.right += common / sizes[predicted[mention]]
        tally.right_of_truth += common / true_sizes[truth[mention]]
    tally.found += len(both)
    tally.truth += len(both)


def matches(predicted: tuple[Box, ...], truth: tuple[Box, ...]) -> list[float]:
    """IoUs of boxes matched one to one, largest first, down to `OVERLAP`."""
    if not predicted or not truth:
        return []
    overlap = iou_matrix(box_array(predicted), box_array(truth))
    matched = []
    while (best := float(overlap.max())) >= OVERLAP:
        row, column = np.unravel_index(overlap.argmax(), overlap.shape)
        matched.append(best)
        overlap[row, :] = overlap[:, column] = -1.0
    return matched


def _pairs(counts: Counter[Hashable]) -> int:
    return sum(count * (count - 1) // 2 for count in counts.values())


def _add(tally: Tally, right: int, predicted: int, truth: int) -> None:
    tally.right += right
    tally.right_of_truth += right
    tally.found += predicted
    tally.truth += truth
