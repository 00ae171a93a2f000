"""Retrieval protocols: image → text, text → image (papers 0 to 4), and sentence → sentence (paper 1, section 5.5).

Recall@K is a hit rate, as in all the papers: the percentage of queries with at least one right answer among the first
K. A query's rank is that of its best right answer, ties counting against it. The median rank is the plain median of
ranks that start at 1 (the mean of the middle two when their number is even). mR is the mean of the six recalls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deixis.errors import DeixisError
from deixis.metrics.ranks import best_ranks
from deixis.metrics.score_blocks import Integers, Scores

#: The K of Recall@K in the papers' retrieval tables.
RECALL_AT = (1, 5, 10)
#: The tie rule, as results name it.
TIES = "pessimistic: a right answer ranks behind every wrong one with the same score"


@dataclass(frozen=True)
class Figures:
    """How well one direction ranks: recalls in percent by K, ranks from 1, and what was ranked against what."""

    recall: Mapping[int, float]
    median_rank: float
    mean_rank: float
    queries: int
    candidates: int

    def as_dict(self) -> dict[str, Any]:
        """The figures under the names that results use: `r@1`, …, `median_rank`, `mean_rank`."""
        return {
            **{f"r@{k}": value for k, value in self.recall.items()},
            "median_rank": self.median_rank,
            "mean_rank": self.mean_rank,
        }


@dataclass(frozen=True)
class Ranking:
    """Both directions between images and captions; with several folds, the mean of each figure over the folds."""

    image_to_text: Figures
    text_to_image: Figures
    folds: int = 1

    @property
    def mean_recall(self) -> float:
        """mR: the mean of the recalls of both directions, in percent."""
        return float(np.mean([*self.image_to_text.recall.values(), *self.text_to_image.recall.values()]))

    def as_dict(self) -> dict[str, Any]:
        return {
            "image_to_text": self.image_to_text.as_dict(),
            "text_to_image": self.text_to_image.as_dict(),
            "mean_recall": self.mean_recall,
        }


def evaluate_ranking(scores: Scores, caption_images: npt.ArrayLike, *, folds: int = 1) -> Ranking:
    """Rank captions for every image and images for every caption.

    An image without captions asks nothing, but stays a wrong answer to every caption.

    Args:
        scores: `(images, captions)`.
        caption_images: `(captions,)`, the number of each caption's image.
        folds: cut the images, in their order, into this many equal parts, rank within each and average (the "1K test"
            on 5,000 images of MS-COCO is five folds).
    """
    images, captions = scores.shape
    owners = _owners(caption_images, captions, images)
    if folds < 1 or images % folds:
        raise DeixisError(f"{images} images cannot be cut into {folds} equal folds")
    directions: tuple[list[Figures], list[Figures]] = ([], [])
    for fold in range(folds):
        inside = np.arange(images) // (images // folds) == fold
        own = owners if folds == 1 else np.where(inside[owners], owners, -1)
        image_ranks, caption_ranks = best_ranks(scores, np.where(inside, np.arange(images), -1), own)
        own_captions, own_images = int(np.count_nonzero(inside[owners])), int(np.count_nonzero(inside))
        directions[0].append(figures(image_ranks[image_ranks > 0], own_captions))
        directions[1].append(figures(caption_ranks[caption_ranks > 0], own_images))
    return Ranking(mean_figures(directions[0]), mean_figures(directions[1]), folds)


def evaluate_sentences(scores: Scores, caption_images: npt.ArrayLike) -> Figures:
    """Rank, for every caption, all the others; right are those of the same image (paper 1, section 5.5).

    A caption is never an answer to itself; the only caption of an image asks nothing, but stays a wrong answer.

    Args:
        scores: `(captions, captions)`, the query in the row.
        caption_images: `(captions,)`, a number for each caption's image.
    """
    captions = scores.shape[0]
    if scores.shape != (captions, captions):
        raise DeixisError(f"scores between captions must be a square matrix, not {scores.shape[0]} × {scores.shape[1]}")
    _, owners = np.unique(_owners(caption_images, captions), return_inverse=True)
    ranks, _ = best_ranks(scores, owners, owners, itself=True)
    return figures(ranks[ranks > 0], captions - 1)


def figures(ranks: npt.ArrayLike, candidates: int, recall_at: Sequence[int] = RECALL_AT) -> Figures:
    """What the ranks of each query's best right answer, counted from 1, amount to."""
    found = np.asarray(ranks)
    if not found.size:
        raise DeixisError("nothing to rank: no query has a right answer")
    recall = {k: 100 * int(np.count_nonzero(found <= k)) / found.size for k in recall_at}
    return Figures(recall, float(np.median(found)), float(np.mean(found)), found.size, candidates)


def mean_figures(parts: Sequence[Figures]) -> Figures:
    """The mean of every figure over folds; queries and candidates are those of one fold, rounded."""
    recall = {k: float(np.mean([part.recall[k] for part in parts])) for k in parts[0].recall}
    median, mean = (float(np.mean([getattr(part, name) for part in parts])) for name in ("median_rank", "mean_rank"))
    queries, candidates = (
        round(np.mean([getattr(part, name) for part in parts])) for name in ("queries", "candidates")
    )
    return Figures(recall, median, mean, queries, candidates)


def random_figures(right: Iterable[int], candidates: int, recall_at: Sequence[int] = RECALL_AT) -> Figures:
    """The row of a method that ranks at random, in closed form.

    The best of m right answers among n candidates in random order ranks behind the first k with probability
    C(n − m, k) / C(n, k), and at (n + 1) / (m + 1) in the mean. The median rank is the first at which half of all
    queries are expected to have been answered.

    Args:
        right: how many right answers each query has; queries without any are left out.
        candidates: how many things are ranked for a query.
        recall_at: the K of the recalls.
    """
    counts, queries = np.unique([count for count in right if count > 0], return_counts=True)
    if not counts.size or counts[-1] > candidates:
        raise DeixisError(f"no query has between 1 and {candidates} right answers")
    share = queries / queries.sum()
    answered = np.zeros(candidates + 1)
    for count, weight in zip(counts, share, strict=True):
        # C(n − m, k) / C(n, k) for k = 0, 1, …: each step multiplies by (n − m − k) / (n − k).
        k = np.arange(candidates)
        missed = np.cumprod(np.maximum(candidates - count - k, 0) / (candidates - k))
        answered[1:] += weight * (1 - missed)
    recall = {k: 100 * float(answered[min(k, candidates)]) for k in recall_at}
    median = int(np.argmax(answered >= 0.5 - 1e-12))
    mean = float(np.sum(share * (candidates + 1) / (counts + 1)))
    return Figures(recall, float(median), mean, int(queries.sum()), candidates)


def captions_evenly(images: int, captions_per_image: int) -> Integers:
    """The image of each caption where every image has as many, listed image by image."""
    return np.repeat(np.arange(images), captions_per_image)


def _owners(caption_images: npt.ArrayLike, captions: int, images: int | None = None) -> Integers:
    owners = np.asarray(caption_images)
    if owners.shape != (captions,) or owners.dtype.kind not in "iu":
        raise DeixisError(
            f"the captions' images must be {captions} whole numbers, not {owners.dtype} of shape {owners.shape}"
        )
    wrong = np.flatnonzero((owners < 0) | (owners >= (np.inf if images is None else images)))
    if wrong.size:
        known = "are numbered from 0" if images is None else f"are 0 to {images - 1}"
        raise DeixisError(f"caption {wrong[0]} belongs to image {owners[wrong[0]]}, but images {known}")
    return owners.astype(np.int64, copy=False)
