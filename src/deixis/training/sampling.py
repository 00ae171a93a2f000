"""Mini-batches for the two-branch networks: Algorithm 1 of paper 1 (phrases) and its simpler form of section 5.1.

A batch names rows of the data's tensors and says which match; features are looked up where they are stored. All choices
are made by NumPy from the seed and the epoch, so they are the same on every device. Phrases are in `phrase_sampling`.

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
from deixis.training.contrastive import Contrast
from deixis.training.placing import rows_of, send
from deixis.training.task import Batches

Numbers = NDArray[np.int64]
Neighbourhood = Literal["none", "sampling", "random"]
Batch = TypeVar("Batch")


class SentenceSamplerRecipe(Struct, frozen=True, forbid_unknown_fields=True):
    """`neighbourhood` "sampling" gives every image a second sentence, "random" is the control for it."""

    batch: Annotated[int, Meta(ge=2)] = 500
    neighbourhood: Neighbourhood = "none"


class RankingBatch(NamedTuple):
    """Images and texts to embed, and which of them match."""

    #: Rows of the data's images or regions, and of its texts or strings; masks are true where there is one.
    images: Annotated[Tensor, "images"]
    image_mask: Annotated[Tensor, "images"]
    texts: Annotated[Tensor, "texts"]
    text_mask: Annotated[Tensor, "texts"]
    contrast: Contrast
    #: Numbers of the pairs that the batch began with.
    pairs: Numbers
    #: Figures to log.
    statistics: Mapping[str, Tensor]
    #: Which of the images are in matching pairs, and which texts are contrasted with; None: all of them.
    targets: Annotated[Tensor, "targets"] | None = None
    candidates: Annotated[Tensor, "candidates"] | None = None
    #: The words of texts that are read word by word, 0 = padding at the end.
    token_ids: Annotated[Tensor, "texts", "words"] | None = None


class PairBatch(NamedTuple):
    """Images and texts to embed, and pairs of them with labels +1 and −1, as many of each."""

    images: Annotated[Tensor, "images"]
    image_mask: Annotated[Tensor, "images"]
    texts: Annotated[Tensor, "texts"]
    text_mask: Annotated[Tensor, "texts"]
    #: Of each pair the place in `images` and in `texts`.
    image: Annotated[Tensor, "pairs"]
    text: Annotated[Tensor, "pairs"]
    labels: Annotated[Tensor, "pairs"]
    pair_mask: Annotated[Tensor, "pairs"]
    pairs: Numbers
    statistics: Mapping[str, Tensor]
    token_ids: Annotated[Tensor, "texts", "words"] | None = None


class Sentences(Protocol):
    """What is needed of `deixis.training.pair_data.SentenceData`."""

    @property
    def image_of(self) -> Tensor: ...  # (captions,)
    @property
    def captions(self) -> Iterable[Hashable]: ...  # (captions,) equal where their texts are


class SentenceSampler:
    """Batches of image-sentence pairs (section 5.1); a pair's number is its caption's row.

    Args:
        token_ids: `(captions, longest)`, where captions are read word by word.
    """

    def __init__(
        self, data: Sentences, recipe: SentenceSamplerRecipe, seed: int, token_ids: Tensor | None = None
    ) -> None:
        self.recipe, self.seed, self.device = recipe, seed, data.image_of.device
        self.token_ids = None if token_ids is None else TokenIdRows(token_ids)
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
            images, added, alone = second_matches(self.image[base], self.string[base], self.choices.count(base))
            statistics |= {"images": float(images), "images_without_second": float(alone)}
        if self.recipe.neighbourhood == "random":
            base = texts = np.concatenate([base, following[: len(added)]])
            added = added[:0]
        elif len(added):
            texts = np.concatenate([base, self.choices.another(base[added], random)])
        count = len(base)
        # Each text matches the image of one pair; the first `start` pairs are also contrasted from text to image.
        owner, image, string = self._send(np.stack([
            np.concatenate([np.arange(count), added]), self.image[texts], self.string[texts]
        ]))  # fmt: skip
        places = torch.arange(len(texts), device=self.device)
        same_image, same_string = image[:, None] == image, string[:, None] == string
        different = ~(same_image | same_string)
        match = owner == places[:count, None]
        contrast = Contrast(
            match_texts=match,
            negative_texts=different[:count],
            match_images=match.T & (places < start)[:, None],
            negative_images=different[:, :count],
        )
        if self.recipe.neighbourhood == "sampling":
            contrast = contrast._replace(same_texts=same_image & ~same_string, different_texts=different)
        rows = self._send(texts)
        return RankingBatch(
            images=image[:count],
            image_mask=torch.ones_like(image[:count], dtype=torch.bool),
            texts=rows,
            text_mask=torch.ones_like(rows, dtype=torch.bool),
            contrast=contrast,
            pairs=base[:start],
            statistics=as_statistics(statistics, self.device),
            token_ids=self._token_ids(texts, rows),
        )

    def _pairs(self, epoch: int, base: Numbers, following: Numbers, random: np.random.Generator) -> PairBatch:
        texts = np.concatenate([base, self.choices.elsewhere(base, random)])
        places = torch.arange(len(texts), device=self.device)
        images, rows = self._send(self.image[base]), self._send(texts)
        return PairBatch(
            images=images,
            image_mask=torch.ones_like(images, dtype=torch.bool),
            texts=rows,
            text_mask=torch.ones_like(rows, dtype=torch.bool),
            image=places % len(base),
            text=places,
            labels=torch.where(places < len(base), 1.0, -1.0),
            pair_mask=torch.ones_like(places, dtype=torch.bool),
            pairs=base,
            statistics=as_statistics({"pairs": float(len(texts))}, self.device),
            token_ids=self._token_ids(texts, rows),
        )

    def _token_ids(self, texts: Numbers, rows: Tensor) -> Tensor | None:
        return None if self.token_ids is None else self.token_ids.of(texts, rows)

    def _send(self, numbers: Numbers) -> Tensor:
        return torch.from_numpy(numbers).to(self.device, non_blocking=True)


class TokenIdRows:
    """Token ids of texts, of which those of a batch are cut to its longest text."""

    def __init__(self, ids: Tensor) -> None:
        self.ids, self.lengths = ids, as_numbers((ids != 0).sum(1))

    def of(self, texts: Numbers, rows: Tensor) -> Tensor:
        """`(texts, longest of them)`, of texts whose numbers are also on the device, as `rows`."""
        return rows_of(self.ids[:, : max(1, int(self.lengths[texts].max(initial=1)))], rows)


def as_statistics(values: Mapping[str, float], device: torch.device) -> dict[str, Tensor]:
    """Figures of a batch as scalars on the device, sent together."""
    return dict(zip(values, send(torch.tensor([*values.values()]), device).unbind(), strict=True))


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


def second_matches(target: Numbers, match: Numbers, options: Numbers) -> tuple[int, Numbers, int]:
    """How many different targets there are, where to add a second match, and how many targets stay without one.

    A second match is added to every target with a single one, at a place where there are two `options` or more.

    >>> second_matches(np.array([7, 5, 7, 5, 9]), np.array([1, 2, 3, 2, 2]), np.array([2, 1, 2, 3, 1]))
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
        place, lengths = concatenated_ranges(self.first[pairs], self.last[pairs])
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


def concatenated_ranges(first: Numbers, last: Numbers) -> tuple[Numbers, Numbers]:
    """All numbers of the ranges [first, last) one after another, and the length of each range.

    >>> concatenated_ranges(np.array([4, 9]), np.array([6, 12]))
    (array([ 4,  5,  9, 10, 11]), array([2, 3]))
    """
    lengths = last - first
    ends = lengths.cumsum()
    return np.arange(lengths.sum()) + np.repeat(last - ends, lengths), lengths


def other_than(place: Numbers, first: Numbers, last: Numbers, random: np.random.Generator) -> Numbers:
    """A random place in [first, last) that is not `place`; there must be one."""
    drawn = random.integers(first, last - 1)
    return drawn + (drawn >= place)


def as_numbers(tensor: Tensor) -> Numbers:
    return tensor.cpu().numpy().astype(np.int64)
