"""Retrieval metrics: image → text and text → image (all papers), and sentence → sentence (two-branch, section 5.5).

Recall@K is a hit rate, as in the papers: the percentage of queries with at least one correct answer among the first K.
(Other libraries divide by the number of correct answers instead.) A query's rank is that of its best correct answer;
ties count against it. Ranks start at 1; the median of an even number of ranks is the mean of the middle two. Mean
recall (mR) is the mean of the recalls of both directions.

`recall_at_k` and `embedding_recall_at_k` take plain arrays. The protocols use `evaluate_ranking`, which takes any
source of scores (`deixis.metrics.score_blocks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deixis.errors import DeixisError
from deixis.metrics.ranks import best_ranks
from deixis.metrics.score_blocks import EmbeddingScores, Integers, MatrixScores, Scores

#: The K of Recall@K in the papers' retrieval tables.
RECALL_AT = (1, 5, 10)
#: The tie rule, as results name it.
TIES = "pessimistic: a right answer ranks behind every wrong one with the same score"


def recall_at_k(
    scores: npt.ArrayLike,
    captions_per_image: int = 5,
    *,
    image_of: npt.ArrayLike | None = None,
    recall_at: Sequence[int] = RECALL_AT,
    folds: int = 1,
) -> dict[str, Any]:
    """Recall@K, median and mean rank of an image × caption score matrix, in both directions.

    A correct answer ranks behind every wrong one with the same score. An image without captions is no query, but stays
    a wrong answer to every caption.

    Args:
        scores: `(images, captions)`, higher is better. The array may be memory-mapped; it is read in blocks.
        captions_per_image: number of captions of every image, when captions are listed image by image.
        image_of: `(captions,)`, the index of each caption's image. Replaces `captions_per_image` where the numbers
            differ or the captions are in another order.
        recall_at: the values of K.
        folds: cut the images, in order, into this many equal parts, rank within each and average. MS-COCO's "1K test"
            is five folds of 5,000 images.

    Returns:
        `image_to_text` and `text_to_image`, each with `r@1`, `r@5`, `r@10` in percent, `median_rank` and `mean_rank`;
        and `mean_recall`.

    Raises:
        DeixisError: the shapes do not fit together, or a score is NaN or +inf (the message names row and column).

    >>> scores = [[0.9, 0.8, 0.1, 0.3],
    ...           [0.2, 0.8, 0.7, 0.6]]
    >>> found = recall_at_k(scores, captions_per_image=2)
    >>> found["image_to_text"]["r@1"], found["text_to_image"]["r@1"]
    (50.0, 75.0)

    The second caption ties with the wrong image, and the tie counts as a miss:

    >>> found["text_to_image"]["mean_rank"]
    1.25
    >>> recall_at_k(scores, image_of=[0, 0, 1, 1])["mean_recall"] == found["mean_recall"]
    True
    """
    matrix = MatrixScores(scores)
    owners = _image_of(matrix.shape, captions_per_image, image_of)
    return evaluate_ranking(matrix, owners, folds=folds, recall_at=recall_at).as_dict()


def embedding_recall_at_k(
    images: npt.ArrayLike,
    captions: npt.ArrayLike,
    captions_per_image: int = 5,
    *,
    image_of: npt.ArrayLike | None = None,
    recall_at: Sequence[int] = RECALL_AT,
    folds: int = 1,
    normalize: bool = True,
) -> dict[str, Any]:
    """`recall_at_k` of the cosines of two sets of embeddings; the score matrix is never in memory as a whole.

    Scores that differ by no more than rounding count as ties (see `EmbeddingScores`).

    Args:
        images: `(images, dim)`, floats; may be memory-mapped.
        captions: `(captions, dim)`, likewise.
        captions_per_image: as in `recall_at_k`.
        image_of: as in `recall_at_k`.
        recall_at: the values of K.
        folds: as in `recall_at_k`.
        normalize: compare by cosines; False compares by dot products.

    Returns:
        The same dictionary as `recall_at_k`.

    Raises:
        DeixisError: the shapes do not fit together, or an embedding is not finite (the message names its row).

    >>> images = [[1.0, 0.0], [0.0, 1.0]]
    >>> captions = [[3.0, 1.0], [1.0, 2.0]]
    >>> embedding_recall_at_k(images, captions, captions_per_image=1)["text_to_image"]["r@1"]
    100.0
    """
    scores = EmbeddingScores(images, captions, normalize=normalize)
    owners = _image_of(scores.shape, captions_per_image, image_of)
    return evaluate_ranking(scores, owners, folds=folds, recall_at=recall_at).as_dict()


def random_recall_at_k(
    images: int,
    captions_per_image: int = 5,
    *,
    image_of: npt.ArrayLike | None = None,
    recall_at: Sequence[int] = RECALL_AT,
) -> dict[str, Any]:
    """What `recall_at_k` is expected to give for a random order, in closed form.

    Args:
        images: the number of images.
        captions_per_image: number of captions of every image.
        image_of: `(captions,)`, the index of each caption's image, where the numbers differ.
        recall_at: the values of K.

    >>> found = random_recall_at_k(1000)
    >>> round(found["image_to_text"]["r@1"], 3), round(found["text_to_image"]["r@10"], 3)
    (0.1, 1.0)
    """
    owners = captions_evenly(images, captions_per_image) if image_of is None else np.asarray(image_of)
    owners = _checked_owners(owners, len(owners), images)
    return Ranking(
        random_figures(np.bincount(owners, minlength=images).tolist(), len(owners), recall_at),
        random_figures([1] * len(owners), images, recall_at),
    ).as_dict()


@dataclass(frozen=True)
class Figures:
    """One direction: recalls in percent by K, ranks from 1, and how many queries and candidates there were."""

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


def evaluate_ranking(
    scores: Scores, caption_images: npt.ArrayLike, *, folds: int = 1, recall_at: Sequence[int] = RECALL_AT
) -> Ranking:
    """Rank captions for every image and images for every caption, from any source of scores.

    Args:
        scores: `(images, captions)`.
        caption_images: `(captions,)`, the index of each caption's image.
        folds: as in `recall_at_k`.
        recall_at: the values of K.
    """
    images, captions = scores.shape
    owners = _checked_owners(caption_images, captions, images)
    if folds < 1 or images % folds:
        raise DeixisError(f"{images} images cannot be cut into {folds} equal folds")
    directions: tuple[list[Figures], list[Figures]] = ([], [])
    for fold in range(folds):
        inside = np.arange(images) // (images // folds) == fold
        fold_owners = owners if folds == 1 else np.where(inside[owners], owners, -1)
        image_ranks, caption_ranks = best_ranks(scores, np.where(inside, np.arange(images), -1), fold_owners)
        fold_captions, fold_images = int(np.count_nonzero(inside[owners])), int(np.count_nonzero(inside))
        directions[0].append(figures(image_ranks[image_ranks > 0], fold_captions, recall_at))
        directions[1].append(figures(caption_ranks[caption_ranks > 0], fold_images, recall_at))
    return Ranking(mean_figures(directions[0]), mean_figures(directions[1]), folds)


def evaluate_sentences(scores: Scores, caption_images: npt.ArrayLike) -> Figures:
    """Rank all other captions for every caption; correct are those of the same image (two-branch, section 5.5).

    A caption is never an answer to itself. The only caption of an image is no query, but stays a wrong answer.

    Args:
        scores: `(captions, captions)`, the query in the row.
        caption_images: `(captions,)`, an index for each caption's image.
    """
    captions = scores.shape[0]
    if scores.shape != (captions, captions):
        raise DeixisError(f"scores between captions must be a square matrix, not {scores.shape[0]} × {scores.shape[1]}")
    _, owners = np.unique(_checked_owners(caption_images, captions), return_inverse=True)
    ranks, _ = best_ranks(scores, owners, owners, itself=True)
    return figures(ranks[ranks > 0], captions - 1)


def figures(ranks: npt.ArrayLike, candidates: int, recall_at: Sequence[int] = RECALL_AT) -> Figures:
    """Summarize ranks, counted from 1, of each query's best correct answer."""
    values = np.asarray(ranks)
    if not values.size:
        raise DeixisError("nothing to rank: no query has a right answer")
    recall = {k: 100 * int(np.count_nonzero(values <= k)) / values.size for k in recall_at}
    return Figures(recall, float(np.median(values)), float(np.mean(values)), values.size, candidates)


def mean_figures(parts: Sequence[Figures]) -> Figures:
    """The mean of every figure over folds; queries and candidates are those of one fold, rounded."""
    recall = {k: float(np.mean([part.recall[k] for part in parts])) for k in parts[0].recall}
    median, mean = (float(np.mean([getattr(part, name) for part in parts])) for name in ("median_rank", "mean_rank"))
    queries, candidates = (
        round(np.mean([getattr(part, name) for part in parts])) for name in ("queries", "candidates")
    )
    return Figures(recall, median, mean, queries, candidates)


def random_figures(right: Iterable[int], candidates: int, recall_at: Sequence[int] = RECALL_AT) -> Figures:
    """The expected figures of a random order, in closed form.

    The best of m correct answers among n candidates in random order ranks behind the first k with probability
    C(n − m, k) / C(n, k), and at (n + 1) / (m + 1) on average. The median rank is the first at which half of all
    queries are expected to have been answered.

    Args:
        right: the number of correct answers of each query; queries without any are left out.
        candidates: the number of candidates of a query.
        recall_at: the values of K.

    >>> figures = random_figures([1], candidates=10)
    >>> figures.recall[5], figures.median_rank, figures.mean_rank
    (50.0, 5.0, 5.5)
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
    """The image of each caption where every image has the same number, listed image by image.

    >>> captions_evenly(2, captions_per_image=3).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    return np.repeat(np.arange(images), captions_per_image)


def _image_of(shape: tuple[int, int], captions_per_image: int, image_of: npt.ArrayLike | None) -> npt.ArrayLike:
    if image_of is not None:
        return image_of
    images, captions = shape
    if captions != images * captions_per_image:
        hint = "; is the matrix transposed?" if images == captions * captions_per_image else ""
        raise DeixisError(
            f"{images} images with {captions_per_image} captions each need {images * captions_per_image} captions, "
            f"not {captions}: give captions_per_image or image_of{hint}"
        )
    return captions_evenly(images, captions_per_image)


def _checked_owners(caption_images: npt.ArrayLike, captions: int, images: int | None = None) -> Integers:
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
