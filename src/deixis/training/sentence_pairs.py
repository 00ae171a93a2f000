"""Image-sentence pairs (two-branch networks, section 5.1): their tensors on one device, and the mini-batches of them.

Features are read once. The index of a pair is the row of its caption.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from msgspec import Meta, Struct
from torch import Tensor

from deixis.errors import DeixisError
from deixis.text.tokens import tokens_of_captions
from deixis.training.contrastive import Contrast
from deixis.training.placing import place_of
from deixis.training.sampling import (
    Choices,
    Indices,
    Neighbourhood,
    PairBatch,
    RankingBatch,
    TokenIdRows,
    as_indices,
    as_statistics,
    second_matches,
    shuffled,
)
from deixis.training.task import Batches

if TYPE_CHECKING:
    from deixis.corpus import Corpus, Image, TrainingSet
    from deixis.features.store import FeatureStore
    from deixis.text.featurizers import TextFeatures, Tokens


@dataclass(frozen=True, eq=False)
class SentenceData:
    """Images and their captions. Build it with `sentence_data`."""

    images: Tensor  # (images, channels) float
    texts: Tensor  # (captions, dim) float, or ids (captions, longest) int64
    image_of: Tensor  # (captions,) int64, ascending
    image_ids: tuple[str, ...]
    captions: tuple[Tokens, ...]
    #: Number of images without features, since their pictures are broken.
    without_features: int


def sentence_data(
    source: TrainingSet | Corpus,
    store: FeatureStore,
    text: TextFeatures,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    may_stay: bool = False,
) -> SentenceData:
    """All images of a training set or split that have features, and their captions.

    Args:
        source: the images.
        store: has the vectors of whole pictures, `image`.
        text: fitted text features.
        device: where the tensors go.
        dtype: of images and of text vectors; float16 saves memory if batches are cast.
        may_stay: leave features in main memory if the device has no room for them.
    """
    images = with_features(source, store)
    captions = tokens_of_captions(images)
    counts = torch.tensor([len(image.captions) for image in images])
    vectors = store.image_vectors().gather(store.numbers(image.id for image in images))
    numbers = vectors.size + len(captions) * text.dim
    image_device = place_of(numbers * dtype.itemsize, device) if may_stay else device
    return SentenceData(
        images=torch.from_numpy(vectors).to(image_device, dtype),
        texts=encode_texts(text, captions, device=image_device, dtype=dtype),
        image_of=torch.repeat_interleave(torch.arange(len(images)), counts).to(device),
        image_ids=tuple(image.id for image in images),
        captions=tuple(captions),
        without_features=len(source) - len(images),
    )


def encode_texts(
    text: TextFeatures,
    texts: Sequence[Tokens],
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Text features on a device, computed block by block; word ids stay integers."""
    if text.recipe.kind == "tokens":
        return torch.from_numpy(text.transform(texts)).to(device)
    out = torch.empty((len(texts), text.dim), dtype=dtype, device=device)
    start = 0
    for block in text.stream(texts):
        out[start : start + len(block)] = torch.from_numpy(block).to(device, dtype)
        start += len(block)
    return out


def with_features(source: TrainingSet | Corpus, *stores: FeatureStore) -> list[Image]:
    """The images without those that a store skipped. An image that a store does not know is an error."""
    images = [image for image in source if not any(image.id in store.skipped for store in stores)]
    for store in stores:
        store.numbers(image.id for image in images)
    if not images:
        raise DeixisError("none of these images has features")
    return images


class SentenceSamplerRecipe(Struct, frozen=True, forbid_unknown_fields=True):
    """`neighbourhood`: "sampling" adds a second sentence for every image; "random" is the control for that."""

    batch: Annotated[int, Meta(ge=2)] = 500
    neighbourhood: Neighbourhood = "none"


class SentenceSampler:
    """Batches of image-sentence pairs (section 5.1). The index of a pair is the row of its caption.

    Args:
        token_ids: `(captions, longest)` word ids, for a recurrent branch.
    """

    def __init__(
        self, data: SentenceData, recipe: SentenceSamplerRecipe, seed: int, token_ids: Tensor | None = None
    ) -> None:
        self.recipe, self.seed, self.device = recipe, seed, data.image_of.device
        self.token_ids = None if token_ids is None else TokenIdRows(token_ids)
        self.image = as_indices(data.image_of)
        numbers: dict[Hashable, int] = {}
        self.string = np.array([numbers.setdefault(caption, len(numbers)) for caption in data.captions], np.int64)
        self.choices = Choices(self.image, self.string)

    def triplets(self, epoch: int) -> Batches[RankingBatch]:
        """For the embedding network: negatives are the other sentences and images of the batch."""
        return shuffled(len(self.image), self.recipe.batch, self.seed, epoch, self._triplets)

    def pairs(self, epoch: int) -> Batches[PairBatch]:
        """For the similarity network: each pair (x, y), and (x, y′) with a random y′ of another image."""
        if len(np.unique(self.image)) < 2:
            raise DeixisError("a similarity network needs sentences of other images as negatives: two images or more")
        return shuffled(len(self.image), self.recipe.batch, self.seed, epoch, self._pairs)

    def _triplets(self, epoch: int, base: Indices, following: Indices, random: np.random.Generator) -> RankingBatch:
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
        # Each text matches the image of one pair. Only the first `start` pairs are also contrasted from text to image.
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
            texts=rows,
            contrast=contrast,
            pairs=base[:start],
            statistics=as_statistics(statistics, self.device),
            token_ids=self._token_ids(texts, rows),
        )

    def _pairs(self, epoch: int, base: Indices, following: Indices, random: np.random.Generator) -> PairBatch:
        texts = np.concatenate([base, self.choices.elsewhere(base, random)])
        places = torch.arange(len(texts), device=self.device)
        images, rows = self._send(self.image[base]), self._send(texts)
        return PairBatch(
            images=images,
            texts=rows,
            image=places % len(base),
            text=places,
            labels=torch.where(places < len(base), 1.0, -1.0),
            pairs=base,
            statistics=as_statistics({"pairs": float(len(texts))}, self.device),
            token_ids=self._token_ids(texts, rows),
        )

    def _token_ids(self, texts: Indices, rows: Tensor) -> Tensor | None:
        return None if self.token_ids is None else self.token_ids.of(texts, rows)

    def _send(self, numbers: Indices) -> Tensor:
        return torch.from_numpy(numbers).to(self.device, non_blocking=True)
