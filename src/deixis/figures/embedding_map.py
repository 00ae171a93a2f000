"""The map of an embedding space (HM-LSTM, Fig. 8): pictures and their captions, regions and phrases, in a plane.

t-SNE keeps neighbours together; PCA is a plain projection. Embeddings have length 1, so distances follow cosines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from deixis.corpus.records import Image
from deixis.corpus.spans import Span
from deixis.errors import DeixisError
from deixis.figures.tsne import principal_components, tsne
from deixis.metrics.protocols import Pictures
from deixis.model import ImageFeatures, Model, Tokens, has_own_score
from deixis.text.chunker import Chunker
from deixis.text.tokens import tokens_of

Method = Literal["tsne", "pca"]
Kind = Literal["image", "caption", "region", "phrase"]
#: Phrases of a picture that are drawn at most.
PHRASES = 6


class Point(msgspec.Struct, frozen=True):
    """`x` and `y` are in [0, 1], `y` downwards; `to` is the point that this one is drawn with a line to."""

    kind: Kind
    #: Which of the pictures it belongs to.
    picture: int
    x: float
    y: float
    text: str = ""
    to: int | None = None
    #: Of a region, in the original picture's pixels.
    box: tuple[float, float, float, float] | None = None


class SpaceMap(msgspec.Struct, frozen=True):
    method: Method
    images: tuple[str, ...]
    points: tuple[Point, ...]


def check_space(model: Model) -> None:
    """A `DeixisError` where pictures and texts have no space in common, as with networks that look at pairs."""
    if not {"embed_images", "embed_texts"} <= model.abilities or has_own_score(model):
        raise DeixisError("this run has no common space of pictures and texts to draw a map of")


def space_map(model: Model, pictures: Pictures, images: Sequence[Image], *, method: Method) -> SpaceMap:
    """Where some images of a split lie with their captions, and, if the model has them, their regions and phrases.

    Args:
        model: embeds pictures and texts into one space.
        images: of the split.
        method: how the space is laid out in the plane.
    """
    check_space(model)
    features = [pictures.features(image) for image in images]
    points = [Point("image", index, 0, 0, image.id) for index, image in enumerate(images)]
    texts: list[Tokens] = []
    for index, image in enumerate(images):
        for caption in image.captions:
            points.append(Point("caption", index, 0, 0, caption.text, to=index))
            texts.append(tokens_of(caption))
    rows = [model.embed_images(features)]
    if texts:
        rows.append(model.embed_texts(texts))
    if "localize" in model.abilities and all(feature.regions is not None for feature in features):
        finer, vectors = _finer(model, images, features, len(points))
        points += finer
        rows.append(vectors)
    vectors = np.concatenate([np.asarray(part, np.float64) for part in rows if len(part)])
    places = scaled(laid_out(vectors, method))
    placed = [
        msgspec.structs.replace(point, x=float(x), y=float(y))
        for point, (x, y) in zip(points, places.tolist(), strict=True)
    ]
    return SpaceMap(method, tuple(image.id for image in images), tuple(placed))


def _finer(
    model: Model, images: Sequence[Image], features: Sequence[ImageFeatures], first: int
) -> tuple[list[Point], NDArray[Any]]:
    """Phrases of the images with the regions that suit them best; a region is embedded as a picture of its own."""
    points: list[Point] = []
    rows: list[NDArray[Any]] = []
    for index, (image, feature) in enumerate(zip(images, features, strict=True)):
        assert feature.regions is not None
        phrases = _phrases(image)
        if not phrases or not len(feature.regions):
            continue
        boxes, scores = model.localize(feature, phrases)
        best = np.asarray(scores).argmax(1)
        places: dict[int, int] = {}
        for row in np.unique(best).tolist():
            places[row] = first + len(points)
            x1, y1, x2, y2 = (float(side) for side in boxes[row])
            points.append(Point("region", index, 0, 0, box=(x1, y1, x2, y2)))
            region = ImageFeatures(feature.regions[row], None, None, (x2 - x1, y2 - y1))
            rows.append(model.embed_images([region]))
        for phrase, row in zip(phrases, best.tolist(), strict=True):
            points.append(Point("phrase", index, 0, 0, " ".join(phrase), to=places[row]))
        rows.append(model.embed_texts(phrases))
    return points, np.concatenate(rows) if rows else np.empty((0, 1))


def _phrases(image: Image) -> list[Tokens]:
    """The commonest drawn phrases of an image; of one without any, those that the caption chunker finds."""
    captions = [tokens_of(caption) for caption in image.captions]
    spans: list[list[Span]] = [
        [(phrase.start, phrase.end) for phrase in caption.phrases if phrase.visual] for caption in image.captions
    ]
    if not any(spans):
        spans = Chunker.load().phrases_of(captions)
    counts: dict[Tokens, int] = {}
    for tokens, caption_spans in zip(captions, spans, strict=True):
        for start, end in caption_spans:
            counts[tokens[start:end]] = counts.get(tokens[start:end], 0) + 1
    return sorted(counts, key=lambda phrase: -counts[phrase])[:PHRASES]


def laid_out(vectors: NDArray[np.float64], method: Method) -> NDArray[np.float64]:
    """Rows `(n, dim)` in a plane, `(n, 2)`."""
    if len(vectors) < 3:
        raise DeixisError("a map needs three points at least")
    return tsne(vectors) if method == "tsne" else principal_components(vectors)


def scaled(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Into the unit square, both axes by the same factor, in its middle."""
    low, high = places.min(0), places.max(0)
    extent = float((high - low).max()) or 1.0
    return np.asarray((places - (low + high) / 2) / extent + 0.5)
