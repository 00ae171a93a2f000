"""Mini-batches for the two-branch networks: Algorithm 1 of paper 1 (phrases) and its simpler form of section 5.1.

A batch names rows of the data's tensors and who matches whom; features are gathered where they lie. All choices are
made by NumPy from the seed and the epoch, so they are the same on every device. Phrases are in `phrase_sampling`.

Readings of Algorithm 1:
- A phrase matches a region if both belong to one chain or drawn box, or if its string is one that the chain goes by; a
  sentence matches an image if it is one of its captions, or equal to the one at hand. Such a text is never a negative.
  "Two different matches" are two different strings, or two different regions.
- A match that neighbourhood sampling adds gets its own K hardest triplets: the paper's mean number of triplets doubles.
- The control ("the same number of additional triplets randomly") adds as many random pairs of the training set.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Annotated, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from msgspec import Meta, Struct
from numpy.typing import NDArray
from torch import Tensor

from deixis.errors import DeixisError
from deixis.training.contrastive import Contrast, Direction, Neighbours
from deixis.training.task import Batches

Numbers = NDArray[np.int64]
Neighbourhood = Literal["none", "sampling", "random"]
Batch = TypeVar("Batch")
#: By device: widths of texts that are read word by word are multiples of so many, for few graphs to record.
COLUMNS = {"cpu": 1, "cuda": 8}


class SentenceSamplerRecipe(Struct, frozen=True, forbid_unknown_fields=True):
    """`neighbourhood` "sampling" gives every image a second sentence, "random" is the control for it."""

    batch: Annotated[int, Meta(ge=2)] = 500
    neighbourhood: Neighbourhood = "none"


class RankingBatch(NamedTuple):
    """Rows to embed, and the contrast over them; `pairs` are the numbers of the pairs it was begun with."""

    images: Tensor  # (rows,) of the data's images or regions
    texts: Tensor  # (rows,) of the data's texts or strings
    contrast: Contrast
    pairs: Numbers
    statistics: Mapping[str, Tensor | float]
    columns: Tensor | None = None  # (columns,) of the data's texts that hold all words of these; None: all
    real_images: Tensor | None = None  # () how many of the rows are no padding; None: all
    real_texts: Tensor | None = None


class PairBatch(NamedTuple):
    """Rows to embed, and pairs of them with labels +1 and −1, as many of each."""

    images: Tensor  # (rows,) of the data's images or regions
    texts: Tensor  # (rows,) of the data's texts or strings
    image: Tensor  # (pairs,) place in `images`
    text: Tensor  # (pairs,) place in `texts`
    labels: Tensor  # (pairs,)
    pairs: Numbers
    statistics: Mapping[str, Tensor | float]
    columns: Tensor | None = None  # as in `RankingBatch`
    real_images: Tensor | None = None
    real_texts: Tensor | None = None


class Sentences(Protocol):
    """What is needed of `deixis.training.pair_data.SentenceData`."""

    @property
    def image_of(self) -> Tensor: ...  # (captions,)
    @property
    def captions(self) -> Iterable[Hashable]: ...  # (captions,) equal where their texts are


class SentenceSampler:
    """Batches of image-sentence pairs (section 5.1); a pair's number is its caption's row.

    Args:
        lengths: (captions,) their words, where they are read word by word.
    """

    def __init__(
        self, data: Sentences, recipe: SentenceSamplerRecipe, seed: int, lengths: Numbers | None = None
    ) -> None:
        self.recipe, self.seed, self.device, self.lengths = recipe, seed, data.image_of.device, lengths
        self.image = as_numbers(data.image_of)
        numbers: dict[Hashable, int] = {}
        self.string = np.array([numbers.setdefault(caption, len(numbers)) for caption in data.captions], np.int64)
        self.choices = Choices(self.image, self.string)

    def triplets(self, epoch: int) -> Batches[RankingBatch]:
        """For the embedding network: negatives are the other sentences and images of the batch."""
        return shuffled(len(self.image), self.recipe.batch, self.seed, epoch, self._triplets)

    def pairs(self, epoch: int) -> Batches[PairBatch]:
        """For the similarity network: each pair (x, y) and (x, a random y′ of another image)."""
        if len(np.unique(self.image)) < 2:
            raise DeixisError("a similarity network learns from sentences of other images: it needs two images or more")
        return shuffled(len(self.image), self.recipe.batch, self.seed, epoch, self._pairs)

    def _triplets(self, epoch: int, base: Numbers, following: Numbers, random: np.random.Generator) -> RankingBatch:
        start = len(base)
        added, texts, statistics = base[:0], base, {"pairs": float(start)}
        if self.recipe.neighbourhood != "none":
            images, added, alone = seconds(self.image[base], self.string[base], self.choices.count(base))
            statistics |= {"images": float(images), "images_without_second": float(alone)}
        if self.recipe.neighbourhood == "random":
            base = texts = np.concatenate([base, following[: len(added)]])
            added = added[:0]
        elif len(added):
            texts = np.concatenate([base, self.choices.another(base[added], random)])
        send = self._send
        anchor = send(np.concatenate([np.arange(len(base)), added]))
        initial = anchor[:start]
        image, string = send(self.image[texts]), send(self.string[texts])
        match = (image[:, None] == image) | (string[:, None] == string)
        neighbours = None
        if self.recipe.neighbourhood == "sampling":
            one, other = together(self.image[texts])
            apart = self.string[texts[one]] != self.string[texts[other]]
            everyone = torch.arange(len(texts), device=self.device)
            neighbours = Neighbours(everyone, send(one[apart]), send(other[apart]), ~match)
        contrast = Contrast(
            Direction(anchor, torch.arange(len(texts), device=self.device), ~match[anchor]),
            Direction(initial, initial, ~match[:start, : len(base)]),
            texts=neighbours,
        )
        rows = send(self.image[base]), send(texts)
        return RankingBatch(*rows, contrast, base[:start], statistics, columns_of(self.lengths, texts, self.device))

    def _pairs(self, epoch: int, base: Numbers, following: Numbers, random: np.random.Generator) -> PairBatch:
        texts = np.concatenate([base, self.choices.elsewhere(base, random)])
        places = np.arange(2 * len(base))
        send = self._send
        labels = torch.ones(len(places), device=self.device)
        labels[len(base) :] = -1
        return PairBatch(
            send(self.image[base]),
            send(texts),
            send(places % len(base)),
            send(places),
            labels,
            base,
            {"pairs": float(len(places))},
            columns_of(self.lengths, texts, self.device),
        )

    def _send(self, numbers: Numbers) -> Tensor:
        return torch.from_numpy(numbers).to(self.device, non_blocking=True)


def shuffled(
    count: int,
    size: int,
    seed: int,
    epoch: int,
    make: Callable[[int, Numbers, Numbers, np.random.Generator], Batch],
) -> Batches[Batch]:
    """Every pair once in an epoch, in random sets of `size`; `make` is also given the pairs that follow a set.

    A last set of one pair joins the one before it: batch normalization needs two rows.
    """
    order = np.random.default_rng((seed, epoch)).permutation(count)
    starts = list(range(0, count, size))
    if len(starts) > 1 and count - starts[-1] == 1:
        starts.pop()
    ends = [*starts[1:], count]

    def made() -> Iterator[Batch]:
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            following = order[np.arange(end, end + 2 * size) % count]
            yield make(epoch, order[start:end], following, np.random.default_rng((seed, epoch, number)))

    return Batches(len(starts), made())


def seconds(target: Numbers, match: Numbers, options: Numbers) -> tuple[int, Numbers, int]:
    """How many different targets there are, where to add a second match, and how many targets stay without one.

    A second is added to every target with one match alone, at a place where there are two `options` or more.

    >>> seconds(np.array([7, 5, 7, 5, 9]), np.array([1, 2, 3, 2, 2]), np.array([2, 1, 2, 3, 1]))
    (3, array([3]), 1)
    """
    order = np.argsort(-options, kind="stable")
    targets, first, number = np.unique(target[order], return_index=True, return_inverse=True)
    _, each = np.unique(np.stack([number, match[order]]), axis=1, return_index=True)
    alone = order[first[np.bincount(number[each]) == 1]]
    added = np.sort(alone[options[alone] > 1])
    return len(targets), added, len(alone) - len(added)


class Choices:
    """The different strings of each target (the chain of a phrase, the image of a sentence), found by pair.

    `rows` has one pair for every string of every target, target by target; those of pair p are
    rows[first[p] : last[p]], and its own string is at place[p].
    """

    def __init__(self, target: Numbers, string: Numbers) -> None:
        self.string = string
        keys = target * (string.max(initial=0) + 1) + string
        ordered, self.rows = np.unique(keys, return_index=True)
        self.place = np.searchsorted(ordered, keys)
        self.first = np.searchsorted(target[self.rows], target)
        self.last = np.searchsorted(target[self.rows], target, side="right")

    def count(self, pairs: Numbers) -> Numbers:
        counts: Numbers = self.last[pairs] - self.first[pairs]
        return counts

    def has(self, pairs: Numbers, strings: Numbers) -> NDArray[np.bool_]:
        """(pairs, strings): whether the pair's target has the string."""
        different, column = np.unique(strings, return_inverse=True)
        place, lengths = spread(self.first[pairs], self.last[pairs])
        known = self.string[self.rows[place]]
        found = np.searchsorted(different, known).clip(max=len(different) - 1)
        here = different[found] == known
        held = np.zeros((len(pairs), len(different)), bool)
        held[np.repeat(np.arange(len(pairs)), lengths)[here], found[here]] = True
        return held[:, column.reshape(-1)]

    def another(self, pairs: Numbers, random: np.random.Generator) -> Numbers:
        """For each pair one of the same target with another string; there must be one."""
        return self.rows[other_than(self.place[pairs], self.first[pairs], self.last[pairs], random)]

    def elsewhere(self, pairs: Numbers, random: np.random.Generator) -> Numbers:
        """For each pair one of another target; there must be one."""
        drawn = random.integers(0, len(self.rows) - self.count(pairs))
        found: Numbers = self.rows[drawn + self.count(pairs) * (drawn >= self.first[pairs])]
        return found


def spread(first: Numbers, last: Numbers) -> tuple[Numbers, Numbers]:
    """All places of the ranges [first, last) one after another, and the length of each range.

    >>> spread(np.array([4, 9]), np.array([6, 12]))
    (array([ 4,  5,  9, 10, 11]), array([2, 3]))
    """
    lengths = last - first
    ends = lengths.cumsum()
    return np.arange(lengths.sum()) + np.repeat(last - ends, lengths), lengths


def together(owner: Numbers) -> tuple[Numbers, Numbers]:
    """All ordered pairs of places with one owner, a place with itself included.

    >>> together(np.array([7, 3, 7]))
    (array([0, 0, 1, 2, 2]), array([0, 2, 1, 0, 2]))
    """
    order = np.argsort(owner, kind="stable")
    sides = (np.searchsorted(owner, owner, side=side, sorter=order) for side in ("left", "right"))
    place, lengths = spread(*sides)
    return np.repeat(np.arange(len(owner)), lengths), order[place]


def other_than(place: Numbers, first: Numbers, last: Numbers, random: np.random.Generator) -> Numbers:
    """A random place in [first, last) that is not `place`; there must be one."""
    drawn = random.integers(first, last - 1)
    return drawn + (drawn >= place)


def columns_of(lengths: Numbers | None, texts: Numbers, device: torch.device) -> Tensor | None:
    """`(columns,)`: those of some texts that hold words, where their lengths are given."""
    return None if lengths is None else torch.arange(width_of(lengths[texts], device), device=device)


def width_of(lengths: Numbers, device: torch.device) -> int:
    """How many columns texts of these lengths are given.

    >>> [width_of(np.array([2, 9]), torch.device(kind)) for kind in ("cpu", "cuda")]
    [9, 16]
    """
    step = COLUMNS[device.type]
    return step * max(1, -(-int(lengths.max(initial=1)) // step))


def as_numbers(tensor: Tensor) -> Numbers:
    return tensor.cpu().numpy().astype(np.int64)
