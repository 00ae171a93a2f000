"""The leak guard: no picture of the Flickr8k dev or test split enters a training set, nor any text about it.

1,883 of those 2,000 pictures are in the training list of Flickr30k Entities, under other names. Everything in Deixis
that learns takes a `TrainingSet`, and a `TrainingSet` cannot hold such a picture. `held_out.txt` has a hash of each
photo's Flickr id, so the guard works where the dataset is absent; it was made by `hash_photo_ids` from the first part
(up to `_`) of the names in `Flickr_8k.devImages.txt` and `Flickr_8k.testImages.txt`, one sorted hash a line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import msgspec

from deixis.corpus.records import Corpus, Image, photo_numbers
from deixis.errors import LeakError


@dataclass(frozen=True)
class TrainingSet:
    """Images that may be learned from. Made by `training_set`; made in any other way, it is checked all the same."""

    corpus: Corpus
    #: How many images were left out because they are held out.
    excluded: int = 0
    #: How many captions were left out because they are flagged as unrelated to their image.
    unrelated: int = 0

    def __post_init__(self) -> None:
        assert_trainable(self.corpus)

    def __len__(self) -> int:
        return len(self.corpus)

    def __iter__(self) -> Iterator[Image]:
        return iter(self.corpus)


def training_set(corpus: Corpus, splits: Sequence[str] = ("train",), *, unrelated: bool = False) -> TrainingSet:
    """The images of these splits without those held out, which are counted.

    Args:
        splits: by default `train` alone; `""` names the images of a corpus without splits.
        unrelated: keep captions that are flagged as unrelated to their image.
    """
    chosen = corpus.split(*splits)
    kept = chosen.where(lambda image: not is_held_out(image))
    excluded = len(chosen) - len(kept)
    flagged = sum(caption.unrelated for image in kept for caption in image.captions)
    if unrelated or not flagged:
        return TrainingSet(kept, excluded)
    return TrainingSet(kept.with_images(map(_related, kept)), excluded, flagged)


def assert_trainable(images: Iterable[Image | str]) -> None:
    """Raise `LeakError` if one of these images, or image ids, is held out."""
    found = [image if isinstance(image, str) else image.id for image in images if is_held_out(image)]
    if found:
        some = ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
        raise LeakError(f"{len(found)} pictures of the Flickr8k dev or test split must not be trained on: {some}")


def is_held_out(image: Image | str) -> bool:
    """Whether an image, or an image id, is a Flickr8k dev or test photo under any of its names.

    A photo's Flickr id stands whole in its id, its file name or its source id: `12345678_0a1b2c3d4e`, `12345678`,
    `flickr/12345678`. The ids held out have eight digits or more, COCO's have six at most, so the two never meet.
    """
    names = (image,) if isinstance(image, str) else (image.id, image.file, image.source_id)
    return any(_hash(number) in _held_out() for number in photo_numbers(*names))


def hash_photo_ids(photo_ids: Iterable[str]) -> list[str]:
    """The lines of `held_out.txt` for these Flickr photo ids."""
    return sorted(map(_hash, photo_ids))


def _hash(photo_id: str) -> str:
    # 64 bits: among a million pictures the chance of one false alarm is 1 in 10 billion.
    return hashlib.sha256(photo_id.encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def _held_out() -> frozenset[str]:
    return frozenset(files("deixis.corpus").joinpath("held_out.txt").read_text("ascii").split())


def _related(image: Image) -> Image:
    return msgspec.structs.replace(
        image, captions=tuple(caption for caption in image.captions if not caption.unrelated)
    )
