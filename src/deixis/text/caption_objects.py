"""Phrases of captions that name labelled objects: "a man" where a picture has one box of a person.

So captions of pictures with labelled boxes (COCO's captions and instances) become phrases with boxes, wherever the
numbers leave no doubt: a singular where the picture has one object of the label, a plural that means all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from deixis.text.expressions import NAMES, NUMBERS, LabelledBoxes
from deixis.text.plurals import singular

#: Plurals of more objects are left out: captions seldom mean all of a crowd.
MOST = 6
#: Area, as a share of the picture, of the smallest object that captions speak of.
LEAST = 0.004

_PEOPLE = (
    "baby batter boarder boy catcher chef child female gentleman girl guy kid lady male man person pitcher player "
    "rider skateboarder skier snowboarder surfer swinger toddler umpire woman worker"
)
#: What captions call the objects of a label, beside the label and `NAMES`.
_OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "person": tuple(_PEOPLE.split()),
    "airplane": ("jet", "airliner", "aeroplane", "aircraft"),
    "boat": ("ship", "sailboat", "canoe", "kayak", "rowboat"),
    "bus": ("double-decker",),
    "car": ("suv", "taxi", "sedan"),
    "cat": ("kitten", "kitty"),
    "cell phone": ("cellphone", "smartphone"),
    "cow": ("bull", "calf"),
    "dog": ("puppy",),
    "horse": ("pony",),
    "laptop": ("laptop computer",),
    "motorcycle": ("moped", "scooter"),
    "refrigerator": ("fridge",),
    "sheep": ("lamb",),
    "teddy bear": ("stuffed bear",),
    "toilet": (),
    "train": ("locomotive",),
    "truck": ("pickup",),
    "umbrella": ("parasol",),
}
#: COCO's labels that people call by their names.
_LABELS = (
    "traffic light", "fire hydrant", "stop sign", "parking meter", "bench", "bird", "elephant", "bear", "zebra",
    "giraffe", "backpack", "suitcase", "frisbee", "snowboard", "kite", "baseball bat", "baseball glove", "skateboard",
    "surfboard", "bottle", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli",
    "carrot", "hot dog", "pizza", "cake", "chair", "bed", "mouse", "keyboard", "microwave", "oven", "toaster", "sink",
    "clock", "vase", "scissors", "toothbrush", "tie",
)  # fmt: skip
#: Names of things that often have no box.
_VAGUE = ("table", "glass", "bag", "plant", "ball")
#: Words that end in a name of a label and name something else.
_OTHERS = ("stuffed dog", "toy car", "toy train")


class ObjectSpan(NamedTuple):
    """Tokens `start` to `end` of a caption, and the objects that they name."""

    start: int
    end: int
    objects: tuple[int, ...]


def object_spans(tokens: Sequence[str], phrases: Iterable[tuple[int, int]], objects: LabelledBoxes) -> list[ObjectSpan]:
    """The phrases, given as spans of tokens, that name objects beyond doubt.

    >>> import numpy as np
    >>> objects = LabelledBoxes(("person", "dog", "dog"), np.array([[0, 0, 0.5, 0.5], [0, 0, 0.2, 1], [0.5, 0, 1, 1]]))
    >>> object_spans("a man with two dogs and a dog".split(), [(0, 2), (3, 5), (6, 8)], objects)
    [ObjectSpan(start=0, end=2, objects=(0,)), ObjectSpan(start=3, end=5, objects=(1, 2))]
    """
    areas = (objects.boxes[:, 2:] - objects.boxes[:, :2]).prod(-1)
    spans = []
    for start, end in phrases:
        words = [token.lower() for token in tokens[start:end]]
        label, several = named_label(words)
        same = tuple(index for index, other in enumerate(objects.labels) if other == label)
        if not same or areas[list(same)].min() < LEAST:
            continue
        numbers = [NUMBERS.index(word) for word in words if word in NUMBERS[2:]]
        fits = len(same) == 1 if not several else 1 < len(same) <= MOST and numbers in ([], [len(same)])
        if fits:
            spans.append(ObjectSpan(start, end, same))
    return spans


def named_label(words: Sequence[str]) -> tuple[str, bool]:
    """The label that the end of a phrase names, "" if none, and whether it is a plural.

    >>> [named_label(phrase.split()) for phrase in ("two men", "a hot dog", "a toy car", "the tall building")]
    [('person', True), ('hot dog', False), ('', False), ('', False)]
    """
    if not words:
        return "", False
    *before, last = words
    one = singular(last)
    for name in (" ".join([*before[-1:], one]), one):
        if name in _OTHERS:
            break
        if name in _names():
            return _names()[name], one != last
    return "", False


@cache
def _names() -> dict[str, str]:
    """By name, the label."""
    names = {label: label for labels in (_LABELS, _OTHER_NAMES, NAMES) for label in labels}
    for group in (NAMES, _OTHER_NAMES):
        names |= {name: label for label, others in group.items() for name in others}
    return {name: label for name, label in names.items() if name not in _VAGUE}
