"""Augmentation: pictures are read once at one size, then cropped, mirrored and recoloured at random on the device."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from deixis.corpus import Corpus, Image
from deixis.errors import InputError
from deixis.text.vocabulary import Vocabulary
from deixis.training.sampling import concatenated_ranges
from deixis.vision.box_tensors import box_area
from deixis.vision.proposer import normalize, squashed
from deixis.vision.reading import Skipped, read_picture

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]
#: Pictures are stored larger than the network's input by this factor, so that crops can vary.
MARGIN = 1.125
_SIDES = (("left", "right"), ("leftmost", "rightmost"), ("left-hand", "right-hand"), ("lefthand", "righthand"))
#: Words that change places in the captions of a mirrored picture.
MIRRORED_WORDS = {word: other for pair in _SIDES for word, other in (pair, pair[::-1])}


def mirrored_words(vocabulary: Vocabulary) -> Tensor:
    """For each word id, the id that takes its place in the captions of a mirrored picture.

    >>> mirrored_words(Vocabulary.of([("left", "of", "right")])).tolist()
    [0, 1, 2, 3, 6, 5, 4]
    """
    ids = torch.arange(len(vocabulary))
    for pair in MIRRORED_WORDS.items():
        if all(word in vocabulary for word in pair):
            word_id, other_id = vocabulary.encode(pair)
            ids[word_id] = other_id
    return ids


def some_of_each(starts: Rows, images: Rows, count: int, random: np.random.Generator) -> tuple[Rows, Rows]:
    """Rows of at most `count` random captions of each image, image by image, and the place of each one's image."""
    rows, lengths = concatenated_ranges(starts[images], starts[images + 1])
    owners = np.repeat(np.arange(len(images)), lengths)
    order = np.lexsort([random.random(len(rows)), owners])
    # The number of each among those of its image.
    numbers = np.arange(len(rows)) - np.repeat(lengths.cumsum() - lengths, lengths)
    chosen = order[numbers < count]
    return rows[chosen], owners[chosen]


@dataclass(frozen=True)
class SquashedPictures:
    """Pictures resized to squares, uint8 `(n, 3, side, side)`, their images, and the original sizes (width, height)."""

    images: tuple[Image, ...]
    sizes: tuple[tuple[int, int], ...]
    pixels: Tensor


def squashed_pictures(
    corpus: Corpus, images: Iterable[Image], side: int, skipped: Skipped, jpeg: int = 0
) -> SquashedPictures:
    """Decode pictures in parallel. Those that cannot be read are recorded in `skipped` and left out.

    Args:
        jpeg: as in `deixis.vision.crops.squash`.
    """
    images = tuple(images)

    def read(image: Image) -> tuple[tuple[int, int], Tensor] | InputError:
        try:
            picture = read_picture(corpus, image)
        except InputError as fault:
            return fault
        # If the corpus does not give the original size, the picture is taken to be the original.
        return (image.width or picture.width, image.height or picture.height), squashed(picture, side, jpeg)

    pixels = torch.empty(len(images), 3, side, side, dtype=torch.uint8)
    readable: list[Image] = []
    sizes: list[tuple[int, int]] = []
    with ThreadPoolExecutor() as pool:
        for image, outcome in zip(images, pool.map(read, images), strict=True):
            if isinstance(outcome, InputError):
                skipped.add(image, outcome)
                continue
            size, pixels[len(readable)] = outcome
            readable.append(image)
            sizes.append(size)
    return SquashedPictures(tuple(readable), tuple(sizes), pixels[: len(readable)])


class Views(NamedTuple):
    """The crop of each picture: its corner and sides in [0, 1]; `flip` is −1 for a mirrored one."""

    start: Tensor  # (n, 2)
    sides: Tensor  # (n, 2)
    flip: Tensor  # (n,)


def random_views(count: int, zoom: float | Tensor, generator: torch.Generator) -> Views:
    """Crops with sides in [1 − zoom, 1.15] and a slightly changed aspect ratio, half of them mirrored.

    Args:
        zoom: of all pictures, or of each `(count,)`.
    """

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, device=generator.device, generator=generator)

    zooms = torch.as_tensor(zoom, device=generator.device).reshape(-1, 1)
    size = 1.15 - (zooms + 0.15) * uniform(count, 1)
    sides = size * torch.exp((uniform(count, 2) - 0.5) * 0.3)
    start = (1 - sides) * uniform(count, 2)
    return Views(start, sides, torch.where(uniform(count) < 0.5, -1.0, 1.0))


def view_pictures(pictures: Tensor, views: Views, side: int) -> Tensor:
    """Crops of uint8 pictures `(n, 3, …)` as normalized pictures `(n, 3, side, side)`."""
    if not len(pictures):
        return torch.empty(0, 3, side, side, device=pictures.device)
    # grid_sample's coordinates run from −1 to 1.
    theta = torch.zeros(len(pictures), 2, 3, device=pictures.device)
    theta[:, 0, 0], theta[:, 1, 1] = views.sides[:, 0] * views.flip, views.sides[:, 1]
    theta[:, :, 2] = 2 * views.start + views.sides - 1
    grid = F.affine_grid(theta, [len(pictures), 3, side, side], align_corners=False)
    return F.grid_sample(normalize(pictures), grid, align_corners=False)


def random_colours(count: int, generator: torch.Generator) -> Tensor:
    """Factors of brightness, contrast and saturation `(3, count, 1, 1, 1)` in [0.8, 1.2]."""
    drawn = [torch.rand((count, 1, 1, 1), device=generator.device, generator=generator) for _ in range(3)]
    return 1 + 0.4 * (torch.stack(drawn) - 0.5)


def recoloured(pictures: Tensor, colours: Tensor) -> Tensor:
    brightness, contrast, saturation = colours.unbind()
    grey = pictures.mean(1, keepdim=True)
    return ((pictures - grey) * saturation + grey) * contrast + (brightness - 1)


def view_boxes(boxes: Tensor, views: Views) -> Tensor:
    """Boxes `(n, g, 4)` in the crops, clipped. Zeros if less than 40% of the area is left, or a side is tiny."""
    count = len(boxes)
    seen = (boxes.reshape(count, -1, 2, 2) - views.start[:, None, None]) / views.sides[:, None, None]
    seen = seen.reshape(count, -1, 4)
    mirrored = torch.stack([1 - seen[..., 2], seen[..., 1], 1 - seen[..., 0], seen[..., 3]], -1)
    seen = torch.where(views.flip[:, None, None] < 0, mirrored, seen)
    clipped = seen.clamp(0, 1)
    visible = (box_area(clipped) > 0.4 * box_area(seen)) & (box_area(boxes) > 0)
    visible &= (clipped[..., 2:] - clipped[..., :2]).amin(-1) > 0.01
    return clipped * visible[..., None]
