"""Mini-batches of regions and phrases: Algorithm 1 of paper 1, step by step (its numbers stand beside the code).

Readings are in `deixis.training.sampling`; of step 3.c.ii the second region is one of the same picture, as printed,
so there is none without positive region augmentation.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, Protocol

import numpy as np
import torch
from msgspec import Meta, Struct
from numpy.typing import NDArray
from torch import Tensor

from deixis.training.contrastive import Contrast
from deixis.training.sampling import (
    Choices,
    Neighbourhood,
    Numbers,
    PairBatch,
    RankingBatch,
    TokenIdRows,
    as_numbers,
    as_statistics,
    concatenated_ranges,
    other_than,
    second_matches,
    shuffled,
)
from deixis.training.task import Batches


class PhraseSamplerRecipe(Struct, frozen=True, forbid_unknown_fields=True):
    """Steps of Algorithm 1, and two departures from it.

    `positives`: the drawn box alone, or step 2. `neighbourhood`: step 3.c, or its random control. `negatives` "batch"
    tells a phrase also from the target regions of pictures without that phrase, which the paper does not. `candidates`:
    how many negative regions of the picture are looked at for a pair, drawn at random; None is all, as in the paper.
    """

    batch: Annotated[int, Meta(ge=2)] = 100
    positives: Literal["single", "augmented"] = "augmented"
    neighbourhood: Neighbourhood = "none"
    negatives: Literal["picture", "batch"] = "picture"
    candidates: Annotated[int, Meta(ge=1)] | None = None


class Phrases(Protocol):
    """What is needed of `deixis.training.pair_data.PhraseData`: pair p has rows[offsets[p] : offsets[p + 1]]."""

    @property
    def region_boxes(self) -> Tensor: ...  # (regions, 4)
    @property
    def pair_string(self) -> Tensor: ...  # (pairs,)
    @property
    def pair_image(self) -> Tensor: ...  # (pairs,)
    @property
    def pair_chain(self) -> Tensor: ...  # (pairs,)
    @property
    def pair_region(self) -> Tensor: ...  # (pairs,)
    @property
    def positive_rows(self) -> Tensor: ...
    @property
    def positive_offsets(self) -> Tensor: ...  # (pairs + 1,)
    @property
    def negative_rows(self) -> Tensor: ...
    @property
    def negative_offsets(self) -> Tensor: ...  # (pairs + 1,)


class _Targets(NamedTuple):
    """Texts and regions of a batch that stand in matching pairs; the first of each are those of the pairs `base`.

    A text or region that was added has an owner, the place in `base` of the pair it is a second match for. The first
    `text_pairs` texts match their owner's region (step 3.a), the first `region_pairs` regions their owner's text (3.b).
    """

    base: Numbers
    strings: Numbers
    text_owner: Numbers
    regions: Numbers
    region_owner: Numbers
    text_pairs: int
    region_pairs: int


class PhraseSampler:
    """Batches of region-phrase pairs.

    Args:
        token_ids: `(strings, longest)`, where strings are read word by word.
    """

    def __init__(self, data: Phrases, recipe: PhraseSamplerRecipe, seed: int, token_ids: Tensor | None = None) -> None:
        self.recipe, self.seed, self.device = recipe, seed, data.pair_string.device
        self.token_ids = None if token_ids is None else TokenIdRows(token_ids)
        self.string, image = as_numbers(data.pair_string), as_numbers(data.pair_image)
        drawn = as_numbers(data.pair_region)
        # Step 3.a: "not both associated with the same ground truth region"; two chains may share a drawn box.
        boxes = data.region_boxes.cpu().numpy().astype(np.float64)[drawn]
        places = np.column_stack([image, boxes])
        self.target: Numbers = np.unique(places, axis=0, return_inverse=True)[1].reshape(-1)
        self.choices = Choices(as_numbers(data.pair_chain), self.string)
        self.picture_choices = Choices(image, self.string) if recipe.negatives == "batch" else None
        self.negative_rows, self.negative_offsets = as_numbers(data.negative_rows), as_numbers(data.negative_offsets)
        if recipe.positives == "augmented":
            self.positive_rows = as_numbers(data.positive_rows)
            self.positive_offsets = as_numbers(data.positive_offsets)
        else:
            self.positive_rows, self.positive_offsets = drawn, np.arange(len(drawn) + 1)
        self._numbering = np.empty(len(data.region_boxes), np.int64)

    def triplets(self, epoch: int) -> Batches[RankingBatch]:
        """For the embedding network."""
        return shuffled(len(self.string), self.recipe.batch, self.seed, epoch, self._triplets)

    def pairs(self, epoch: int) -> Batches[PairBatch]:
        """For the similarity network: each positive region of a phrase with one random negative of its picture."""
        return shuffled(len(self.string), self.recipe.batch, self.seed, epoch, self._pairs)

    def _triplets(self, epoch: int, base: Numbers, following: Numbers, random: np.random.Generator) -> RankingBatch:
        targets, statistics = self._targets(base, following, random)
        negatives, real = self._negative_regions(targets.base, random)  # step 3.b
        rows, place = self._number(np.concatenate([targets.regions, negatives[real]]))
        candidates = np.zeros_like(negatives)
        candidates[real] = place[len(targets.regions) :]
        statistics |= {"negative_regions": float(real.sum()), "rows": float(len(rows))}
        place = place[: len(targets.regions)]
        images, texts, target_rows = self._send(rows), self._send(targets.strings), self._send(place)
        # A row of the mask for every text, though only those of `base` have negatives.
        negative = torch.zeros(len(texts), len(rows) + 1, dtype=torch.bool, device=self.device)
        at = self._send(np.where(real, candidates, len(rows)))
        negative[: len(at)].scatter_(1, at, True)
        batch = RankingBatch(
            images=images,
            image_mask=torch.ones_like(images, dtype=torch.bool),
            texts=texts,
            text_mask=torch.ones_like(texts, dtype=torch.bool),
            contrast=self._contrast(targets, place, negative[:, :-1]),
            pairs=base,
            statistics=as_statistics(statistics, self.device),
            targets=target_rows,
            token_ids=self._token_ids(targets.strings, texts),
        )
        return batch if self.picture_choices is None else self._with_other_pictures(batch, targets)

    def _with_other_pictures(self, batch: RankingBatch, targets: _Targets) -> RankingBatch:
        """The batch with the target regions of pictures without a phrase among the candidates of that phrase."""
        assert self.picture_choices is not None
        assert batch.targets is not None
        pairs = len(targets.base)
        spoken = np.ones((len(targets.strings), pairs), bool)
        spoken[:pairs] = self.picture_choices.has(targets.base, targets.strings[:pairs]).T
        negative = torch.cat([batch.contrast.negative_images, self._send(~spoken)], 1)
        everyone = torch.arange(len(batch.images), device=self.device)
        return batch._replace(
            contrast=batch.contrast._replace(negative_images=negative),
            candidates=torch.cat([everyone, batch.targets[:pairs]]),
        )

    def _targets(
        self, base: Numbers, following: Numbers, random: np.random.Generator
    ) -> tuple[_Targets, dict[str, float]]:
        first, last = self.positive_offsets[base], self.positive_offsets[base + 1]
        place = random.integers(first, last)  # step 2
        regions, strings = self.positive_rows[place], self.string[base]
        everyone, count = np.arange(len(base)), len(base)
        statistics = {"pairs": float(count)}
        if self.recipe.neighbourhood == "none":
            return _Targets(base, strings, everyone, regions, everyone, count, count), statistics
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
            place = random.integers(self.positive_offsets[more], self.positive_offsets[more + 1])
            base, regions = np.concatenate([base, more]), np.concatenate([regions, self.positive_rows[place]])
            everyone = np.arange(len(base))
            return _Targets(base, self.string[base], everyone, regions, everyone, text_pairs, region_pairs), statistics
        other_text = self.choices.another(base[second_text], random)
        other_place = other_than(place[second_region], first[second_region], last[second_region], random)
        return _Targets(
            base,
            np.concatenate([strings, self.string[other_text]]),
            np.concatenate([everyone, second_text]),
            np.concatenate([regions, self.positive_rows[other_place]]),
            np.concatenate([everyone, second_region]),
            text_pairs,
            region_pairs,
        ), statistics

    def _contrast(self, targets: _Targets, place: Numbers, negative_images: Tensor) -> Contrast:
        """Masks on the data's device, which nothing here waits for.

        Args:
            place: `(regions,)` rows of the batch where the targets' regions are.
            negative_images: `(texts, rows of the batch)`.
        """
        pairs, regions, texts = len(targets.base), len(place), len(targets.strings)
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
        # Eq. 4: regions described by the same text. What describes a region that is in no pair is not known.
        related = matching[:, :pairs] | matching[:, :pairs].T
        described = related[targets.region_owner][:, targets.region_owner]
        distinct = place[:, None] != place
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

    def _negative_regions(self, base: Numbers, random: np.random.Generator) -> tuple[Numbers, NDArray[np.bool_]]:
        """Rows of the same picture with IoU < 0.3, padded (pairs, longest), and which of them are real."""
        place, lengths = concatenated_ranges(self.negative_offsets[base], self.negative_offsets[base + 1])
        real = np.arange(lengths.max(initial=0)) < lengths[:, None]
        padded = np.zeros(real.shape, np.int64)
        padded[real] = self.negative_rows[place]
        limit = self.recipe.candidates
        if limit is None or real.shape[1] <= limit:
            return padded, real
        order = np.where(real, random.random(real.shape), 1.0).argpartition(limit - 1, axis=1)[:, :limit]
        return np.take_along_axis(padded, order, 1), np.take_along_axis(real, order, 1)

    def _pairs(self, epoch: int, base: Numbers, following: Numbers, random: np.random.Generator) -> PairBatch:
        place, lengths = concatenated_ranges(self.positive_offsets[base], self.positive_offsets[base + 1])
        text = np.repeat(np.arange(len(base)), lengths)
        first, last = self.negative_offsets[base][text], self.negative_offsets[base + 1][text]
        # To stay balanced, a phrase whose box fills the picture, with no region to tell it from, gives no pair.
        paired = first < last
        positive, text = self.positive_rows[place[paired]], text[paired]
        negative = self.negative_rows[random.integers(first[paired], last[paired])]
        rows, numbered = self._number(np.concatenate([positive, negative]))
        unpaired = len(base) - len(np.unique(text))
        images, texts, places = self._send(rows), self._send(self.string[base]), self._send(numbered)
        number = torch.arange(len(places), device=self.device)
        statistics = {"pairs": float(len(numbered)), "phrases_without_negative": float(unpaired)}
        return PairBatch(
            images=images,
            image_mask=torch.ones_like(images, dtype=torch.bool),
            texts=texts,
            text_mask=torch.ones_like(texts, dtype=torch.bool),
            image=places,
            text=self._send(np.concatenate([text, text])),
            labels=torch.where(number < len(positive), 1.0, -1.0),
            pair_mask=torch.ones_like(places, dtype=torch.bool),
            pairs=base,
            statistics=as_statistics(statistics, self.device),
            token_ids=self._token_ids(self.string[base], texts),
        )

    def _token_ids(self, texts: Numbers, rows: Tensor) -> Tensor | None:
        return None if self.token_ids is None else self.token_ids.of(texts, rows)

    def _number(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """The different rows, and for each given row its place among them; as `np.unique`, without sorting."""
        places = np.arange(len(rows))
        self._numbering[rows] = places
        different = rows[self._numbering[rows] == places]
        self._numbering[different] = places[: len(different)]
        return different, self._numbering[rows]

    def _send(self, array: NDArray[np.int64] | NDArray[np.bool_]) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)
