"""What a figure is drawn from: polygons and ovals in the figure's own units, each belonging to named parts.

A sketch faces right, stands on y = 0 (y grows downwards) and knows no pixels. Boxes come from the same points that
are painted, so they are exact; both round a point in the same way (`painting.place`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

Point = tuple[float, float]
#: x1, y1, x2, y2 in a sketch's own units.
Extent = tuple[float, float, float, float]


def tidy(x: float) -> float:
    """Two decimals of a coordinate: the last digits of a sine may differ between machines, boxes and pixels may not."""
    return round(x, 2)


class Mark(NamedTuple):
    """Shapes of one colour painted as one silhouette with one outline around it."""

    #: Each is a polygon, or an oval given by two opposite corners.
    shapes: tuple[Sequence[Point], ...]
    #: A role that the figure's look fills in ("shirt"), or the name of a fixed colour.
    colour: str
    #: Factor on the colour, see `colours.shade`.
    light: float
    outlined: bool
    #: Painted after whatever the figure holds.
    front: bool


class Sketch:
    """A list of marks under construction, with the extent of every part and of the whole (the part "")."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self.extents: dict[str, Extent] = {}
        #: Points where other figures attach: a hand, a saddle.
        self.anchors: dict[str, Point] = {}

    def add(
        self,
        colour: str,
        *shapes: Sequence[Point],
        part: str = "",
        light: float = 1.0,
        outlined: bool = True,
        front: bool = False,
    ) -> None:
        """Paint shapes as one silhouette; `part` may name several parts separated by blanks."""
        self.marks.append(Mark(shapes, colour, light, outlined, front))
        for name in ("", *part.split()):
            self.cover(name, *shapes)

    def cover(self, part: str, *shapes: Sequence[Point]) -> None:
        """Count shapes to a part's extent, painted or not."""
        xs = [x for shape in shapes for x, _ in shape]
        ys = [y for shape in shapes for _, y in shape]
        x1, y1, x2, y2 = self.extents.get(part, (math.inf, math.inf, -math.inf, -math.inf))
        self.extents[part] = (
            min(x1, tidy(min(xs))),
            min(y1, tidy(min(ys))),
            max(x2, tidy(max(xs))),
            max(y2, tidy(max(ys))),
        )


def oval(x: float, y: float, across: float, down: float | None = None) -> list[Point]:
    """An upright ellipse by its centre and half axes."""
    down = across if down is None else down
    return [(x - across, y - down), (x + across, y + down)]


def tilted(x: float, y: float, across: float, down: float, degrees: float) -> list[Point]:
    """An ellipse turned clockwise about its centre, as a polygon."""
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    points = []
    for step in range(20):
        u, v = across * math.cos(step * math.pi / 10), down * math.sin(step * math.pi / 10)
        points.append((x + u * cosine - v * sine, y + u * sine + v * cosine))
    return points


def rectangle(x1: float, y1: float, x2: float, y2: float) -> list[Point]:
    return [(x1, y1), (x2, y1), (x2, y2), (x1, y2)]


def smooth(points: Iterable[Point], rounds: int = 2) -> list[Point]:
    """A closed polygon with its corners cut (Chaikin), which makes a soft outline."""
    outline = list(points)
    for _ in range(rounds):
        finer = []
        for (x1, y1), (x2, y2) in zip(outline, outline[1:] + outline[:1], strict=True):
            finer += [(0.75 * x1 + 0.25 * x2, 0.75 * y1 + 0.25 * y2), (0.25 * x1 + 0.75 * x2, 0.25 * y1 + 0.75 * y2)]
        outline = finer
    return outline


def limb(width: float, *joints: Point) -> list[list[Point]]:
    """A thick bent line with round ends and joints: shapes to paint as one silhouette."""
    half = width / 2
    shapes = [oval(x, y, half) for x, y in joints]
    for (x1, y1), (x2, y2) in pairwise(joints):
        length = math.hypot(x2 - x1, y2 - y1) or 1.0
        across, down = (y1 - y2) / length * half, (x2 - x1) / length * half
        shapes.append(
            [(x1 + across, y1 + down), (x2 + across, y2 + down), (x2 - across, y2 - down), (x1 - across, y1 - down)]
        )
    return shapes


def curve(start: Point, control: Point, end: Point, steps: int = 6) -> list[Point]:
    """Points of a quadratic Bézier curve, ends included: for tails, trunks and strings."""
    points = []
    for step in range(steps + 1):
        t = step / steps
        a, b, c = (1 - t) ** 2, 2 * t * (1 - t), t * t
        points.append((a * start[0] + b * control[0] + c * end[0], a * start[1] + b * control[1] + c * end[1]))
    return points
