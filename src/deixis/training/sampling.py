"""Mini-batches of two-branch networks: what sentences (section 5.1) and Algorithm 1 (phrases) share.

A batch has row indices of the data's tensors and masks of the matches; features are looked up where they are stored.
NumPy makes all choices, from the seed and the epoch, so they are the same on every device.

Readings of Algorithm 1:
- A phrase matches a region if both belong to one chain or ground-truth box, or if its string is also one of the chain's
  phrases. A sentence matches an image if it is, or equals, one of its captions. Such texts are never negatives.
  "Two different matches" are two different strings, or two different regions.
- A match added by neighbourhood sampling has its own K hardest triplets: the paper's mean number of triplets doubles.
- The control ("the same number of additional triplets randomly") adds as many random pairs of the training set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deixis.training.contrastive import Contrast
from deixis.training.placing import rows_of, send
from deixis.training.task import Batches

Indices = NDArray[np.int64]
Neighbourhood = Literal["none", "sampling", "random"]
Batch = TypeVar("Batch")


class RankingBatch(NamedTuple):
    """Images and texts to embed, and which of them match."""

    #: Rows of the data's images or regions, and of its texts or strings.
    images: Annotated[Tensor, "images"]
    texts: Annotated[Tensor, "texts"]
    contrast: Contrast
    #: Indices of the pairs that the batch is made from.
    pairs: Indices
    #: Counts to log.
    statistics: Mapping[str, Tensor]
    #: Which images are in matching pairs, and which images texts are contrasted with; None: all of them.
    targets: Annotated[Tensor, "targets"] | None = None
    candidates: Annotated[Tensor, "candidates"] | None = None
    #: Word ids of texts for a recurrent branch, padded with 0.
    token_ids: Annotated[Tensor, "texts", "words"] | None = None
    #: Of a padded batch: false for padding.
    image_mask: Annotated[Tensor, "images"] | None = None
    text_mask: Annotated[Tensor, "texts"] | None = None


class PairBatch(NamedTuple):
    """Images and texts to embed, and as many pairs of them labelled +1 as −1."""

    images: Annotated[Tensor, "images"]
    texts: Annotated[Tensor, "texts"]
    #: For each pair, its positions in `images` and in `texts`.
    image: Annotated[Tensor, "pairs"]
    text: Annotated[Tensor, "pairs"]
    labels: Annotated[Tensor, "pairs"]
    pairs: Indices
    statistics: Mapping[str, Tensor]
    token_ids: Annotated[Tensor, "texts", "words"] | None = None
    #: Of a padded batch: false for padding.
    image_mask: Annotated[Tensor, "images"] | None = None
    text_mask: Annotated[Tensor, "texts"] | None = None
    pair_mask: Annotated[Tensor, "pairs"] | None = None


class TokenIdRows:
    """Word ids of texts; those of a batch are cut to its longest text."""

    def __init__(self, ids: Tensor) -> None:
        self.ids, self.lengths = ids, as_indices((ids != 0).sum(1))

    def of(self, texts: Indices, rows: Tensor) -> Tensor:
        """`(texts, longest of them)`; `rows` are the indices `texts` on the device."""
        return rows_of(self.ids[:, : max(1, int(self.lengths[texts].max(initial=1)))], rows)


def as_statistics(values: Mapping[str, float], device: torch.device) -> dict[str, Tensor]:
    """Counts of a batch as scalars on the device, sent in one copy."""
    return dict(zip(values, send(torch.tensor([*values.values()]), device).unbind(), strict=True))


def shuffled(
    count: int,
    size: int,
    seed: int,
    epoch: int,
    make: Callable[[int, Indices, Indices, np.random.Generator], Batch],
    arrange: Callable[[np.random.Generator], Indices] | None = None,
    steps: int | None = None,
) -> Batches[Batch]:
    """Each pair once per epoch, in random sets of `size`; `make` also gets the pairs after a set.

    With `steps`, an epoch has that many sets, from as many passes over the pairs as that needs. A last set of one pair
    is joined to the one before it, since batch norm needs two rows. `arrange` gives the order of the pairs instead of a
    random one.
    """
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(count) if arrange is None else arrange(random)
    if steps is not None:
        while len(order) < steps * size:
            order = np.concatenate([order, random.permutation(count) if arrange is None else arrange(random)])
        order = order[: steps * size]
        count = len(order)
    starts = list(range(0, count, size))
    if len(starts) > 1 and count - starts[-1] == 1:
        starts.pop()
    ends = [*starts[1:], count]

    def made() -> Iterator[Batch]:
        for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
            following = order[np.arange(end, end + 2 * size) % count]
            yield make(epoch, order[start:end], following, np.random.default_rng((seed, epoch, index)))

    return Batches(len(starts), made())


def second_matches(target: Indices, match: Indices, options: Indices) -> tuple[int, Indices, int]:
    """The number of different targets, the positions that get a second match, and the number of targets without one.

    A second match is added to every target with a single one, at a position with two or more `options`.

    >>> second_matches(np.array([7, 5, 7, 5, 9]), np.array([1, 2, 3, 2, 2]), np.array([2, 1, 2, 3, 1]))
    (3, array([3]), 1)
    """
    order = np.argsort(-options, kind="stable")
    targets, first, index = np.unique(target[order], return_index=True, return_inverse=True)
    _, pairs = np.unique(np.stack([index, match[order]]), axis=1, return_index=True)
    alone = order[first[np.bincount(index[pairs]) == 1]]
    added = np.sort(alone[options[alone] > 1])
    return len(targets), added, len(alone) - len(added)


class Choices:
    """The different strings of each target (the chain of a phrase, the image of a sentence).

    `rows` has one pair for every string of every target, target by target. Those with the target of pair p are
    rows[first[p] : last[p]]; the string of pair p is at position[p].
    """

    def __init__(self, target: Indices, string: Indices) -> None:
        self.string = string
        keys = target * (string.max(initial=0) + 1) + string
        ordered, self.rows = np.unique(keys, return_index=True)
        self.position = np.searchsorted(ordered, keys)
        self.first = np.searchsorted(target[self.rows], target)
        self.last = np.searchsorted(target[self.rows], target, side="right")

    def count(self, pairs: Indices) -> Indices:
        counts: Indices = self.last[pairs] - self.first[pairs]
        return counts

    def has(self, pairs: Indices, strings: Indices) -> NDArray[np.bool_]:
        """(pairs, strings): whether the pair's target has the string."""
        different, column = np.unique(strings, return_inverse=True)
        positions, lengths = concatenated_ranges(self.first[pairs], self.last[pairs])
        known = self.string[self.rows[positions]]
        nearest = np.searchsorted(different, known).clip(max=len(different) - 1)
        equal = different[nearest] == known
        has = np.zeros((len(pairs), len(different)), bool)
        has[np.repeat(np.arange(len(pairs)), lengths)[equal], nearest[equal]] = True
        return has[:, column.reshape(-1)]

    def another(self, pairs: Indices, random: np.random.Generator) -> Indices:
        """For each pair a random one of the same target with another string; there must be one."""
        return self.rows[other_than(self.position[pairs], self.first[pairs], self.last[pairs], random)]

    def elsewhere(self, pairs: Indices, random: np.random.Generator) -> Indices:
        """For each pair a random one of another target; there must be one."""
        drawn = random.integers(0, len(self.rows) - self.count(pairs))
        others: Indices = self.rows[drawn + self.count(pairs) * (drawn >= self.first[pairs])]
        return others


def concatenated_ranges(first: Indices, last: Indices) -> tuple[Indices, Indices]:
    """The ranges [first, last) concatenated, and the length of each.

    >>> concatenated_ranges(np.array([4, 9]), np.array([6, 12]))
    (array([ 4,  5,  9, 10, 11]), array([2, 3]))
    """
    lengths = last - first
    ends = lengths.cumsum()
    return np.arange(lengths.sum()) + np.repeat(last - ends, lengths), lengths


def other_than(position: Indices, first: Indices, last: Indices, random: np.random.Generator) -> Indices:
    """A random index in [first, last) other than `position`; there must be one."""
    drawn = random.integers(first, last - 1)
    return drawn + (drawn >= position)


def as_indices(tensor: Tensor) -> Indices:
    return tensor.cpu().numpy().astype(np.int64)
