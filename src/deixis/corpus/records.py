"""Records of a dataset: images, captions, phrases, chains, boxes, splits (the data model of Flickr30k Entities).

All records are immutable. An image contains everything that belongs to it, so references never leave the image, and
cutting or joining corpora means choosing images.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from deixis.errors import DeixisError

if TYPE_CHECKING:
    from deixis.corpus.pictures import Pictures

#: The eight coarse types (Entities, section 2.1), in the order of its Table 1, under the names of the release.
TYPES = ("people", "clothing", "bodyparts", "animals", "vehicles", "instruments", "scene", "other")
#: The type of phrases that refer to nothing visible; their chain is `NOT_VISUAL_CHAIN`.
NOT_VISUAL = "notvisual"
NOT_VISUAL_CHAIN = "0"
#: Name, in commands and messages, of the images that are in no split.
NO_SPLIT = "(none)"
#: Name of all images together, unless a split has this name.
ALL = "all"


class Box(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A rectangle in pixels of the original picture. Coordinates are continuous: `x2 - x1` is the width.

    >>> Box(10, 20, 110, 70).scaled(0.5, 0.5)
    Box(x1=5.0, y1=10.0, x2=55.0, y2=35.0)
    """

    x1: float
    y1: float
    x2: float
    y2: float

    def scaled(self, across: float, down: float) -> Box:
        """The same box in a picture whose width and height are `across` and `down` times as large."""
        return Box(self.x1 * across, self.y1 * down, self.x2 * across, self.y2 * down)


class Phrase(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens `start` to `end` (exclusive) of a caption, linked to a chain of the image.

    >>> Phrase(0, 2, chain="1", types=("people",)).visual
    True
    """

    start: int
    end: int
    chain: str = NOT_VISUAL_CHAIN
    types: tuple[str, ...] = ()

    @property
    def visual(self) -> bool:
        return self.chain != NOT_VISUAL_CHAIN


class Caption(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One sentence about an image. Create it with `make_caption`, so that equal captions are equal records.

    `words` are the tokens if they differ from `text.split()`; use `tokens` to read them.
    `id` is the source's id of the caption, or empty if its position in the image identifies it.

    >>> caption = Caption("A dog runs .", phrases=(Phrase(0, 2, chain="1"),))
    >>> caption.phrase_text(caption.phrases[0])
    'A dog'
    """

    text: str
    phrases: tuple[Phrase, ...] = ()
    words: tuple[str, ...] | None = None
    id: str = ""
    unrelated: bool = False

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(self.text.split()) if self.words is None else self.words

    def phrase_text(self, phrase: Phrase) -> str:
        return " ".join(self.tokens[phrase.start : phrase.end])


class Chain(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An entity of one image. `boxes` are indexes of the image's boxes; several chains may share a box.

    `label` is the category in sources without phrases (COCO instances).

    >>> Chain("1", boxes=(0, 2)).boxes
    (0, 2)
    """

    id: str
    boxes: tuple[int, ...] = ()
    scene: bool = False
    no_box: bool = False
    label: str = ""


class Image(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A picture with its captions and annotations. Create it with `make_image`, which checks and orders the parts.

    `width` and `height` are those of the original picture, to which the boxes refer; 0 means unknown. `file` is the
    picture's path inside the corpus' pictures. `source_id` is the photo's original id if the image has another id here
    (a Flickr photo in COCO); the leak guard checks both.

    >>> image = Image("1", width=320, height=240, boxes=(Box(0, 0, 32, 24),), chains=(Chain("a", boxes=(0,)),))
    >>> image.chain_boxes("a", size=(160, 120))
    (Box(x1=0.0, y1=0.0, x2=16.0, y2=12.0),)
    """

    id: str
    file: str = ""
    width: int = 0
    height: int = 0
    split: str = ""
    captions: tuple[Caption, ...] = ()
    boxes: tuple[Box, ...] = ()
    chains: tuple[Chain, ...] = ()
    source_id: str = ""

    def chain_boxes(self, chain_id: str, size: tuple[int, int] | None = None) -> tuple[Box, ...]:
        """The boxes of one chain, in pixels of the original or scaled to a picture of `size` (width, height)."""
        boxes = self.boxes if size is None else self.scaled_boxes(*size)
        return tuple(boxes[index] for chain in self.chains if chain.id == chain_id for index in chain.boxes)

    def scaled_boxes(self, width: int, height: int) -> tuple[Box, ...]:
        """All boxes scaled to a copy of the picture that is `width` × `height` pixels."""
        if not self.width or not self.height or (width, height) == (self.width, self.height):
            return self.boxes
        return tuple(box.scaled(width / self.width, height / self.height) for box in self.boxes)

    def chain_types(self) -> dict[str, tuple[str, ...]]:
        """The types of each chain: those of its phrases, in order of appearance. A chain can have several, or none."""
        types_of: dict[str, dict[str, None]] = {chain.id: {} for chain in self.chains}
        for caption in self.captions:
            for phrase in caption.phrases:
                if phrase.visual:
                    types_of[phrase.chain].update(dict.fromkeys(phrase.types))
        return {chain: tuple(types) for chain, types in types_of.items()}


def make_caption(
    text: str,
    tokens: Iterable[str] | None = None,
    phrases: Iterable[Phrase] = (),
    *,
    id: str = "",
    unrelated: bool = False,
) -> Caption:
    """Create a caption in normal form: phrases sorted by position, `words` only if they differ from `text.split()`."""
    words = None if tokens is None else tuple(tokens)
    if words == tuple(text.split()):
        words = None
    ordered = tuple(sorted(phrases, key=lambda phrase: (phrase.start, -phrase.end, phrase.chain, phrase.types)))
    return Caption(text, ordered, words, id, unrelated)


def make_image(
    id: str,
    *,
    file: str = "",
    width: int = 0,
    height: int = 0,
    split: str = "",
    captions: Iterable[Caption] = (),
    boxes: Iterable[Box] = (),
    chains: Iterable[Chain] = (),
    source_id: str = "",
) -> Image:
    """Create an image in normal form: chains sorted by id, the boxes of each chain ascending.

    A chain that occurs only in a phrase is added without a box. Raises `DeixisError` if the parts do not fit together.
    """
    captions = tuple(captions)
    if width < 0 or height < 0:
        raise DeixisError(f"image {id}: the size {width} × {height} is negative")
    # Integers become floats, so that equal boxes have equal bytes in the fingerprint.
    boxes = tuple(Box(float(box.x1), float(box.y1), float(box.x2), float(box.y2)) for box in boxes)
    by_id: dict[str, Chain] = {}
    for chain in chains:
        if chain.id in by_id or chain.id in ("", NOT_VISUAL_CHAIN):
            raise DeixisError(
                f"image {id}: chain {chain.id!r} occurs twice, is empty, or is the id reserved for non-visual phrases"
            )
        ordered = tuple(sorted(set(chain.boxes)))
        if ordered and (ordered[0] < 0 or ordered[-1] >= len(boxes)):
            raise DeixisError(f"image {id}: chain {chain.id!r} points to box {ordered[-1]} of {len(boxes)}")
        by_id[chain.id] = chain if ordered == chain.boxes else msgspec.structs.replace(chain, boxes=ordered)
    for box in boxes:
        _check_box(id, box, width, height)
    for index, caption in enumerate(captions):
        length = len(caption.tokens) if caption.phrases else 0
        for phrase in caption.phrases:
            if not 0 <= phrase.start < phrase.end <= length:
                raise DeixisError(
                    f"image {id}: caption {index} has {length} tokens, but a phrase spans {phrase.start}–{phrase.end}"
                )
            if not phrase.chain:
                raise DeixisError(f"image {id}: caption {index} has a phrase without a chain")
            if phrase.visual and phrase.chain not in by_id:
                by_id[phrase.chain] = Chain(phrase.chain)
    return Image(
        id=id,
        file=file,
        width=width,
        height=height,
        split=split,
        captions=captions,
        boxes=boxes,
        chains=tuple(sorted(by_id.values(), key=lambda chain: natural_key(chain.id))),
        source_id=source_id,
    )


def _check_box(image_id: str, box: Box, width: int, height: int) -> None:
    corners = f"({box.x1:g}, {box.y1:g}, {box.x2:g}, {box.y2:g})"
    # NaN fails every comparison, so it is caught here too.
    if not (0 <= box.x1 <= box.x2 < float("inf") and 0 <= box.y1 <= box.y2 < float("inf")):
        raise DeixisError(f"image {image_id}: {corners} is not a box (x1 ≤ x2, y1 ≤ y2, nothing below 0)")
    if (width and box.x2 > width) or (height and box.y2 > height):
        raise DeixisError(f"image {image_id}: box {corners} is outside the picture of {width} × {height}")


def natural_key(text: str) -> tuple[int, int, str, str]:
    """Sort key that puts numbers first, in numeric order: 9 before 10 before "a"."""
    if text.isascii() and text.isdigit():
        # By length, then digit by digit, because `int` limits the number of digits.
        digits = text.lstrip("0")
        return (0, len(digits), digits, text)
    return (1, 0, "", text)


def photo_numbers(*names: str) -> list[str]:
    """All numbers in these names that may identify a photo.

    Flickr photo ids have eight digits or more, given without leading zeros; COCO's file names have twelve, of which six
    or more are leading zeros.

    >>> photo_numbers("12345678_0a1b2c.jpg", "COCO_val2014_000000000009.jpg", "2017/9")
    ['12345678', '000000000009']
    """
    return [
        flickr or coco
        for name in names
        for flickr, coco in re.findall(r"(?<![0-9])(?:0*([1-9][0-9]{7,})|(0{6}[0-9]{6})(?![0-9]))", name)
    ]


def carried_source_id(source_id: str, kept_ids: Iterable[str], lost: Iterable[str]) -> str:
    """The source id of an image that keeps some of its names and loses others.

    Photo ids that occur only in the lost names are added, so that the leak guard still recognizes the image.
    """
    known = photo_numbers(source_id, *kept_ids)
    missing = [photo for photo in dict.fromkeys(photo_numbers(*lost)) if photo not in known]
    return " ".join(part for part in (source_id, *missing) if part)


class Corpus:
    """An immutable, ordered collection of images, with their pictures if those are available.

    Two corpora are equal if their images are equal; `name` and `pictures` are not compared.

    >>> corpus = Corpus([Image("1", split="train"), Image("2", split="test")], name="small")
    >>> corpus
    <Corpus small: 2 images (train: 1, test: 1)>
    >>> corpus.split("test")["2"].id
    '2'
    """

    def __init__(self, images: Iterable[Image], *, name: str = "", pictures: Pictures | None = None) -> None:
        self._images = tuple(images)
        self._name = name
        self._pictures = pictures
        if len(self._by_id) != len(self._images):
            seen: set[str] = set()
            twice = next(image.id for image in self._images if image.id in seen or seen.add(image.id))  # type: ignore[func-returns-value]
            raise DeixisError(f"corpus {name or '(unnamed)'}: image {twice!r} occurs twice")

    @property
    def images(self) -> tuple[Image, ...]:
        return self._images

    @property
    def name(self) -> str:
        return self._name

    @property
    def pictures(self) -> Pictures | None:
        """The pictures, or None for a corpus without pictures."""
        return self._pictures

    @cached_property
    def _by_id(self) -> dict[str, Image]:
        return {image.id: image for image in self._images}

    def __len__(self) -> int:
        return len(self._images)

    def __iter__(self) -> Iterator[Image]:
        return iter(self._images)

    def __getitem__(self, image_id: str) -> Image:
        try:
            return self._by_id[image_id]
        except KeyError:
            raise DeixisError(f"corpus {self._name or '(unnamed)'} has no image {image_id!r}") from None

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._by_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Corpus) and self._images == other._images

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        splits = ", ".join(f"{split or NO_SPLIT}: {count}" for split, count in self.splits.items())
        return f"<Corpus {self._name or '(unnamed)'}: {len(self)} images ({splits})>"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the images in order. Equal corpora have equal fingerprints, whatever their file format."""
        digest = hashlib.sha256(b"deixis corpus 1\n")
        encoder = msgspec.json.Encoder()
        for image in self._images:
            digest.update(encoder.encode(image))
            digest.update(b"\n")
        return digest.hexdigest()

    @cached_property
    def splits(self) -> dict[str, int]:
        """Number of images per split, in order of appearance."""
        counts: dict[str, int] = {}
        for image in self._images:
            counts[image.split] = counts.get(image.split, 0) + 1
        return counts

    def split_hash(self, split: str | None = None) -> str:
        """SHA-256 of the sorted image ids of one split, or of all images. Identifies the images of an evaluation."""
        ids = sorted(image.id for image in (self if split is None else self.split(split)))
        return hashlib.sha256("\n".join(ids).encode()).hexdigest()

    def with_images(self, images: Iterable[Image], *, name: str | None = None) -> Corpus:
        """A corpus of these images with the same pictures."""
        return Corpus(images, name=self._name if name is None else name, pictures=self._pictures)

    def split(self, *names: str) -> Corpus:
        """The images of these splits, including `NO_SPLIT` and `ALL`. Raises `DeixisError` for unknown names."""
        if ALL in names and ALL not in self.splits:
            return self
        wanted = {"" if name == NO_SPLIT else name: name for name in names}
        for split, name in wanted.items():
            if split not in self.splits:
                known = ", ".join(split or NO_SPLIT for split in self.splits)
                raise DeixisError(
                    f"corpus {self._name or '(unnamed)'} has no split {name!r}; it has {known}, or {ALL!r}"
                )
        return self.where(lambda image: image.split in wanted)

    def where(self, keep: Callable[[Image], bool]) -> Corpus:
        """The images for which `keep` is true."""
        return self.with_images(image for image in self._images if keep(image))

    def subset(self, image_ids: Iterable[str]) -> Corpus:
        """The images with these ids, in this order."""
        return self.with_images(self[image_id] for image_id in image_ids)
