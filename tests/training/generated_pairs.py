"""Small generated data in the shape of `PhraseData` and `SentenceData`: boxes overlap, chains share strings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deixis.corpus.boxes import iou_matrix


@dataclass
class GeneratedSentences:
    images: Tensor
    texts: Tensor
    image_of: Tensor
    captions: list[int]


def generated_sentences(seed: int, images: int, strings: int, dim: int = 6) -> GeneratedSentences:
    """One to five captions an image; strings are drawn from few, so that some are equal."""
    random = np.random.default_rng(seed)
    image_of = np.repeat(np.arange(images), random.integers(1, 6, images))
    captions = random.integers(0, strings, len(image_of))
    vectors = random.normal(size=(strings, dim)).astype(np.float32)
    return GeneratedSentences(
        torch.from_numpy(random.normal(size=(images, dim)).astype(np.float32)),
        torch.from_numpy(vectors[captions]),
        torch.from_numpy(image_of),
        captions.tolist(),
    )


@dataclass
class GeneratedPhrases:
    strings: Tensor
    pair_string: Tensor
    pair_image: Tensor
    pair_chain: Tensor
    pair_region: Tensor
    regions: Tensor
    region_image: Tensor
    region_boxes: Tensor
    positive_rows: Tensor
    positive_offsets: Tensor
    negative_rows: Tensor
    negative_offsets: Tensor


def generated_phrases(seed: int, images: int, strings: int, proposals: int = 12, dim: int = 6) -> GeneratedPhrases:
    """One to three chains an image with one to four mentions each; proposals are moved drawn boxes and random ones."""
    random = np.random.default_rng(seed)
    boxes: list[NDArray[np.float64]] = []
    pairs: list[tuple[int, int, int, int]] = []
    region_image: list[int] = []
    chain = 0
    for image in range(images):
        drawn = random_boxes(random, int(random.integers(1, 4)))
        if len(drawn) > 1 and random.random() < 0.2:
            drawn[1] = drawn[0]  # two chains that share a box
        moved = drawn[random.integers(0, len(drawn), proposals // 2)] + random.normal(0, 2, (proposals // 2, 4))
        first = len(region_image)
        for place in range(len(drawn)):
            mentions = random.integers(0, strings, random.integers(1, 5)).tolist()
            pairs += [(string, image, chain, first + place) for string in mentions]
            chain += 1
        own = np.concatenate([drawn, moved, random_boxes(random, proposals - proposals // 2)])
        boxes.append(own)
        region_image += [image] * len(own)
    every = np.concatenate(boxes)
    string, pair_image, pair_chain, pair_region = (torch.tensor(column) for column in zip(*pairs, strict=True))
    overlap = iou_matrix(every[pair_region], every)
    same = pair_image.numpy()[:, None] == np.array(region_image)
    itself = pair_region.numpy()[:, None] == np.arange(len(every))
    return GeneratedPhrases(
        torch.from_numpy(random.normal(size=(strings, dim)).astype(np.float32)),
        string,
        pair_image,
        pair_chain,
        pair_region,
        torch.from_numpy(random.normal(size=(len(every), dim)).astype(np.float32)),
        torch.tensor(region_image),
        torch.from_numpy(every),
        *ragged(same & (overlap >= 0.7) | itself),
        *ragged(same & (overlap < 0.3)),
    )


def random_boxes(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    corner = random.uniform(0, 60, (count, 2))
    return np.concatenate([corner, corner + random.uniform(10, 40, (count, 2))], 1)


def ragged(chosen: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
    """Values and offsets of the true columns of each row."""
    offsets = np.concatenate([[0], chosen.sum(1).cumsum()])
    return torch.from_numpy(np.nonzero(chosen)[1]), torch.from_numpy(offsets)
