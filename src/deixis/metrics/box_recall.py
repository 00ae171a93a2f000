"""Phrase localization on plain arrays: is a box with IoU ≥ 0.5 among the first K proposals for a phrase?

Boxes are x1, y1, x2, y2. The boxes of a plural phrase are merged into one ("merged"), or any of them counts ("any").
A correct proposal ranks behind every wrong one with the same score. `deixis.metrics.localization` counts the phrases of
a corpus with these functions; `deixis.metrics.text_blind` has the baselines that belong beside every figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from deixis.corpus.boxes import Boxes, iou_matrix, merge
from deixis.errors import DeixisError
from deixis.metrics.score_blocks import Integers

#: Which ground truth a proposal must overlap: all boxes of the phrase merged into one, or any of them.
Rule = Literal["merged", "any"]


def localization_recall(
    boxes: Sequence[npt.ArrayLike],
    truth: Sequence[npt.ArrayLike],
    scores: Sequence[npt.ArrayLike] | None = None,
    *,
    recall_at: Sequence[int] = (1, 5, 10),
    rule: Rule = "merged",
    threshold: float = 0.5,
) -> dict[str, Any]:
    """Recall@K of phrase localization, and the proposals' upper bound, in percent.

    Args:
        boxes: for each phrase its proposals, `(proposals, 4)`; ranked best first, unless `scores` is given.
        truth: for each phrase its ground-truth boxes, `(boxes, 4)`, at least one.
        scores: for each phrase the scores of its proposals, `(proposals,)`, higher is better.
        recall_at: the values of K.
        rule: merge the boxes of a plural phrase into one, or accept any of them.
        threshold: the smallest IoU that counts as a hit.

    Returns:
        `phrases` (their number), `r@1`, `r@5`, `r@10` and `upper_bound`.

    Raises:
        DeixisError: the numbers or shapes do not fit together, a score is NaN or +inf, or there is no phrase.

    >>> proposals = [[0, 0, 10, 10], [20, 20, 40, 40], [0, 0, 40, 40]]
    >>> localization_recall([proposals, proposals], truth=[[[1, 0, 10, 10]], [[0, 0, 38, 40]]])
    {'phrases': 2, 'r@1': 50.0, 'r@5': 100.0, 'r@10': 100.0, 'upper_bound': 100.0}
    >>> localization_recall([proposals], [[[0, 0, 38, 40]]], scores=[[0.1, 0.2, 0.9]], recall_at=[1])
    {'phrases': 1, 'r@1': 100.0, 'upper_bound': 100.0}
    """
    ranks = []
    if not len(truth):
        raise DeixisError("nothing to localize: no phrase was given")
    if len(boxes) != len(truth) or (scores is not None and len(scores) != len(truth)):
        given = "" if scores is None else f" and {len(scores)} lists of scores"
        raise DeixisError(f"{len(truth)} phrases have a ground truth, but there are {len(boxes)} lists of boxes{given}")
    for phrase, (proposals, gold) in enumerate(zip(boxes, truth, strict=True)):
        phrase_boxes, wanted = _boxes(proposals, f"phrase {phrase}"), _boxes(gold, f"ground truth of phrase {phrase}")
        order = -np.arange(len(phrase_boxes)) if scores is None else scores[phrase]
        ranking = np.asarray(order, np.float64)
        if ranking.shape != (len(phrase_boxes),) or not (ranking < np.inf).all():
            raise DeixisError(
                f"phrase {phrase}: {len(phrase_boxes)} boxes need as many scores, none of them NaN or +inf"
            )
        if not len(wanted):
            raise DeixisError(f"ground truth of phrase {phrase}: there is no box")
        ranks.append(int(proposal_ranks(phrase_boxes, ranking[None], [wanted], rule=rule, threshold=threshold)[0]))
    values = np.array(ranks)
    recall = {f"r@{k}": 100 * float(np.mean((values > 0) & (values <= k))) for k in recall_at}
    return {"phrases": len(ranks), **recall, "upper_bound": 100 * float(np.mean(values > 0))}


def upper_bound(
    boxes: Sequence[npt.ArrayLike], truth: Sequence[npt.ArrayLike], *, rule: Rule = "merged", threshold: float = 0.5
) -> float:
    """The percentage of phrases that any of their proposals hits: the recall that a perfect ranking would reach.

    Args:
        boxes: for each phrase its proposals, `(proposals, 4)`.
        truth: for each phrase its ground-truth boxes, `(boxes, 4)`.
        rule: merge the boxes of a plural phrase into one, or accept any of them.
        threshold: the smallest IoU that counts as a hit.

    >>> upper_bound([[[0, 0, 10, 10]], [[0, 0, 10, 10]]], truth=[[[0, 0, 10, 9]], [[5, 5, 30, 30]]])
    50.0
    """
    figures = localization_recall(boxes, truth, recall_at=(), rule=rule, threshold=threshold)
    return float(figures["upper_bound"])


def proposal_ranks(
    boxes: Boxes,
    scores: npt.NDArray[np.floating],
    gold: Sequence[Boxes],
    *,
    rule: Rule = "merged",
    threshold: float = 0.5,
) -> Integers:
    """The rank, from 1, of the best correct proposal for each phrase of an image; 0 where no proposal is correct.

    Args:
        boxes: the proposals of all phrases, `(proposals, 4)`, or of each phrase, `(phrases, proposals, 4)`.
        scores: `(phrases, proposals)`.
        gold: for each phrase its ground-truth boxes, `(boxes, 4)`, at least one.
        rule: merge the boxes of a phrase into one, or accept any of them.
        threshold: the smallest IoU that counts as a hit.

    >>> boxes = np.array([[0, 0, 10, 10], [20, 20, 40, 40]], float)
    >>> scores = np.array([[0.5, 0.9], [0.5, 0.9]])
    >>> proposal_ranks(boxes, scores, [boxes[:1], boxes[1:]]).tolist()
    [2, 1]
    """
    if not gold:
        return np.zeros(0, np.int64)
    targets = [merge(phrase_boxes)[None] if rule == "merged" else phrase_boxes for phrase_boxes in gold]
    if boxes.ndim == 2:
        starts = np.cumsum([0, *(len(target) for target in targets[:-1])])
        right = np.logical_or.reduceat(iou_matrix(np.concatenate(targets), boxes) >= threshold, starts, axis=0)
    else:
        right = np.stack([(iou_matrix(*pair) >= threshold).any(axis=0) for pair in zip(targets, boxes, strict=True)])
    best = np.max(scores, axis=1, where=right, initial=-np.inf)
    wrong_before = np.count_nonzero((scores >= best[:, None]) & ~right, axis=1)
    return np.where(right.any(axis=1), wrong_before + 1, 0)


def _boxes(given: npt.ArrayLike, what: str) -> npt.NDArray[np.float64]:
    boxes = np.asarray(given, np.float64)
    if boxes.size == 0:
        return boxes.reshape(0, 4)
    if boxes.ndim != 2 or boxes.shape[1] != 4 or not np.isfinite(boxes).all():
        raise DeixisError(f"{what}: boxes must be an array (boxes, 4) of finite numbers, not of shape {boxes.shape}")
    return boxes
