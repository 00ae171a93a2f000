"""Drawn animals: four-legged ones share a body plan and differ in measures, head and tail; birds stand apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from deixis.corpus.scenes.sketch import Point, Sketch, curve, limb, oval, smooth, tilted


class Build(NamedTuple):
    """Measures of a four-legged animal, in units of which a grown person has 100."""

    length: float
    depth: float
    leg: float
    leg_width: float
    #: Where the head's centre is, from the front end of the body at its upper edge.
    head: Point
    neck: float


BUILDS = {
    "dog": Build(40, 17, 20, 6.5, (7, -11), 13),
    "cat": Build(30, 14, 13, 5.5, (5, -9), 10),
    "rabbit": Build(20, 16, 7, 5.5, (4, -8), 9),
    "pig": Build(46, 27, 12, 8, (8, 2), 20),
    "sheep": Build(44, 28, 16, 6, (9, 0), 12),
    "horse": Build(62, 26, 40, 8, (20, -28), 17),
    "cow": Build(66, 31, 27, 8.5, (15, -5), 18),
    "elephant": Build(78, 50, 30, 17, (13, 6), 30),
}


@lru_cache(maxsize=256)
def animal(kind: str, pose: str) -> Sketch:
    """An animal; roles to colour: coat. Poses: stand, walk, run, sit (dog and cat); birds fly."""
    if kind == "bird":
        return _bird()
    if kind == "duck":
        return _duck(pose)
    sketch, build = Sketch(), BUILDS[kind]
    if pose == "sit":
        head = _sitting_body(sketch, build, kind)
    else:
        head = _standing_body(sketch, build, kind, pose=pose)
    HEADS[kind](sketch, *head)
    back = -build.leg - build.depth
    sketch.anchors = {"back": (2, back + 2), "collar": (build.length / 2 + build.head[0] / 2, back - 1)}
    return sketch


def _legs(build: Build, pose: str) -> list[list[Point]]:
    """Hip, knee and foot of the four legs: far fore, far hind, near fore, near hind."""
    fore, hind, top = (
        build.length / 2 - build.leg_width * 0.7,
        -build.length / 2 + build.leg_width * 0.7,
        -build.leg - 5,
    )
    # A heavy animal does not stretch its legs.
    leg, down = build.leg * (0.55 if build.leg_width > 12 else 1.0), build.leg
    if pose != "run":
        step = leg * 0.3 if pose == "walk" else 0.0
        return [[(x, top), (x + bend, -build.leg / 2), (x + step * (1 if bend > 0 else -1), -2.0)] for x, bend in
                ((fore + 3, 0.5), (hind + 6, -1.5), (fore - 3, -0.5), (hind, 1.5))]  # fmt: skip
    return [
        [(fore, top), (fore + leg * 0.35, -down * 0.75), (fore + leg * 0.85, -down * 0.5)],
        [(hind, top), (hind - leg * 0.1, -down * 0.6), (hind - leg * 0.75, -down * 0.28)],
        [(fore - 2, top), (fore + leg * 0.25, -down * 0.6), (fore + leg * 0.6, -down * 0.22)],
        [(hind, top), (hind - leg * 0.3, -down * 0.72), (hind - leg * 1.0, -down * 0.5)],
    ]


def _standing_body(sketch: Sketch, build: Build, kind: str, pose: str) -> Point:
    half, top, belly = build.length / 2, -build.leg - build.depth, -build.leg
    running = pose == "run"
    if running:
        top, belly = top - 3, belly - 3
    legs = _legs(build, pose)
    leg_colour = "ink" if kind == "sheep" else "coat"
    for leg in legs[:2]:
        sketch.add(leg_colour, *limb(build.leg_width, *leg), light=0.8)
    _tail(sketch, kind, (-half, top + build.depth * 0.3), running)
    for leg in legs[2:]:
        sketch.add(leg_colour, *limb(build.leg_width, *leg))
    for leg in legs if kind in ("horse", "cow") else ():
        sketch.add("ink", oval(leg[2][0], leg[2][1] - 0.5, build.leg_width * 0.5, 3), outlined=False)
    head = (half + build.head[0], top + build.head[1])
    body = smooth(
        [(-half - 2, top + 4), (-half * 0.4, top), (half * 0.5, top + 1), (half + 1, top + 3), (half + 2, belly - 4),
         (half * 0.4, belly + 2), (-half * 0.3, belly - build.depth * 0.06), (-half - 1, belly - 1)]
    )  # fmt: skip
    if kind == "sheep":
        wool = [oval(x * half, (top + belly) / 2 + y * build.depth, build.depth * 0.34) for x, y in WOOL]
        sketch.add("coat", *wool, tilted(0, (top + belly) / 2, half, build.depth * 0.42, 0))
        return head
    neck = limb(build.neck, (half - build.neck * 0.4, top + build.depth * 0.36), head)
    sketch.add("coat", body, *neck)
    if kind == "cow":
        for x, y, radius in ((-0.55, 0.3, 7.5), (0.1, 0.55, 8.5), (0.55, 0.2, 6)):
            patch = tilted(x * half, top + y * build.depth, radius * 1.25, radius * 0.85, 25)
            sketch.add("patch", patch, outlined=False)
        sketch.add("rose", oval(-half * 0.42, belly + 1, 6, 4))
    if kind == "horse":
        mane = [(head[0] - 7, head[1] - 9), (head[0] - 1, head[1] - 9), (half - 8, top + 8), (half - 17, top + 2)]
        sketch.add("mane", smooth(mane))
    return head


WOOL = (
    (-0.9, -0.1), (-0.7, -0.4), (-0.3, -0.5), (0.1, -0.52), (0.5, -0.45), (0.85, -0.15), (0.85, 0.2), (0.5, 0.38),
    (0.1, 0.42), (-0.3, 0.42), (-0.7, 0.35), (-0.92, 0.15),
)  # fmt: skip


def _sitting_body(sketch: Sketch, build: Build, kind: str) -> Point:
    half, height = build.length / 2, build.leg + build.depth * 0.9
    _tail(sketch, kind, (-half * 0.75, -6), running=False)
    sketch.add("coat", *limb(build.leg_width, (half * 0.5, -height * 0.6), (half * 0.66, -2)), light=0.82)
    body = [(-half * 0.9, 0), (-half * 0.95, -height * 0.45), (-half * 0.2, -height * 0.95), (half * 0.35, -height),
            (half * 0.7, -height * 0.6), (half * 0.5, 0)]  # fmt: skip
    sketch.add("coat", smooth(body))
    sketch.add(
        "coat", *limb(build.leg_width, (half * 0.4, -height * 0.6), (half * 0.5, -2)), oval(half * 0.62, -2, 4, 2.5)
    )
    sketch.add(
        "coat", oval(-half * 0.35, -build.leg * 0.42, half * 0.5, build.leg * 0.4), oval(half * 0.05, -2, 5, 2.5)
    )
    return (half * 0.6, -height - build.depth * 0.25)


def _tail(sketch: Sketch, kind: str, root: Point, running: bool) -> None:
    x, y = root
    if kind == "dog":
        tip = (x - 16, y - 6) if running else (x - 11, y - 15)
        sketch.add("coat", *limb(4.5, *curve((x + 3, y), (x - 9, y + 1), tip)))
    elif kind == "cat":
        tip = (x - 22, y - 8) if running else (x - 13, y - 20)
        sketch.add("coat", *limb(4, *curve((x + 3, y + 2), (x - 16, y + 4), tip)))
    elif kind == "rabbit":
        sketch.add("white", oval(x - 1, y + 5, 4))
    elif kind == "pig":
        sketch.add("coat", *limb(2, *curve((x, y), (x - 9, y - 8), (x - 4, y + 1)), (x - 8, y + 2)), light=0.9)
    elif kind == "horse":
        end = (x - 24, y + 6) if running else (x - 9, y + 30)
        hair = [(x + 3, y - 3), (x - 9, y - 4), (end[0] - 5, end[1] - 8), end, (end[0] + 5, end[1] - 5), (x, y + 7)]
        sketch.add("mane", smooth(hair))
    elif kind in ("cow", "elephant"):
        end = (x - 6, y + 24)
        sketch.add("coat", *limb(2.6, *curve((x + 2, y), (x - 7, y + 6), end)), light=0.85)
        sketch.add("ink", oval(end[0], end[1] + 1, 2.4, 4))


def _eye(sketch: Sketch, x: float, y: float, size: float = 1.6) -> None:
    sketch.add("white", oval(x, y, size * 1.35), outlined=False)
    sketch.add("ink", oval(x + 0.4, y, size), outlined=False)


def _dog_head(sketch: Sketch, x: float, y: float) -> None:
    sketch.add("coat", oval(x, y, 9, 8.5), tilted(x + 8, y + 3, 8, 5, 8), part="head")
    sketch.add("ink", oval(x + 15.5, y + 1.5, 2.4, 2), part="head")
    sketch.add("rose", smooth([(x + 8, y + 7), (x + 12, y + 7), (x + 11, y + 13), (x + 9, y + 13)]), part="head")
    _eye(sketch, x + 3, y - 2)
    ear = [(x - 6, y - 8), (x, y - 7), (x - 1, y + 5), (x - 5, y + 8), (x - 8, y + 3)]
    sketch.add("coat", smooth(ear), part="head", light=0.72)
    sketch.add("red", *limb(2.6, (x - 9, y + 5), (x + 1, y + 10)))


def _cat_head(sketch: Sketch, x: float, y: float) -> None:
    for side in (-1, 1):
        sketch.add("coat", [(x + side * 8, y - 3), (x + side * 7.5, y - 14), (x + side * 1, y - 7)], part="head")
        sketch.add(
            "rose", [(x + side * 6.6, y - 5), (x + side * 6.3, y - 10.5), (x + side * 3, y - 6.5)], outlined=False
        )
    sketch.add("coat", oval(x, y, 9.5, 8.5), part="head")
    for side in (-1, 1):
        sketch.add("yellow", oval(x + 1 + side * 3.7, y - 1, 2.1, 2.4), outlined=False)
        sketch.add("ink", oval(x + 1.2 + side * 3.7, y - 1, 0.8, 2.1), outlined=False)
        for lift in (-1, 1.2):
            whisker = [(x + 1 + side * 4, y + 3.5), (x + 1 + side * 13, y + 2.5 + lift)]
            sketch.add("ink", *limb(0.7, *whisker), part="head", outlined=False)
    sketch.add("rose", [(x - 0.8, y + 2), (x + 2.8, y + 2), (x + 1, y + 4)], outlined=False)


def _rabbit_head(sketch: Sketch, x: float, y: float) -> None:
    for shift, turn in ((-4, -14), (1, 2)):
        sketch.add("coat", tilted(x + shift, y - 14, 3, 10, turn), part="head")
        sketch.add("rose", tilted(x + shift, y - 14, 1.3, 7, turn), outlined=False)
    sketch.add("coat", oval(x, y, 8, 7), part="head")
    _eye(sketch, x + 2.5, y - 1.5, 1.5)
    sketch.add("rose", oval(x + 7.5, y + 0.5, 1.5), outlined=False)


def _pig_head(sketch: Sketch, x: float, y: float) -> None:
    sketch.add("coat", oval(x, y, 12, 11.5), part="head")
    for shift in (-7, 3):
        sketch.add(
            "coat", [(x + shift - 2, y - 8), (x + shift + 1, y - 17), (x + shift + 7, y - 8)], part="head", light=0.86
        )
    sketch.add("coat", oval(x + 11, y + 2, 4.5, 6), part="head", light=0.86)
    for lift in (-2, 3):
        sketch.add("ink", oval(x + 12, y + 1.5 + lift, 1.1, 1.3), outlined=False)
    _eye(sketch, x + 3, y - 3)


def _sheep_head(sketch: Sketch, x: float, y: float) -> None:
    sketch.add("ink", tilted(x - 5, y - 1, 7, 3, 200), part="head")
    sketch.add("ink", tilted(x + 2, y + 3, 7, 10, -18), part="head", light=1.12)
    sketch.add("coat", oval(x - 1, y - 6, 5), oval(x + 4, y - 6, 4), part="head")
    _eye(sketch, x + 4, y, 1.4)


def _horse_head(sketch: Sketch, x: float, y: float) -> None:
    for shift in (-5, 0):
        sketch.add(
            "coat", [(x + shift - 2, y - 5), (x + shift, y - 15), (x + shift + 4, y - 6)], part="head", light=0.9
        )
    muzzle = [
        (x - 9, y - 7),
        (x + 3, y - 9),
        (x + 14, y + 6),
        (x + 17, y + 13),
        (x + 10, y + 15),
        (x + 1, y + 9),
        (x - 8, y + 8),
    ]
    sketch.add("coat", smooth(muzzle), part="head")
    sketch.add("ink", oval(x + 14, y + 9.5, 1.2), outlined=False)
    _eye(sketch, x + 2, y - 2)
    sketch.add("mane", smooth([(x - 7, y - 10), (x + 2, y - 11), (x + 5, y - 3), (x - 2, y - 4)]), part="head")


def _cow_head(sketch: Sketch, x: float, y: float) -> None:
    for side in (-1, 1):
        horn = curve((x + 1 + side * 4, y - 9), (x + 1 + side * 9, y - 11), (x + 1 + side * 8, y - 18))
        sketch.add("tusk", *limb(3, *horn), part="head")
        sketch.add("patch", tilted(x + side * 12, y - 6, 6, 3.2, side * 20), part="head")
    sketch.add(
        "coat",
        smooth([(x - 8, y - 10), (x + 10, y - 10), (x + 10, y + 6), (x + 6, y + 14), (x - 3, y + 14), (x - 8, y + 4)]),
        part="head",
    )
    sketch.add("rose", oval(x + 2, y + 11, 9, 6), part="head")
    for shift in (-1.5, 5.5):
        sketch.add("ink", oval(x + shift, y + 10, 1.2, 1.5), outlined=False)
    for shift in (-3, 6):
        _eye(sketch, x + shift, y - 2)


def _elephant_head(sketch: Sketch, x: float, y: float) -> None:
    trunk = curve((x + 13, y + 6), (x + 26, y + 34), (x + 15, y + 50), 8)
    sketch.add("coat", *limb(9, *trunk[3:]), *limb(12, *trunk[:5]), part="head")
    sketch.add("coat", oval(x + 3, y, 19, 20), part="head")
    sketch.add("tusk", *limb(4, *curve((x + 14, y + 12), (x + 20, y + 22), (x + 30, y + 20))), part="head")
    _eye(sketch, x + 12, y - 5, 1.9)
    ear = [(x - 4, y - 18), (x - 20, y - 20), (x - 28, y - 2), (x - 22, y + 18), (x - 8, y + 17), (x - 1, y + 2)]
    sketch.add("coat", smooth(ear), part="head", light=0.88)


HEADS: dict[str, Callable[[Sketch, float, float], None]] = {
    "dog": _dog_head,
    "cat": _cat_head,
    "rabbit": _rabbit_head,
    "pig": _pig_head,
    "sheep": _sheep_head,
    "horse": _horse_head,
    "cow": _cow_head,
    "elephant": _elephant_head,
}


def _bird() -> Sketch:
    sketch = Sketch()
    sketch.add("coat", smooth([(2, -8), (-6, -30), (-16, -28), (-8, -4)]), light=0.8)
    sketch.add("coat", [(-14, -3), (-28, -8), (-28, 2)], light=0.86)
    sketch.add("coat", tilted(0, 0, 17, 8, -6), oval(15, -5, 7.5))
    sketch.add("beak", [(21, -7), (30, -4), (21, -2)])
    _eye(sketch, 16.5, -7, 1.5)
    sketch.add("coat", smooth([(5, -3), (2, -26), (-10, -34), (-14, -24), (-9, -1)]), light=0.92)
    return sketch


def _duck(pose: str) -> Sketch:
    sketch = Sketch()
    step = 5 if pose == "run" else 1
    for x, forward in ((-4, -step), (4, step)):
        sketch.add("beak", *limb(2.4, (x, -9), (x + forward, -1.5), (x + forward + 5, -1.5)))
    body = [(-24, -25), (-14, -20), (6, -22), (16, -24), (18, -14), (10, -6), (-10, -6), (-20, -14)]
    sketch.add("coat", smooth(body), *limb(9, (12, -18), (13, -36)), oval(14, -38, 9))
    sketch.add("beak", smooth([(20, -41), (31, -37), (30, -34), (20, -34)]))
    _eye(sketch, 16, -40)
    sketch.add("coat", tilted(-4, -16, 11, 5.5, -10), light=0.88)
    return sketch
