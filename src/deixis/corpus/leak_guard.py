"""The leak guard: keeps the pictures that models are evaluated on, and their captions, out of training sets.

All training code in Deixis takes a `TrainingSet`, which cannot contain such a picture; only the thresholds of search
(`deixis.search.calibration`) are fitted on validation pictures. The guard works without the datasets, by hashes
(`hash_photo_ids`), one per line, sorted:

- `held_out.txt`: the 2,000 photos of Flickr8k's dev and test splits, by Flickr id, the first part (up to `_`) of the
  names in `Flickr_8k.devImages.txt` and `Flickr_8k.testImages.txt`. 1,883 of them are in the training split of
  Flickr30k Entities, under other names.
- `held_out_coco.txt`: the 2,500 pictures of COCO-mini's val and test splits, by COCO's file name (`000000000009`).
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
    """Images that may be used for training. Usually created by `training_set`, but always checked.

    >>> from deixis.corpus import open_corpus
    >>> len(TrainingSet(open_corpus("scenes:20").split("train")))
    14
    """

    corpus: Corpus
    #: Number of images that were left out because they are held out.
    excluded: int = 0
    #: Number of captions that were left out because they are flagged as unrelated to their image.
    unrelated: int = 0

    def __post_init__(self) -> None:
        assert_trainable(self.corpus)

    def __len__(self) -> int:
        return len(self.corpus)

    def __iter__(self) -> Iterator[Image]:
        return iter(self.corpus)


def training_set(corpus: Corpus, splits: Sequence[str] = ("train",), *, unrelated: bool = False) -> TrainingSet:
    """The images of these splits, without held-out ones.

    Args:
        splits: by default only `train`; `""` means the images without a split.
        unrelated: keep captions that are flagged as unrelated to their image.

    >>> from deixis.corpus import open_corpus
    >>> training = training_set(open_corpus("scenes:20"))
    >>> len(training), training.excluded
    (14, 0)
    """
    chosen = corpus.split(*splits)
    allowed = chosen.where(lambda image: not is_held_out(image))
    excluded = len(chosen) - len(allowed)
    flagged = sum(caption.unrelated for image in allowed for caption in image.captions)
    if unrelated or not flagged:
        return TrainingSet(allowed, excluded)
    return TrainingSet(allowed.with_images(map(_without_unrelated, allowed)), excluded, flagged)


def assert_trainable(images: Iterable[Image | str]) -> None:
    """Raise `LeakError` if one of these images, or image ids, is held out."""
    held_out = [image if isinstance(image, str) else image.id for image in images if is_held_out(image)]
    if held_out:
        some = ", ".join(held_out[:3]) + (", …" if len(held_out) > 3 else "")
        raise LeakError(
            f"{len(held_out)} held-out pictures (Flickr8k dev and test, COCO-mini val and test) "
            f"must not be trained on: {some}"
        )


def is_held_out(image: Image | str) -> bool:
    """Whether an image, or an image id, is in Flickr8k's dev or test split or in COCO-mini's val or test split.

    Image id, file name and source id are searched for Flickr photo ids (`12345678_0a1b2c3d4e`, `flickr/12345678`) and
    for COCO's file names (`COCO_train2014_000000000009.jpg`). A COCO id alone, such as `9`, says nothing.
    """
    names = (image,) if isinstance(image, str) else (image.id, image.file, image.source_id)
    return any(_hash(photo_number) in _held_out() for photo_number in photo_numbers(*names))


def hash_photo_ids(photo_ids: Iterable[str]) -> list[str]:
    """The lines of a list for these Flickr photo ids, or COCO file names of twelve digits."""
    return sorted(map(_hash, photo_ids))


def _hash(photo_id: str) -> str:
    # 64 bits: for a million pictures, the probability of a false alarm is 1 in 10 billion.
    return hashlib.sha256(photo_id.encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def _held_out() -> frozenset[str]:
    lists = [files("deixis.corpus").joinpath(name).read_text("ascii") for name in ("held_out.txt", "held_out_coco.txt")]
    return frozenset("\n".join(lists).split())


def _without_unrelated(image: Image) -> Image:
    return msgspec.structs.replace(
        image, captions=tuple(caption for caption in image.captions if not caption.unrelated)
    )
