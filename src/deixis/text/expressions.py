"""Referring expressions from geometry: "the dog on the left", "the bigger truck", "the person nearest to the bench".

Made from the labelled boxes of an image (COCO instances). An expression is about one of at least two objects with the
same label, and is made only where the difference that it names is large. Boxes are taken as fractions of the picture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from deixis.corpus.boxes import box_array, iou_matrix
from deixis.corpus.records import Image
from deixis.text.plurals import plural

Kind = Literal["side", "height", "size", "distance"]
#: The kinds of expressions: left or right, above or below, bigger or smaller, nearer to or farther from another thing.
KINDS: tuple[Kind, ...] = ("side", "height", "size", "distance")

#: Centres must be this far apart, as a share of the picture's width or height.
APART = 0.12
#: The larger area, or distance, is at least this many times the smaller one.
LARGER = 1.6
#: Objects of one label that overlap more than this are hard to distinguish, even for people.
OVERLAP = 0.4
#: An expression is made where a label has at most this many objects.
MOST = 5

#: Words for small numbers, by number.
NUMBERS = ("no", "one", "two", "three", "four", "five", "six")
#: What people call the objects of COCO's labels, where that is not, or not always, the label.
NAMES: dict[str, tuple[str, ...]] = {
    "airplane": ("airplane", "plane"),
    "bicycle": ("bicycle", "bike"),
    "cell phone": ("cell phone", "phone"),
    "couch": ("couch", "sofa"),
    "dining table": ("dining table", "table"),
    "donut": ("donut", "doughnut"),
    "hair drier": ("hair dryer",),
    "handbag": ("handbag", "bag"),
    "motorcycle": ("motorcycle", "motorbike"),
    "potted plant": ("potted plant", "plant"),
    "remote": ("remote", "remote control"),
    "sports ball": ("ball",),
    "teddy bear": ("teddy bear", "stuffed animal"),
    "tennis racket": ("tennis racket", "racket"),
    "tv": ("tv", "television"),
    "wine glass": ("wine glass", "glass"),
}

#: The type (`deixis.corpus.TYPES`) of COCO's labels that are not of the type "other".
LABEL_TYPES: dict[str, str] = {
    "person": "people",
    "tie": "clothing",
    **dict.fromkeys(("bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat"), "vehicles"),
    **dict.fromkeys(("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe"), "animals"),
}

_WORDINGS: dict[str, tuple[str, ...]] = {
    "left": ("the {0} on the left", "the left {0}", "the {0} to the left", "the leftmost {0}"),
    "right": ("the {0} on the right", "the right {0}", "the {0} to the right", "the rightmost {0}"),
    "top": ("the {0} at the top", "the upper {0}", "the {0} above", "the top {0}"),
    "bottom": ("the {0} at the bottom", "the lower {0}", "the {0} below", "the bottom {0}"),
    "big": ("the bigger {0}", "the larger {0}", "the big {0}", "the large {0}"),
    "bigger": ("the biggest {0}", "the largest {0}", "the big {0}", "the large {0}"),
    "small": ("the smaller {0}", "the small {0}", "the little {0}"),
    "smaller": ("the smallest {0}", "the small {0}", "the little {0}"),
    "near": (
        "the {0} nearest to the {1}",
        "the {0} closest to the {1}",
        "the {0} next to the {1}",
        "the {0} by the {1}",
    ),
    "far": ("the {0} farthest from the {1}", "the {0} far from the {1}"),
}

Fractions = NDArray[np.float64]


class Expression(NamedTuple):
    """A text about one object of an image, and the objects of the same label that it is not about."""

    text: str
    kind: Kind
    label: str
    #: Indexes of `labelled_boxes`.
    target: int
    others: tuple[int, ...]
    #: What the text calls the objects: the label, or another name for it.
    noun: str
    #: The object that the distance is measured to, for the kind `distance`.
    landmark: int | None = None


class LabelledBoxes(NamedTuple):
    labels: tuple[str, ...]
    boxes: Fractions  # (objects, 4) in [0, 1]


def labelled_boxes(image: Image, size: tuple[int, int] | None = None) -> LabelledBoxes:
    """The objects of an image: its chains with a label and one box.

    Args:
        size: width and height that the boxes refer to, where the image does not know them.
    """
    width, height = size or (image.width, image.height)
    chains = [chain for chain in image.chains if chain.label and len(chain.boxes) == 1]
    boxes = box_array(image.boxes[chain.boxes[0]] for chain in chains)
    return LabelledBoxes(tuple(chain.label for chain in chains), boxes / np.tile((width, height), 2))


def expressions(objects: LabelledBoxes, random: np.random.Generator, *, least: float = 0.005) -> list[Expression]:
    """All expressions that geometry allows, one for each object and kind, worded at random.

    Args:
        least: area, as a share of the picture, of the smallest object that expressions are about. A label with a
            smaller object is left out, because an expression must be true of one object alone.
    """
    expressions_made: list[Expression] = []
    areas = _areas(objects.boxes)
    for label in dict.fromkeys(objects.labels):
        same = np.array([index for index, other in enumerate(objects.labels) if other == label])
        if not 2 <= len(same) <= MOST or areas[same].min() < least:
            continue
        boxes = objects.boxes[same]
        overlaps = iou_matrix(boxes, boxes)
        np.fill_diagonal(overlaps, 0)
        if overlaps.max() > OVERLAP:
            continue
        for (kind, name), position, landmark in _extremes(objects, same, areas):
            templates = _WORDINGS[name]
            labels = (label,) if landmark is None else (label, objects.labels[landmark])
            named = [_name(object_label, random) for object_label in labels]
            text = templates[random.integers(len(templates))].format(*named)
            expressions_made.append(
                Expression(
                    text,
                    kind,
                    label,
                    int(same[position]),
                    tuple(int(other) for other in same if other != same[position]),
                    named[0],
                    landmark,
                )
            )
    return expressions_made


def _extremes(
    objects: LabelledBoxes, same: NDArray[np.int64], areas: Fractions
) -> list[tuple[tuple[Kind, str], int, int | None]]:
    """What can be said of one object of a label: name of the wording, place in `same`, index of the landmark."""
    boxes = objects.boxes[same]
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    extremes: list[tuple[tuple[Kind, str], int, int | None]] = []
    axes: tuple[tuple[Kind, str, str], ...] = (("side", "left", "right"), ("height", "top", "bottom"))
    for axis, (kind, low, high) in enumerate(axes):
        for name, values in ((low, -centres[:, axis]), (high, centres[:, axis])):
            position = _greatest(values, lambda first, second: first - second >= APART)
            if position is not None:
                extremes.append(((kind, name), position, None))
    sizes = areas[same]
    for names, values in ((("big", "bigger"), sizes), (("small", "smaller"), 1 / np.maximum(sizes, 1e-6))):
        position = _greatest(values, _times_larger)
        if position is not None:
            extremes.append((("size", names[len(same) > 2]), position, None))
    for landmark in _single_objects(objects):
        distances = _gaps(boxes, objects.boxes[landmark]) + 0.02
        for name, values in (("near", 1 / distances), ("far", distances)):
            position = _greatest(values, _times_larger)
            if position is not None and distances.max() - distances.min() >= APART:
                extremes.append((("distance", name), position, landmark))
    return extremes


def _single_objects(objects: LabelledBoxes) -> list[int]:
    """The objects whose label occurs once in the picture, and which are not too small to find."""
    return [
        index
        for index, (label, box) in enumerate(zip(objects.labels, objects.boxes, strict=True))
        if objects.labels.count(label) == 1 and _areas(box) >= 0.01
    ]


def _greatest(values: Fractions, far_enough: Callable[[float, float], bool]) -> int | None:
    """The place of the greatest value, if the second greatest is far enough from it."""
    first, second = np.argsort(-values)[:2]
    return int(first) if far_enough(float(values[first]), float(values[second])) else None


def _times_larger(first: float, second: float) -> bool:
    return first >= LARGER * second


def _gaps(boxes: Fractions, other: Fractions) -> Fractions:
    """Distances between the centres of boxes and of another one."""
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    return np.asarray(np.hypot(*(centres - (other[:2] + other[2:]) / 2).T))


def _areas(boxes: Fractions) -> Fractions:
    return np.asarray((boxes[..., 2:] - boxes[..., :2]).prod(-1))


class ObjectPhrase(NamedTuple):
    """A text that names all objects of a label: "the dog", "two dogs", "the dogs"."""

    text: str
    objects: tuple[int, ...]


def object_phrases(objects: LabelledBoxes, random: np.random.Generator, *, least: float = 0.002) -> list[ObjectPhrase]:
    """One phrase for every label of a picture; labels with an object below `least` of the picture are left out."""
    phrases = []
    areas = _areas(objects.boxes)
    for label in dict.fromkeys(objects.labels):
        same = tuple(index for index, other_label in enumerate(objects.labels) if other_label == label)
        if areas[list(same)].min() < least:
            continue
        name = _name(label, random)
        if len(same) == 1:
            text = f"{('a', 'the')[random.integers(2)]} {name}"
            text = f"an {name}" if text[:2] == "a " and name[0] in "aeiou" else text
        else:
            *before, last = name.split()
            several = " ".join([*before, plural(last)])
            numbers = ("the", *([NUMBERS[len(same)]] if len(same) < len(NUMBERS) else []))
            text = f"{numbers[random.integers(len(numbers))]} {several}"
        phrases.append(ObjectPhrase(text, same))
    return phrases


def _name(label: str, random: np.random.Generator) -> str:
    names = NAMES.get(label, (label,))
    return names[random.integers(len(names))]
