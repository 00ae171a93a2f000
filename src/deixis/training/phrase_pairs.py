"""Region-phrase pairs (two-branch networks, section 4.1; CCA on regions) as tensors on one device.

Features are read once, some images at a time, directly into the final tensors: 200 float16 regions of 1,280 channels
of 6,000 images take 3 GB, and little more memory is needed. Validation uses the same tensors of another split.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, cast

import msgspec
import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor

from deixis.corpus import Corpus, Image, TrainingSet
from deixis.corpus.boxes import box_array, iou_matrix, merge
from deixis.errors import DeixisError
from deixis.features.arrays import Ragged, RaggedArray
from deixis.features.feature_recipe import FeatureRecipe
from deixis.features.store import FeatureStore
from deixis.text.featurizers import TextFeatures, Tokens
from deixis.text.tokens import tokens_of
from deixis.training.placing import place_of
from deixis.training.recipe import regions_of
from deixis.training.sentence_pairs import encode_texts, with_features
from deixis.vision import EdgeBoxesSettings

#: IoU with the ground-truth box: positives of a phrase have at least the first, negatives less than the second
#: (two-branch networks, section 4.1).
POSITIVE, NEGATIVE = 0.7, 0.3
#: Images whose regions are read together: 64 with 200 float16 regions of 1,280 channels take 33 MB.
_IMAGES = 64


class PositivePool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A larger set of boxes from which only training positives are taken: those near a chain's merged box.

    The papers' 200 proposals have about ten positives per phrase; ours have fewer, whatever β is.
    """

    count: Annotated[int, Meta(ge=1, le=2000)] = 1000
    edge_boxes: EdgeBoxesSettings = EdgeBoxesSettings(beta=0.9)


def positive_recipe(proposals: FeatureRecipe, pool: PositivePool) -> FeatureRecipe:
    """Features of the boxes of a pool that overlap a chain enough to be its positives."""
    near = msgspec.structs.replace(
        regions_of(proposals),
        boxes="edge-boxes",
        count=pool.count,
        edge_boxes=pool.edge_boxes,
        near_chains=POSITIVE,
    )
    return msgspec.structs.replace(proposals, regions=near)


@dataclass(frozen=True, eq=False)
class PhraseData:
    """Region-phrase pairs: every mention with a box, and the regions of its image. Build it with `phrase_data`.

    Rows of `regions` are ordered by image: first the merged ground-truth box of each chain that has boxes, in the order
    of `image.chains`, then the proposals, best first, then further positives if there are any. Images without a pair
    are left out.
    """

    strings: Tensor  # (strings, dim) float, or ids (strings, longest) int64: each phrase string once
    pair_string: Tensor  # (pairs,) int64
    pair_image: Tensor  # (pairs,)
    pair_chain: Tensor  # (pairs,), a different number for every chain of every image
    pair_region: Tensor  # (pairs,): the row of the chain's merged box
    regions: Tensor  # (rows, channels) float
    region_image: Tensor  # (rows,) int64
    region_boxes: Tensor  # (rows, 4) float32, in the original picture's pixels
    #: Image i has rows image_offsets[i] to image_offsets[i + 1], of which the first drawn[i] are ground truth.
    image_offsets: Tensor  # (images + 1,)
    drawn: Tensor  # (images,)
    #: For each pair: its ground-truth box and proposals of IoU ≥ 0.7 with it; rows of its image of IoU < 0.3 with it.
    #: Pair k has `positive_rows[positive_offsets[k] : positive_offsets[k + 1]]`.
    positive_rows: Tensor
    positive_offsets: Tensor  # (pairs + 1,)
    negative_rows: Tensor
    negative_offsets: Tensor  # (pairs + 1,)
    image_ids: tuple[str, ...]
    phrases: tuple[Tokens, ...]
    #: Number of visual phrases without a box, which are left out, and of images without features.
    without_box: int
    without_features: int


def phrase_data(
    source: TrainingSet | Corpus,
    chains: FeatureStore,
    proposals: FeatureStore | None,
    text: TextFeatures,
    *,
    positives: FeatureStore | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    may_stay: bool = False,
) -> PhraseData:
    """Every phrase with a box of a training set or split, and the regions of its image.

    Args:
        source: the images.
        chains: features of the merged ground-truth boxes (the feature recipe `chains`).
        proposals: features of proposals, of the same backbone; None: only the ground-truth boxes.
        text: fitted text features.
        positives: features of further regions of the same backbone, used only as positives of the chains they overlap.
        device: where the tensors go.
        dtype: of the regions; by default that of the store, so that batches are cast. Strings are float32.
        may_stay: leave the regions in main memory if the device has no room for them.
    """
    stores = tuple(store for store in (chains, proposals, positives) if store is not None)
    present = with_features(source, *stores)
    mentions = _Mentions.of(present)
    images = [present[index] for index in mentions.images]
    merged = [_merged_boxes(image) for image in images]
    regions, boxes, offsets, further = _read_regions(images, merged, stores, device, dtype, may_stay)
    drawn = np.array([len(image_boxes) for image_boxes in merged], np.int64)
    chain_region = np.concatenate(
        [start + np.arange(count) for start, count in zip(offsets[:-1], drawn, strict=True)] or [np.empty(0, np.int64)]
    )
    positive, negative = (of_items(rows, mentions.chain) for rows in _overlapping(boxes, offsets, drawn, further))

    def send(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(device)

    return PhraseData(
        strings=encode_texts(text, mentions.strings, device=device),
        pair_string=send(mentions.string),
        pair_image=send(mentions.image),
        pair_chain=send(mentions.chain),
        pair_region=send(chain_region[mentions.chain]),
        regions=regions,
        region_image=send(np.repeat(np.arange(len(images)), np.diff(offsets))),
        region_boxes=send(boxes),
        image_offsets=send(offsets),
        drawn=send(drawn),
        positive_rows=send(positive.values),
        positive_offsets=send(positive.offsets),
        negative_rows=send(negative.values),
        negative_offsets=send(negative.offsets),
        image_ids=tuple(image.id for image in images),
        phrases=tuple(mentions.strings),
        without_box=mentions.without_box,
        without_features=len(source) - len(present),
    )


def of_items(rows: Ragged, items: NDArray[np.int64]) -> Ragged:
    """The rows of some items, in that order; items may repeat."""
    lengths = np.diff(rows.offsets)[items]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    shift = np.repeat(rows.offsets[items] - offsets[:-1], lengths)
    return Ragged(rows.values[shift + np.arange(len(shift))], offsets)


@dataclass(frozen=True)
class _Mentions:
    """The phrases with a box: for each mention the indices of its string, its image and its chain."""

    images: list[int]  # indices of the images that have one
    strings: list[Tokens]
    string: NDArray[np.int64]
    image: NDArray[np.int64]
    chain: NDArray[np.int64]
    without_box: int

    @classmethod
    def of(cls, images: Sequence[Image]) -> _Mentions:
        chosen: list[int] = []
        strings: dict[Tokens, int] = {}
        rows: list[tuple[int, int, int]] = []
        first_chain = without_box = 0
        for index, image in enumerate(images):
            boxed = [chain.id for chain in image.chains if chain.boxes]
            chain_index = {chain: first_chain + offset for offset, chain in enumerate(boxed)}
            before = len(rows)
            for caption in image.captions:
                tokens = tokens_of(caption) if caption.phrases else ()
                for phrase in caption.phrases:
                    if phrase.chain in chain_index:
                        text = tokens[phrase.start : phrase.end]
                        rows.append((strings.setdefault(text, len(strings)), len(chosen), chain_index[phrase.chain]))
                    else:
                        without_box += phrase.visual
            if len(rows) > before:
                chosen.append(index)
                first_chain += len(boxed)
        if not rows:
            raise DeixisError("no phrase of these images has a box: there are no region-phrase pairs")
        table = np.array(rows, np.int64)
        string, image_of, chain = (table[:, column].copy() for column in range(3))
        return cls(chosen, list(strings), string, image_of, chain, without_box)


def _merged_boxes(image: Image) -> NDArray[np.float64]:
    """One box for each chain that has boxes, `(chains, 4)`."""
    boxes = [merge(box_array(image.boxes[index] for index in chain.boxes)) for chain in image.chains if chain.boxes]
    return np.array(boxes, np.float64).reshape(-1, 4)


def _read_regions(
    images: Sequence[Image],
    merged: Sequence[NDArray[np.float64]],
    stores: Sequence[FeatureStore],
    device: str | torch.device,
    dtype: torch.dtype | None,
    may_stay: bool,
) -> tuple[Tensor, NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Regions `(rows, channels)` of images, their boxes `(rows, 4)`, and the offsets of each image's rows.

    The first store has the regions of the ground-truth boxes, in the order of `merged`. The last array is the number of
    rows of each image from a third store.
    """
    chains, shapes = stores[0], [store.plan.arrays["regions"].shape for store in stores]
    for store, other in zip(stores, shapes, strict=True):
        if other != shapes[0]:
            raise DeixisError(f"{chains.folder} has regions of shape {shapes[0]}, {store.folder} of {other}")
    numbers = [store.numbers(image.id for image in images) for store in stores]
    counts = [
        cast(RaggedArray, store["regions"]).lengths[indices] for store, indices in zip(stores, numbers, strict=True)
    ]
    for image, image_boxes, count in zip(images, merged, counts[0].tolist(), strict=True):
        if len(image_boxes) != count:
            raise DeixisError(
                f"{chains.folder} has {count} regions of image {image.id!r}, whose corpus has boxes of "
                f"{len(image_boxes)} chains: it must be extracted from this corpus with the recipe `chains`"
            )
    offsets = np.concatenate([[0], np.cumsum(sum(counts[1:], counts[0]))])
    stored = torch.from_numpy(np.empty(0, stores[-1].plan.arrays["regions"].numpy_dtype)).dtype
    shape, chosen_type = (int(offsets[-1]), *shapes[0]), dtype or stored
    region_device = place_of(int(np.prod(shape)) * chosen_type.itemsize, device) if may_stay else device
    regions = torch.empty(shape, dtype=chosen_type, device=region_device)
    boxes = np.empty((int(offsets[-1]), 4), np.float32)
    for start, end in pairwise([*range(0, len(images), _IMAGES), len(images)]):
        chosen = slice(start, end)
        first, last = offsets[start], offsets[end]
        # Ground-truth rows before proposals, image by image.
        order = np.argsort(
            np.concatenate([np.repeat(np.arange(c[chosen].size), c[chosen]) for c in counts]), kind="stable"
        )
        proposed = [
            cast(RaggedArray, store["boxes"]).gather(rows[chosen]).values
            for store, rows in zip(stores[1:], numbers[1:], strict=True)
        ]
        boxes[first:last] = np.concatenate([*merged[chosen], *proposed])[order]
        parts = [cast(RaggedArray, s["regions"]).gather(n[chosen]) for s, n in zip(stores, numbers, strict=True)]
        rows = np.concatenate([part.values for part in parts])[order]
        regions[first:last] = torch.from_numpy(rows).to(region_device, regions.dtype)
    return regions, boxes, offsets, counts[2] if len(counts) > 2 else np.zeros(len(images), np.int64)


def _overlapping(
    boxes: NDArray[np.float32],
    offsets: NDArray[np.int64],
    drawn: NDArray[np.int64],
    further: NDArray[np.int64],
) -> tuple[Ragged, Ragged]:
    """The positive and the negative rows of every chain. The last `further` rows of an image are no negatives."""
    values: tuple[list[NDArray[np.int64]], ...] = ([], [])
    lengths: tuple[list[NDArray[np.int64]], ...] = ([], [])
    for start, end, count, last in zip(offsets[:-1], offsets[1:], drawn, further, strict=True):
        overlap = iou_matrix(boxes[start : start + count], boxes[start:end])
        itself = np.eye(count, end - start, dtype=bool)
        # Other chains' boxes are not positives: only proposals, and the chain's own box even if its area is 0.
        positive = (overlap >= POSITIVE) & (np.arange(end - start) >= count) | itself
        negative = (overlap < NEGATIVE) & ~itself & (np.arange(end - start) < end - start - last)
        for kind, chosen in enumerate((positive, negative)):
            values[kind].append(start + np.nonzero(chosen)[1])
            lengths[kind].append(chosen.sum(1))
    positives, negatives = (
        Ragged(np.concatenate(rows), np.concatenate([[0], np.cumsum(np.concatenate(sizes))]))
        for rows, sizes in zip(values, lengths, strict=True)
    )
    return positives, negatives


def resample(phrases: Sequence[Hashable], limit: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Sorted indices of the pairs to keep: `limit` random ones of each phrase, or all if it has no more.

    Args:
        phrases: the phrase of each region-phrase pair, or an id of it.

    >>> resample(["a man", "a dog", "a man", "a man"], 1, np.random.default_rng(0)).tolist()
    [1, 2]
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    ids: dict[Hashable, int] = {}
    codes = np.fromiter((ids.setdefault(phrase, len(ids)) for phrase in phrases), np.int64, len(phrases))
    # Shuffled, then grouped by phrase: the first `limit` of a group are a random sample without replacement.
    shuffled = generator.permutation(len(codes))
    ordered = shuffled[np.argsort(codes[shuffled], kind="stable")]
    counts = np.bincount(codes, minlength=len(ids))
    index_in_group = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(ordered[index_in_group < limit])
