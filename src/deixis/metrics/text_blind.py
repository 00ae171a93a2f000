"""Text-blind baselines of phrase localization: answers that never read the phrase.

A localization figure means little alone: the whole image hits many phrases of a caption corpus. Three baselines belong
beside every figure: the whole image, the largest proposal, and the proposals in their own order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from deixis.corpus.records import Image
from deixis.metrics.localization import Localization, Localized, Localizer, PhraseQuery, evaluate_localization

Floats = npt.NDArray[np.float64]
#: Boxes `(boxes, 4)` and their scores `(boxes,)`.
Ranked = tuple[Floats, Floats]


def whole_image(width: float, height: float) -> Ranked:
    """The whole image as the only box: boxes `(1, 4)` and scores `(1,)`.

    >>> whole_image(640, 480)
    (array([[  0.,   0., 640., 480.]]), array([0.]))
    """
    return np.array([[0, 0, width, height]], np.float64), np.zeros(1)


def largest_proposal(boxes: npt.ArrayLike) -> Ranked:
    """The proposals `(proposals, 4)` with their areas as scores: the largest ranks first.

    >>> boxes, scores = largest_proposal([[0, 0, 2, 2], [0, 0, 4, 4]])
    >>> scores
    array([ 4., 16.])
    """
    proposals = np.asarray(boxes, np.float64).reshape(-1, 4)
    return proposals, np.maximum(proposals[:, 2:] - proposals[:, :2], 0).prod(1)


def proposal_order(boxes: npt.ArrayLike) -> Ranked:
    """The proposals `(proposals, 4)` in the order of the method that made them: the first ranks first.

    >>> boxes, scores = proposal_order([[0, 0, 2, 2], [0, 0, 4, 4]])
    >>> scores
    array([-0., -1.])
    """
    proposals = np.asarray(boxes, np.float64).reshape(-1, 4)
    return proposals, -np.arange(len(proposals), dtype=np.float64)


def text_blind_recall(
    images: Sequence[Image],
    size: Callable[[Image], tuple[float, float]],
    proposals: Callable[[Image], npt.ArrayLike] | None = None,
    *,
    recall_at: Sequence[int] = (1, 5, 10),
) -> dict[str, dict[str, float]]:
    """Recall@K of the baselines over the phrases of images, counted as in `evaluate_localization`.

    Args:
        images: those whose phrases are localized.
        size: gives an image's width and height in the pixels of its boxes.
        proposals: gives an image's proposals, `(proposals, 4)`, in their own order; without it, the whole image is the
            only baseline.
        recall_at: the values of K.

    Returns:
        `whole_image` (with `r@1`), and with proposals `largest_proposal` and `proposal_order`, each with `r@1`, ….
    """
    return baseline_figures(text_blind_localizations(images, size, proposals, recall_at=recall_at))["text_blind"]


def baseline_figures(baselines: Mapping[str, Localization]) -> dict[str, dict[str, dict[str, float]]]:
    """The baselines as a result has them: `text_blind`, recalls of each, and `text_blind_by_type`, R@1 of each."""
    by_type: dict[str, dict[str, float]] = {}
    for name, localized in baselines.items():
        for kind, row in localized.by_type.items():
            by_type.setdefault(kind, {})[name] = row.recall[1]
    recalls = {
        name: {f"r@{k}": value for k, value in localized.overall.recall.items()}
        for name, localized in baselines.items()
    }
    return {"text_blind": recalls, "text_blind_by_type": by_type}


def text_blind_localizations(
    images: Sequence[Image],
    size: Callable[[Image], tuple[float, float]],
    proposals: Callable[[Image], npt.ArrayLike] | None = None,
    *,
    recall_at: Sequence[int] = (1, 5, 10),
) -> dict[str, Localization]:
    """The baselines of `text_blind_recall`, with their rows by type."""
    blind = {"whole_image": text_blind_localizer(lambda image: whole_image(*size(image)))}
    if proposals is not None:
        given = proposals
        blind["largest_proposal"] = text_blind_localizer(lambda image: largest_proposal(given(image)))
        blind["proposal_order"] = text_blind_localizer(lambda image: proposal_order(given(image)))
    return {
        name: evaluate_localization(images, localize, recall_at=(1,) if name == "whole_image" else recall_at)
        for name, localize in blind.items()
    }


def text_blind_localizer(rank: Callable[[Image], Ranked]) -> Localizer:
    """A localizer that ranks an image's boxes the same for every phrase."""

    def localize(image: Image, queries: Sequence[PhraseQuery]) -> Localized:
        boxes, scores = rank(image)
        return Localized(boxes, np.broadcast_to(scores, (len(queries), len(scores))))

    return localize
