"""What a trained model can do, told by small protocols: all that evaluation, search and the web page know of a model.

A matcher is given features, not pixels: `ImageFeatures` of pictures, and texts as lower-case tokens
(`deixis.text.tokens_of`), sentences and phrases alike; `LocalizesMentions` alone looks at the picture. It answers in
NumPy arrays. Scores of all kinds are higher for what fits better; how they compare with scores of another method, or of
another picture, is the matcher's to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from deixis.errors import DeixisError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image as Picture

    from deixis.features.store import FeatureStore

#: A sentence or a phrase, split and in lower case.
Tokens = Sequence[str]


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """What a matcher is given of one picture; rows of `regions` and `boxes` belong together."""

    #: The whole picture's vector, `(channels,)`, float16 or float32.
    image: NDArray[Any]
    #: `(regions, channels)`, or None where the store has no regions.
    regions: NDArray[Any] | None
    #: `(regions, 4)`: x1, y1, x2, y2 in the original picture's pixels.
    boxes: NDArray[Any] | None
    #: Width and height of the original picture.
    size: tuple[float, float]
    #: The whole picture's vector as the regions' are made, `(channels,)`; None where `image` is that.
    whole: NDArray[Any] | None = None


class Mention(NamedTuple):
    """A phrase where it stands: tokens `start` to `end` (exclusive) of a sentence, which may be all of it."""

    sentence: Tokens
    start: int
    end: int


class Localized(NamedTuple):
    """What a localizer answers: boxes in the original picture's pixels, and how well each fits each phrase."""

    boxes: NDArray[Any]  # (regions, 4), or (phrases, regions, 4) where each phrase has boxes of its own
    scores: NDArray[Any]  # (phrases, regions), higher is better


@runtime_checkable
class Encodes(Protocol):
    """Puts pictures and texts into one space, where the dot product of rows (they have length 1) tells how they fit."""

    def encode_images(self, images: Sequence[ImageFeatures]) -> NDArray[Any]:
        """`(images, dim)`, rows of length 1."""

    def encode_texts(self, texts: Sequence[Tokens]) -> NDArray[Any]:
        """`(texts, dim)`, rows of length 1; zeros for a text of which the matcher knows no word."""


@runtime_checkable
class Scores(Protocol):
    """Scores pictures against texts where there is no common space."""

    def score(self, images: Sequence[ImageFeatures], texts: Sequence[Tokens]) -> NDArray[Any]:
        """`(images, texts)`, higher is better, comparable over all of them."""


@runtime_checkable
class Localizes(Protocol):
    """Points at what a phrase names."""

    def localize(self, image: ImageFeatures, phrases: Sequence[Tokens]) -> Localized:
        """Scores of the image's regions for each phrase; the boxes are those given, or refined ones in their place.

        Scores need only be comparable within one phrase and picture.
        """


@runtime_checkable
class LocalizesMentions(Protocol):
    """Points at what a phrase names, from the picture itself, with regions and boxes of its own.

    For a matcher whose backbone was trained along: it has no stored features, and reads phrases in their sentence.
    """

    def localize_mentions(self, picture: Picture, mentions: Sequence[Mention]) -> Localized:
        """Boxes in the picture's pixels; where they differ by phrase, `(mentions, regions, 4)`."""


@runtime_checkable
class Aligns(Protocol):
    """Finds the region of every word of a sentence."""

    def align_words(self, image: ImageFeatures, sentences: Sequence[Tokens]) -> tuple[NDArray[Any], list[NDArray[Any]]]:
        """Boxes `(regions, 4)`, the whole picture's first, and how well they fit each sentence's `(words, regions)`."""

    def states(
        self, boxes: Sequence[NDArray[Any]], products: Sequence[NDArray[Any]], beta: float, temperature: float = 0.0
    ) -> list[list[int]]:
        """The region of every word of sentences; words side by side with the same one gain `beta`.

        Without a temperature they are those of the best chain of regions; with one, those that share most with the
        regions of all chains.

        Args:
            boxes: those of each sentence's picture, as `align_words` gives them.
        """


@runtime_checkable
class FindsRegions(Protocol):
    """Tells how well the regions of pictures suit pieces of text."""

    def best_regions(self, images: Iterable[ImageFeatures], snippets: Sequence[Tokens]) -> NDArray[Any]:
        """`(images, snippets)`: the score of each image's best region, the picture as a whole left out."""


@runtime_checkable
class DetectsPresence(Protocol):
    """Tells how likely phrases are in pictures, by scores that compare across pictures and phrases."""

    def presence(self, image: ImageFeatures, phrases: Sequence[Tokens]) -> NDArray[Any]:
        """`(phrases,)`, higher where the phrase is more likely to name something in the picture."""


@runtime_checkable
class Describes(Protocol):
    """Puts a picture into words."""

    def describe(self, image: ImageFeatures, count: int) -> list[tuple[Tokens, float]]:
        """At most `count` sentences with their scores, best first."""


@runtime_checkable
class TellsLikelihood(Protocol):
    """Knows how likely a sentence is, given a picture."""

    def log_likelihood(self, images: Sequence[ImageFeatures], texts: Sequence[Tokens]) -> NDArray[Any]:
        """`(images, texts)`: log p(text | picture), the end of each text included."""


@runtime_checkable
class DescribesRegions(Protocol):
    """Puts the regions of a picture into words."""

    def describe_regions(self, image: ImageFeatures, count: int) -> list[list[tuple[Tokens, float]]]:
        """At most `count` descriptions of each region with their scores, best first."""


@runtime_checkable
class RatesDescriptions(DescribesRegions, Protocol):
    """Knows how much of a description is owed to its region."""

    def told_by_regions(self, image: ImageFeatures, texts: Sequence[Tokens]) -> NDArray[Any]:
        """`(regions,)`: how much more each region says its text, one a region, than others would."""


@runtime_checkable
class HasNeighbours(Protocol):
    """Has word vectors of its own."""

    def neighbours(self, word: str, count: int) -> list[tuple[str, float]]:
        """The words nearest to a word, and how near; a word that it does not know is a `DeixisError`."""


def read_images(
    store: FeatureStore, image_ids: Iterable[str], *, regions: FeatureStore | None = None
) -> Iterator[ImageFeatures]:
    """The features of images as views of a store's files, one at a time: nothing is loaded before it is used.

    Args:
        store: whole-picture vectors, and, unless `regions` is given, regions where it has them.
        image_ids: which; one that is not in the store is a `DeixisError`.
        regions: another store, whose regions are taken.
    """
    vectors, sizes = store["image"], store["size"]
    held = store if regions is None else regions
    has_regions = "regions" in held.plan.arrays
    wholes = None if regions is None else regions["image"]
    for image_id in image_ids:
        number = int(store.numbers([image_id])[0])
        width, height = sizes[number].tolist()
        yield ImageFeatures(
            image=vectors[number],
            regions=held.regions(image_id) if has_regions else None,
            boxes=held.boxes(image_id) if has_regions else None,
            size=(width, height),
            whole=None if wholes is None else wholes[int(held.numbers([image_id])[0])],
        )


def regions_of(image: ImageFeatures) -> tuple[NDArray[Any], NDArray[Any]]:
    """Regions and boxes of an image whose features have them."""
    if image.regions is None or image.boxes is None:
        raise DeixisError("localization needs features of regions; extract them with a recipe that has [regions]")
    return np.asarray(image.regions), np.asarray(image.boxes)
