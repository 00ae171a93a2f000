"""Mini-batches of regions and phrases: Algorithm 1 for a whole batch at once; `reference.py` has it triplet by triplet.

Readings are in `deixis.training.sampling`. In step 3.c.ii the second region is from the same picture, as printed, so
without positive region augmentation there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from msgspec import Meta, Struct
from numpy.typing import NDArray
from torch import Tensor

from deixis.training.contrastive import Contrast
from deixis.training.phrase_pairs import PhraseData
from deixis.training.placing import send
from deixis.training.sampling import (
    Choices,
    Indices,
    Neighbourhood,
    PairBatch,
    RankingBatch,
    TokenIdRows,
    as_indices,
    as_statistics,
    concatenated_ranges,
    other_than,
    second_matches,
    shuffled,
)
from deixis.training.task import Batches

Batch = TypeVar("Batch")


class PhraseSamplerRecipe(Struct, frozen=True, forbid_unknown_fields=True):
    """Steps of Algorithm 1, and two options that the paper does not have.

    Attributes:
        positives: "single" uses the ground-truth box alone, "augmented" is step 2.
        neighbourhood: "sampling" is step 3.c, "random" its control.
        negatives: "batch" (not in the paper) also contrasts a phrase with target regions of pictures without it.
        candidates: number of random negative regions per pair; None (as in the paper): all.
        exemplars: use at most this many random pairs per phrase, chosen once, as CCA does (10 gives the 130,000 pairs
            of section 4.2); None: all pairs.
        steps: mini-batches per epoch, from as many passes over the pairs as that needs (4,000 in section 4.3); None:
            every pair once.
    """

    batch: Annotated[int, Meta(ge=2)] = 100
    positives: Literal["single", "augmented"] = "augmented"
    neighbourhood: Neighbourhood = "none"
    negatives: Literal["picture", "batch"] = "picture"
    candidates: Annotated[int, Meta(ge=1)] | None = None
    exemplars: Annotated[int, Meta(ge=1)] | None = None
    steps: Annotated[int, Meta(ge=1)] | None = None


class _Targets(NamedTuple):
    """Texts and regions of the matching pairs of a batch; first those of the pairs `base`, then second matches.

    The owner of a text or region is the index in `base` of the pair that it matches. The first `text_pairs` texts match
    their owner's region (step 3.a), the first `region_pairs` regions their owner's text (step 3.b).
    """

    base: Indices
    strings: Indices
    text_owner: Indices
    regions: Indices
    region_owner: Indices
    text_pairs: int
    region_pairs: int


class PhraseSampler:
    """Batches of region-phrase pairs.

    Args:
        token_ids: `(strings, longest)` for a recurrent text branch.
        rows: indices of the pairs that batches are made from; by default all. The others still count as matches.
    """

    def __init__(
        self,
        data: PhraseData,
        recipe: PhraseSamplerRecipe,
        seed: int,
        token_ids: Tensor | None = None,
        rows: Indices | None = None,
    ) -> None:
        self.recipe, self.seed, self.device = recipe, seed, data.pair_string.device
        self.token_ids = None if token_ids is None else TokenIdRows(token_ids)
        self.string, image = as_indices(data.pair_string), as_indices(data.pair_image)
        ground_truth = as_indices(data.pair_region)
        # Step 3.a: "not both associated with the same ground truth region"; two chains may share a box.
        boxes = data.region_boxes.cpu().numpy().astype(np.float64)[ground_truth]
        self.target: Indices = np.unique(np.column_stack([image, boxes]), axis=0, return_inverse=True)[1].reshape(-1)
        self.choices = Choices(as_indices(data.pair_chain), self.string)
        self.picture_choices = Choices(image, self.string) if recipe.negatives == "batch" else None
        self.negative_rows, self.negative_offsets = as_indices(data.negative_rows), as_indices(data.negative_offsets)
        if recipe.positives == "augmented":
            self.positive_rows = as_indices(data.positive_rows)
            self.positive_offsets = as_indices(data.positive_offsets)
        else:
            self.positive_rows, self.positive_offsets = ground_truth, np.arange(len(ground_truth) + 1)
        self._index = np.empty(len(data.region_boxes), np.int64)
        self._rows = np.arange(len(self.string)) if rows is None else rows

    def triplets(self, epoch: int) -> Batches[RankingBatch]:
        """For the embedding network."""
        return self._shuffled(epoch, self._triplets)

    def pairs(self, epoch: int) -> Batches[PairBatch]:
        """For the similarity network: each positive region of a phrase with one random negative of its picture."""
        return self._shuffled(epoch, self._pairs)

    def _shuffled(
        self, epoch: int, make: Callable[[int, Indices, Indices, np.random.Generator], Batch]
    ) -> Batches[Batch]:
        def make_of_rows(epoch: int, base: Indices, following: Indices, random: np.random.Generator) -> Batch:
            return make(epoch, self._rows[base], self._rows[following], random)

        recipe = self.recipe
        return shuffled(len(self._rows), recipe.batch, self.seed, epoch, make_of_rows, steps=recipe.steps)

    def _triplets(self, epoch: int, base: Indices, following: Indices, random: np.random.Generator) -> RankingBatch:
        targets, statistics = self._targets(base, following, random)
        negatives, real = self._negative_regions(targets.base, random)  # step 3.b
        rows, index = self._unique(np.concatenate([targets.regions, negatives[real]]))
        target_index, negative_index = np.split(index, [len(targets.regions)])
        statistics |= {"negative_regions": float(real.sum()), "rows": float(len(rows))}
        images, texts = self._send(rows), self._send(targets.strings)
        # One row per text, though only those of `base` have negatives; padding goes to a last column, cut off below.
        candidates = np.full_like(negatives, len(rows))
        candidates[real] = negative_index
        negative = torch.zeros(len(texts), len(rows) + 1, dtype=torch.bool, device=self.device)
        negative[: len(candidates)].scatter_(1, self._send(candidates), True)
        batch = RankingBatch(
            images=images,
            texts=texts,
            contrast=self._contrast(targets, target_index, negative[:, :-1]),
            pairs=base,
            statistics=as_statistics(statistics, self.device),
            targets=self._send(target_index),
            token_ids=self._token_ids(targets.strings, texts),
        )
        return batch if self.picture_choices is None else self._with_other_pictures(batch, targets)

    def _with_other_pictures(self, batch: RankingBatch, targets: _Targets) -> RankingBatch:
        """The batch with further candidates for each phrase: the target regions of pictures without that phrase."""
        assert self.picture_choices is not None
        assert batch.targets is not None
        pairs = len(targets.base)
        mentioned = np.ones((len(targets.strings), pairs), bool)
        mentioned[:pairs] = self.picture_choices.has(targets.base, targets.strings[:pairs]).T
        negative = torch.cat([batch.contrast.negative_images, self._send(~mentioned)], 1)
        all_images = torch.arange(len(batch.images), device=self.device)
        return batch._replace(
            contrast=batch.contrast._replace(negative_images=negative),
            candidates=torch.cat([all_images, batch.targets[:pairs]]),
        )

    def _targets(
        self, base: Indices, following: Indices, random: np.random.Generator
    ) -> tuple[_Targets, dict[str, float]]:
        first, last = self.positive_offsets[base], self.positive_offsets[base + 1]
        chosen = random.integers(first, last)  # step 2
        regions, strings = self.positive_rows[chosen], self.string[base]
        owners, count = np.arange(len(base)), len(base)
        statistics = {"pairs": float(count)}
        if self.recipe.neighbourhood == "none":
            return _Targets(base, strings, owners, regions, owners, count, count), statistics
        regions_seen, second_text, alone = second_matches(regions, strings, self.choices.count(base))  # step 3.c.i
        phrases_seen, second_region, lone = second_matches(strings, regions, last - first)  # step 3.c.ii
        statistics |= {
            "regions": float(regions_seen),
            "regions_without_second": float(alone),
            "phrases": float(phrases_seen),
            "phrases_without_second": float(lone),
        }
        text_pairs, region_pairs = count + len(second_text), count + len(second_region)
        if self.recipe.neighbourhood == "random":
            more = following[: max(text_pairs, region_pairs) - count]
            chosen = random.integers(self.positive_offsets[more], self.positive_offsets[more + 1])
            base, regions = np.concatenate([base, more]), np.concatenate([regions, self.positive_rows[chosen]])
            owners = np.arange(len(base))
            return _Targets(base, self.string[base], owners, regions, owners, text_pairs, region_pairs), statistics
        other_text = self.choices.another(base[second_text], random)
        other_region = other_than(chosen[second_region], first[second_region], last[second_region], random)
        return _Targets(
            base,
            np.concatenate([strings, self.string[other_text]]),
            np.concatenate([owners, second_text]),
            np.concatenate([regions, self.positive_rows[other_region]]),
            np.concatenate([owners, second_region]),
            text_pairs,
            region_pairs,
        ), statistics

    def _contrast(self, targets: _Targets, target_index: Indices, negative_images: Tensor) -> Contrast:
        """The masks of a batch.

        Args:
            target_index: `(regions,)` where the targets' regions are in the batch.
            negative_images: `(texts, images of the batch)`.
        """
        pairs, regions, texts = len(targets.base), len(target_index), len(targets.strings)
        target = self.target[targets.base]
        named = self.choices.has(targets.base, targets.strings)
        matching = named | (target[:, None] == target[targets.text_owner])  # (pairs, texts)
        match_texts, negative_texts = np.zeros((2, regions, texts), bool)
        match_texts[targets.text_owner[: targets.text_pairs], np.arange(targets.text_pairs)] = True
        negative_texts[:pairs] = ~matching
        match_images = np.zeros((texts, regions), bool)
        match_images[targets.region_owner[: targets.region_pairs], np.arange(targets.region_pairs)] = True
        contrast = Contrast(
            self._send(match_texts), self._send(negative_texts), self._send(match_images), negative_images
        )
        if self.recipe.neighbourhood != "sampling":
            return contrast
        # Eq. 4: regions described by the same text. Regions that are in no pair have no known text.
        related = matching[:, :pairs] | matching[:, :pairs].T
        described = related[targets.region_owner][:, targets.region_owner]
        distinct = target_index[:, None] != target_index
        # Eq. 5: texts of the same visual data.
        owner_target, strings = target[targets.text_owner], targets.strings
        alike = (owner_target[:, None] == owner_target) & (strings[:, None] != strings)
        naming = matching[targets.text_owner]
        return contrast._replace(
            same_images=self._send(described & distinct),
            different_images=self._send(~described & distinct),
            same_texts=self._send(alike),
            different_texts=self._send(~(naming | naming.T)),
        )

    def _negative_regions(self, base: Indices, random: np.random.Generator) -> tuple[Indices, NDArray[np.bool_]]:
        """Regions of the same picture with IoU < 0.3, padded `(pairs, longest)`, and which of them are real."""
        positions, lengths = concatenated_ranges(self.negative_offsets[base], self.negative_offsets[base + 1])
        real = np.arange(lengths.max(initial=0)) < lengths[:, None]
        padded = np.zeros(real.shape, np.int64)
        padded[real] = self.negative_rows[positions]
        limit = self.recipe.candidates
        if limit is None or real.shape[1] <= limit:
            return padded, real
        order = np.where(real, random.random(real.shape), 1.0).argpartition(limit - 1, axis=1)[:, :limit]
        return np.take_along_axis(padded, order, 1), np.take_along_axis(real, order, 1)

    def _pairs(self, epoch: int, base: Indices, following: Indices, random: np.random.Generator) -> PairBatch:
        positions, lengths = concatenated_ranges(self.positive_offsets[base], self.positive_offsets[base + 1])
        text = np.repeat(np.arange(len(base)), lengths)
        first, last = self.negative_offsets[base][text], self.negative_offsets[base + 1][text]
        # A phrase whose box fills the picture has no negative region. It gives no pair, so that labels stay balanced.
        paired = first < last
        positive, text = self.positive_rows[positions[paired]], text[paired]
        negative = self.negative_rows[random.integers(first[paired], last[paired])]
        rows, index = self._unique(np.concatenate([positive, negative]))
        unpaired = len(base) - len(np.unique(text))
        images, texts, image = self._send(rows), self._send(self.string[base]), self._send(index)
        is_positive = torch.arange(len(image), device=self.device) < len(positive)
        statistics = {"pairs": float(len(index)), "phrases_without_negative": float(unpaired)}
        return PairBatch(
            images=images,
            texts=texts,
            image=image,
            text=self._send(np.concatenate([text, text])),
            labels=torch.where(is_positive, 1.0, -1.0),
            pairs=base,
            statistics=as_statistics(statistics, self.device),
            token_ids=self._token_ids(self.string[base], texts),
        )

    def _token_ids(self, texts: Indices, rows: Tensor) -> Tensor | None:
        return None if self.token_ids is None else self.token_ids.of(texts, rows)

    def _unique(self, rows: Indices) -> tuple[Indices, Indices]:
        """The different rows, and the index of each given row among them; `np.unique` without sorting."""
        positions = np.arange(len(rows))
        self._index[rows] = positions
        different = rows[self._index[rows] == positions]
        self._index[different] = positions[: len(different)]
        return different, self._index[rows]

    def _send(self, array: NDArray[np.int64] | NDArray[np.bool_]) -> Tensor:
        return send(torch.from_numpy(array), self.device)
