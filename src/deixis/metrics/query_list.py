"""The captions and phrases of a split in the order in which a model answers them, and answers that are boxes.

`deixis evaluate queries` writes the list. Whoever scores with a model of their own follows it, and `deixis evaluate
scores`, `embeddings` and `boxes` check what comes back against the corpus: ids, order, and the split's hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from deixis.corpus import Corpus, Image
from deixis.errors import DeixisError, InputError
from deixis.files import atomic_write, read_json
from deixis.metrics.localization import Localization, Localized, PhraseQuery, evaluate_localization, gold_queries

#: The most boxes of a phrase that are read.
MOST_BOXES = 2000


class CaptionEntry(msgspec.Struct, frozen=True):
    """A caption: the column of a score matrix, the row of caption embeddings."""

    image: str
    text: str


class PhraseEntry(msgspec.Struct, frozen=True):
    """A phrase with a box; `text` is its caption, `width` and `height` are the picture's in the pixels of the boxes."""

    id: str
    image: str
    file: str
    text: str
    phrase: str
    width: int | None = None
    height: int | None = None


class QueryList(msgspec.Struct, frozen=True):
    """What a split asks: its images in order, their captions in order, and the phrases that have a box."""

    corpus: str
    split: str
    split_hash: str
    images: tuple[str, ...]
    captions: tuple[CaptionEntry, ...]
    phrases: tuple[PhraseEntry, ...]


def query_list(corpus: Corpus, split: str | None) -> QueryList:
    """The list of a split; None for all images."""
    images = corpus.images if split is None else corpus.split(split).images
    return QueryList(
        corpus.name,
        split or "",
        corpus.split_hash(split),
        tuple(image.id for image in images),
        tuple(CaptionEntry(image.id, caption.text) for image in images for caption in image.captions),
        tuple(
            PhraseEntry(
                phrase_id(image, query),
                image.id,
                image.file,
                query.caption.text,
                query.text,
                image.width,
                image.height,
            )
            for image in images
            for query in gold_queries(image)[0]
        ),
    )


def phrase_id(image: Image, query: PhraseQuery) -> str:
    """Image, caption and first token of a phrase: `1000268201_693b08cb0e#0:3`, counted from 0."""
    caption = next(index for index, caption_of_image in enumerate(image.captions) if caption_of_image is query.caption)
    return f"{image.id}#{caption}:{query.phrase.start}"


def save_list(queries: QueryList, path: str | Path) -> None:
    with atomic_write(path) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(queries), indent=1))


def check_list(path: str | Path, corpus: Corpus, split: str | None) -> None:
    """Raise an `InputError` unless a list has the images and captions of this split, in this order."""
    given = read_json(Path(path), QueryList, "is no list that `deixis evaluate queries` wrote")
    expected = query_list(corpus, split)
    for name in ("images", "captions"):
        wanted, listed = getattr(expected, name), getattr(given, name)
        for position, (one, other) in enumerate(zip(wanted, listed, strict=False), 1):
            if one != other:
                problem = f"is {_named(other)!r}, but the split has {_named(one)!r} there"
                raise InputError(path, problem, f"{name} {position}")
        if len(wanted) != len(listed):
            raise InputError(path, f"has {len(listed):,} {name}, the split has {len(wanted):,}")
    if given.split_hash != expected.split_hash:
        raise InputError(path, "was written for another version of this split", "split_hash")


def _named(entry: str | CaptionEntry) -> str:
    return entry if isinstance(entry, str) else f"{entry.image}: {entry.text}"


def read_boxes(path: str | Path) -> dict[str, list[tuple[float, float, float, float]]]:
    """Predictions from a JSON file: for each phrase id, boxes x1, y1, x2, y2 in the picture's pixels, best first."""
    problem = "does not map phrase ids to lists of boxes [x1, y1, x2, y2]"
    predictions = {}
    for phrase, boxes in read_json(Path(path), dict[str, list[list[float]]], problem).items():
        if len(boxes) > MOST_BOXES:
            raise InputError(path, f"{len(boxes):,} boxes; {MOST_BOXES:,} are the most", phrase)
        for box in boxes:
            if len(box) != 4:
                problem = f"a box has {len(box)} numbers: boxes are [x1, y1, x2, y2], best first, with no score"
                raise InputError(path, problem, phrase)
        corners = np.array(boxes, np.float64).reshape(-1, 4)
        if not np.isfinite(corners).all():
            raise InputError(path, "a box is not finite", phrase)
        if (corners[:, 2:] < corners[:, :2]).any():
            raise InputError(
                path, "a box ends before it begins: boxes are [x1, y1, x2, y2], no width and height", phrase
            )
        predictions[phrase] = [(x1, y1, x2, y2) for x1, y1, x2, y2 in boxes]
    if any(predictions.values()) and max(max(box) for boxes in predictions.values() for box in boxes) <= 1:
        raise InputError(path, "no number is above 1: boxes are in pixels of the original picture, no fractions of it")
    return predictions


def boxes_outside(
    images: Sequence[Image], predictions: Mapping[str, Sequence[tuple[float, float, float, float]]]
) -> int:
    """Number of boxes that begin outside their picture or end more than a pixel outside, where its size is known.

    Only the right and lower edges are checked, which boxes at a larger scale cross.
    """
    sizes = {image.id: (image.width, image.height) for image in images if image.width and image.height}
    outside = 0
    for phrase, boxes in predictions.items():
        width, height = sizes.get(phrase.rpartition("#")[0], (None, None))
        if width and height:
            outside += sum(x1 >= width or y1 >= height or x2 > width + 1 or y2 > height + 1 for x1, y1, x2, y2 in boxes)
    return outside


def localize_boxes(
    images: Sequence[Image],
    predictions: Mapping[str, Sequence[tuple[float, float, float, float]]],
    *,
    recall_at: Sequence[int] = (1, 5, 10),
) -> tuple[Localization, int]:
    """Localization with the boxes that a model gave for each phrase, and how many phrases it gave none for.

    A phrase without boxes counts as missed. Ids that no phrase of the images has are an error.
    """
    known = {phrase_id(image, query) for image in images for query in gold_queries(image)[0]}
    unknown = sorted(predictions.keys() - known)
    if unknown:
        raise DeixisError(
            f"{len(unknown):,} ids are no phrases with a box of this split, such as {unknown[0]!r}; "
            "`deixis evaluate queries` writes the ids"
        )

    def localize(image: Image, queries: Sequence[PhraseQuery]) -> Localized:
        boxes_of_queries = [predictions.get(phrase_id(image, query), ()) for query in queries]
        most = max(1, *map(len, boxes_of_queries))
        boxes, scores = np.zeros((len(queries), most, 4)), np.full((len(queries), most), -np.inf)
        for row, predicted in enumerate(boxes_of_queries):
            if predicted:
                boxes[row, : len(predicted)], scores[row, : len(predicted)] = predicted, -np.arange(len(predicted))
        return Localized(boxes, scores)

    localized = evaluate_localization(images, localize, recall_at=recall_at)
    return localized, sum(not predictions.get(phrase) for phrase in known)
