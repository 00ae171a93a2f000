"""Average precision, interpolated at all points as in PASCAL VOC since 2010; ties count against the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from deixis.errors import DeixisError


def average_precision(scores: npt.ArrayLike, relevant: npt.ArrayLike, *, total: int | None = None) -> float:
    """The area under the interpolated precision-recall curve of one ranking, from 0 to 1.

    A relevant item ranks behind every irrelevant one with the same score.

    Args:
        scores: `(items,)`, higher is better.
        relevant: `(items,)`, true for items that should be ranked first.
        total: the number of relevant items to find, where some were never ranked; by default those ranked.

    Raises:
        DeixisError: the shapes differ, a score is NaN, or there is nothing relevant to find.

    >>> average_precision([0.9, 0.8, 0.7, 0.6], [True, False, True, False])
    0.8333333333333333
    >>> average_precision([0.9, 0.8, 0.7, 0.6], [True, False, True, False], total=4)
    0.41666666666666663

    One score for all items gives the share of relevant items:

    >>> average_precision([0.5, 0.5, 0.5, 0.5], [True, False, True, False])
    0.5
    """
    values, labels = np.asarray(scores), np.asarray(relevant, bool)
    if values.ndim != 1 or values.shape != labels.shape:
        raise DeixisError(f"scores {values.shape} and relevant {labels.shape} must be arrays of the same length")
    if np.isnan(values).any():
        raise DeixisError(f"the score of item {int(np.isnan(values).argmax())} is NaN")
    positives = int(labels.sum()) if total is None else total
    if positives < max(1, labels.sum()):
        raise DeixisError(f"{int(labels.sum())} items are relevant, but {positives} are to be found")
    return precision_of_counts(wrong_before(values[labels], values[~labels]), positives)


def wrong_before(right: npt.NDArray[Any], wrong: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """How many wrong scores rank before each right one, best first; ties rank before it.

    >>> wrong_before(np.array([0.2, 0.9]), np.array([0.5, 0.2, 0.1])).tolist()
    [0, 2]
    """
    ascending = np.sort(wrong)
    return len(ascending) - np.searchsorted(ascending, np.sort(right)[::-1], side="left")


def precision_of_counts(wrong_before: npt.NDArray[np.integer], total: int) -> float:
    """Average precision from counts.

    Args:
        wrong_before: for each right answer, best first, how many wrong ones rank before it.
        total: how many right answers there are to find.

    >>> precision_of_counts(np.array([0, 1]), total=2)
    0.8333333333333333
    """
    right_up_to = np.arange(1, len(wrong_before) + 1)
    precision = right_up_to / (right_up_to + wrong_before)
    interpolated = np.maximum.accumulate(precision[::-1])  # the best precision at this recall or a higher one
    return float(interpolated.sum() / total)
