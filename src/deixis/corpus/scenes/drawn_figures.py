"""A figure: how something looks, its pose and its place in the picture; from these come its sketch and its boxes."""

from __future__ import annotations

import math
from typing import NamedTuple

from deixis.corpus.records import Box
from deixis.corpus.scenes.animals import BUILDS, animal
from deixis.corpus.scenes.objects import THINGS, rope, thing
from deixis.corpus.scenes.people import person
from deixis.corpus.scenes.scene_colours import FIXED, HAIR, NAMED, SKIN, Colour, shade
from deixis.corpus.scenes.sketch import Sketch

#: Scenes are composed on a stage of this width and height and painted at any size of the same shape.
STAGE = (320, 240)
#: Pictures are painted this much larger and shrunk, which smooths the edges.
OVERSAMPLING = 2
#: An outline reaches this many oversampled pixels outside its shape.
OUTLINE = 2

PEOPLE = ("man", "woman", "boy", "girl")
ANIMALS = (*BUILDS, "bird", "duck")
#: Units a sketch has for a grown person are 100; children are drawn at this scale.
CHILD_SCALE = 0.7
SIZES = {"": 1.0, "big": 1.3, "small": 0.68}


class Look(NamedTuple):
    """What something is and looks like; two scenes with equal looks, event and setting are the same scene."""

    kind: str
    #: The shirt's colour for people; empty where a kind has but one.
    colour: str = ""
    #: "big", "small", or neither.
    size: str = ""
    hat: str = ""
    hat_colour: str = ""
    lower: str = ""
    lower_colour: str = ""
    hair: str = ""
    skin: int = 0
    beard: bool = False

    @property
    def human(self) -> bool:
        return self.kind in PEOPLE


class Figure(NamedTuple):
    """Something drawn: `x`, `y` is where its origin (the ground between its feet) stands on the stage."""

    look: Look
    pose: str
    #: 1 faces right, -1 left.
    facing: int
    x: float
    y: float
    scale: float
    #: Indexes of figures in its hands: painted over it, but under its near arm.
    held: tuple[int, ...] = ()
    #: A rope's end, from its origin, in sketch units.
    run: float = 0
    drop: float = 0


def sketch_of(look: Look, pose: str, run: float = 0, drop: float = 0) -> Sketch:
    if look.human:
        child, female = look.kind in ("boy", "girl"), look.kind in ("woman", "girl")
        return person(pose, child, female, look.lower, look.hat, look.beard)
    if look.kind in ANIMALS:
        return animal(look.kind, pose)
    if look.kind in THINGS:
        return thing(look.kind)
    return rope(look.kind, run, drop)


def natural_scale(look: Look) -> float:
    return SIZES[look.size] * (CHILD_SCALE if look.kind in ("boy", "girl") else 1.0)


def colour_of(look: Look, role: str) -> Colour:
    """The colour a look gives to a role of its sketch."""
    if role == "skin":
        return SKIN[look.skin]
    if role == "hair":
        return HAIR[look.hair]
    if role in ("shirt", "paint", "coat"):
        return NAMED[look.colour] if look.colour else FIXED["cream"]
    if role == "hat":
        return NAMED[look.hat_colour]
    if role == "lower":
        return NAMED[look.lower_colour]
    if role == "mane":
        return FIXED["cream"] if look.colour == "brown" else shade(NAMED[look.colour], 0.6)
    if role == "patch":
        return FIXED["cream"] if look.colour in ("black", "brown") else FIXED["black"]
    return FIXED[role]


def extent_of(figure: Figure, part: str = "") -> tuple[float, float, float, float]:
    """Where a part (or all) of a figure is on the stage: x1, y1, x2, y2, without outline and rounding."""
    x1, y1, x2, y2 = sketch_of(figure.look, figure.pose, figure.run, figure.drop).extents[part]
    if figure.facing < 0:
        x1, x2 = -x2, -x1
    scale = figure.scale
    return figure.x + x1 * scale, figure.y + y1 * scale, figure.x + x2 * scale, figure.y + y2 * scale


def box_of(figure: Figure, part: str, width: int, height: int) -> Box:
    """The pixels a part of a figure covers in a picture of that size, as whole numbers, cut at the picture's edge."""
    zoom = OVERSAMPLING * width / STAGE[0]
    x1, y1, x2, y2 = (round(edge * zoom) for edge in extent_of(figure, part))
    return Box(
        max(0, math.floor((x1 - OUTLINE) / OVERSAMPLING)),
        max(0, math.floor((y1 - OUTLINE) / OVERSAMPLING)),
        min(width, math.ceil((x2 + OUTLINE + 1) / OVERSAMPLING)),
        min(height, math.ceil((y2 + OUTLINE + 1) / OVERSAMPLING)),
    )
