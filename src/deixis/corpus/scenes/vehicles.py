"""Drawn vehicles, seen from the side and facing right. The role to colour is `paint`."""

from __future__ import annotations

from collections.abc import Callable

from deixis.corpus.scenes.sketch import Sketch, limb, oval, rectangle, smooth, tilted


def _wheel(sketch: Sketch, x: float, radius: float) -> None:
    sketch.add("tyre", oval(x, -radius, radius))
    sketch.add("metal", oval(x, -radius, radius * 0.52))
    sketch.add("gray", oval(x, -radius, radius * 0.18), outlined=False)


def _car(sketch: Sketch) -> None:
    roof = [(-34, -25), (-24, -43), (14, -43), (30, -25)]
    body = [(-51, -9), (-51, -22), (-44, -26), (30, -26), (47, -21), (52, -16), (52, -9)]
    sketch.add("paint", [*roof], smooth(body, 1))
    sketch.add("glass", [(-28, -26), (-21, -39), (-6, -39), (-6, -26)], light=0.95)
    sketch.add("glass", [(-2, -26), (-2, -39), (12, -39), (24, -26)])
    sketch.add("paint", rectangle(-51, -13, 52, -9), light=0.75, outlined=False)
    sketch.add("ink", rectangle(-4, -22, 3, -20), outlined=False)
    sketch.add("light", oval(48, -19, 3, 3.5))
    sketch.add("red", oval(-49, -20, 2.5, 3.5))
    for x in (-30, 31):
        _wheel(sketch, x, 10.5)


def _bus(sketch: Sketch) -> None:
    body = [(-74, -9), (-74, -70), (-69, -75), (69, -75), (75, -66), (76, -9)]
    sketch.add("paint", body)
    sketch.add("paint", rectangle(-74, -34, 75, -28), light=1.5, outlined=False)
    for x in range(-68, 30, 20):
        sketch.add("glass", rectangle(x, -65, x + 16, -42))
    sketch.add("glass", rectangle(34, -65, 48, -14), light=0.9)
    sketch.add("ink", rectangle(40.4, -65, 41.6, -14), outlined=False)
    sketch.add("glass", [(54, -65), (71, -65), (73, -40), (54, -40)])
    sketch.add("light", oval(73, -20, 3, 4))
    for x in (-46, 18):
        _wheel(sketch, x, 12)


def _truck(sketch: Sketch) -> None:
    sketch.add("tyre", rectangle(-70, -18, 64, -11))
    sketch.add("cream", rectangle(-72, -68, 24, -18))
    for x in (-48, -24, 0):
        sketch.add("cream", rectangle(x - 0.6, -66, x + 0.6, -20), light=0.85, outlined=False)
    sketch.add("paint", smooth([(28, -10), (28, -56), (52, -56), (64, -36), (68, -32), (68, -10)], 1))
    sketch.add("glass", [(36, -33), (36, -50), (49, -50), (58, -33)])
    sketch.add("ink", rectangle(36, -28, 42, -26), outlined=False)
    sketch.add("light", oval(65, -18, 2.8, 3.4))
    for x in (-50, -26, 48):
        _wheel(sketch, x, 11)


def _tractor(sketch: Sketch) -> None:
    sketch.add("dark wood", rectangle(30, -58, 34, -38))
    sketch.add("paint", smooth([(-6, -16), (-6, -42), (40, -40), (46, -34), (46, -16)], 1))
    sketch.add("glass", [(-34, -34), (-30, -66), (-2, -66), (2, -34)])
    sketch.add("paint", [(-36, -64), (-34, -71), (0, -71), (3, -64)])
    sketch.add("paint", smooth([(-48, -26), (-44, -44), (-20, -48), (2, -38), (2, -24)]))
    for y in (-35, -30, -25):
        sketch.add("ink", rectangle(18, y, 36, y + 1.6), outlined=False)
    _wheel(sketch, -24, 21)
    _wheel(sketch, 32, 12)


def _bicycle(sketch: Sketch) -> None:
    for x in (-27, 27):
        ring = tilted(x, -17, 15.6, 15.6, 0)
        sketch.add("tyre", *limb(2.8, *ring, ring[0]), outlined=False)
        for spoke in ((-1, 0), (0, -1), (0.7, 0.7), (0.7, -0.7)):
            ends = [(x + 15 * s * spoke[0], -17 + 15 * s * spoke[1]) for s in (-1, 1)]
            sketch.add("metal", *limb(0.9, *ends), outlined=False)
    crank, seat, bars, rear, fork = (0.0, -17.0), (-9.0, -40.0), (19.0, -43.0), (-27.0, -17.0), (27.0, -17.0)
    for start, end in ((rear, crank), (rear, seat), (crank, seat), (crank, bars), (seat, bars), (bars, fork)):
        sketch.add("paint", *limb(3.4, start, end), outlined=False)
    sketch.add("ink", *limb(3, (19, -43), (18, -49), (25, -50)), outlined=False)
    sketch.add("ink", oval(-10, -42, 7, 2.6))
    sketch.add("gray", oval(0, -17, 4.5))
    sketch.add("ink", *limb(2.4, (0, -17), (4, -8)), outlined=False)


def _boat(sketch: Sketch) -> None:
    sketch.add("wood", rectangle(-2, -92, 1.5, -16))
    sketch.add("cream", [(5, -86), (5, -24), (40, -24)])
    sketch.add("cream", [(-5, -80), (-5, -24), (-32, -24)], light=0.92)
    sketch.add("paint", [(1, -92), (1, -99), (15, -95)])
    sketch.add("paint", smooth([(-44, -18), (46, -18), (34, 0), (-32, 0)], 1))
    sketch.add("white", rectangle(-42, -17, 43, -13), outlined=False)


VEHICLES: dict[str, Callable[[Sketch], None]] = {
    "car": _car,
    "bus": _bus,
    "truck": _truck,
    "tractor": _tractor,
    "bicycle": _bicycle,
    "boat": _boat,
}
