"""Drawn things: instruments, toys, plants, furniture, buildings. The role to colour is `paint`."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from deixis.corpus.scenes.sketch import Sketch, curve, limb, oval, rectangle, smooth, tilted
from deixis.corpus.scenes.vehicles import VEHICLES


def _guitar(sketch: Sketch) -> None:
    """Held across the body; the neck points up and forwards."""
    sketch.add("dark wood", *limb(4, (0, 0), (31, -14)))
    sketch.add("ink", *limb(5.5, (30, -13.5), (36, -16.5)))
    sketch.add("paint", tilted(-6, 3, 13, 11, -24), tilted(5, -2, 9.5, 9, -24))
    sketch.add("ink", oval(3, -1, 3.6), outlined=False)
    sketch.add("cream", *limb(0.8, (-11, 5), (31, -14)), outlined=False)
    sketch.add("ink", *limb(2, (-12, 1), (-8, 9)), outlined=False)


def _drum(sketch: Sketch) -> None:
    for x in (-13, 13):
        sketch.add("metal", *limb(2.2, (x * 0.4, -20), (x, -1)))
    sketch.add("paint", oval(0, -17, 18, 5), rectangle(-18, -43, 18, -17))
    for x in range(-14, 15, 7):
        sketch.add("cream", *limb(1, (x - 3, -41), (x, -15), (x + 3, -41)), outlined=False)
    sketch.add("gold", rectangle(-18, -22, 18, -19), rectangle(-18, -42, 18, -39), outlined=False)
    sketch.add("cream", oval(0, -43, 18, 5))


def _trumpet(sketch: Sketch) -> None:
    """Blown at the origin, pointing forwards and a little up."""
    sketch.add("gold", *limb(3, (0, 0), (24, -4)))
    sketch.add("gold", smooth(tilted(13, 2, 8, 4.5, -8), 0), light=0.9)
    sketch.add("cream", tilted(13, 2, 5, 2, -8), outlined=False)
    for x in (9, 13, 17):
        sketch.add("gold", *limb(2, (x, -2), (x, -8)))
    sketch.add("gold", [(22, -6), (30, -9), (36, -14), (39, 4), (31, -1), (22, -2)])


def _ball(sketch: Sketch) -> None:
    sketch.add("paint", oval(0, -12, 12))
    sketch.add("paint", tilted(0, -12, 11.6, 3.8, -20), light=1.75, outlined=False)
    sketch.add("white", oval(-4.2, -17.5, 3, 2), outlined=False)


def _balloon(sketch: Sketch) -> None:
    """The origin is the end of its string."""
    sketch.add("ink", *limb(0.9, *curve((0, 0), (5, -20), (0, -42))), outlined=False)
    sketch.add("paint", [(-3, -40), (3, -40), (0, -45)])
    sketch.add("paint", smooth([(0, -43), (13, -54), (13, -70), (0, -79), (-13, -70), (-13, -54)]))
    sketch.add("white", tilted(-5, -67, 2.2, 4.5, 20), outlined=False)


def _kite(sketch: Sketch) -> None:
    sketch.add("rope", *limb(1, *curve((0, 24), (-14, 36), (-4, 50))), outlined=False)
    for x, y in ((-6, 33), (-7, 43)):
        sketch.add("paint", [(x - 5, y - 3), (x + 5, y + 3), (x + 5, y - 3), (x - 5, y + 3)], light=0.85)
    sketch.add("paint", [(0, -26), (19, -4), (0, 24), (-19, -4)])
    sketch.add("paint", [(0, -26), (19, -4), (0, -4)], [(0, 24), (-19, -4), (0, -4)], light=1.45, outlined=False)


def _umbrella(sketch: Sketch) -> None:
    """The origin is its handle."""
    sketch.add("rope", *limb(2, (0, 6), (0, -58)))
    sketch.add("paint", [(-36, -32), (-31, -48), (-14, -60), (0, -63), (14, -60), (31, -48), (36, -32), (24, -37),
                         (12, -32), (0, -37), (-12, -32), (-24, -37)])  # fmt: skip
    sketch.add("paint", [(-12, -32), (-8, -52), (0, -63), (8, -52), (12, -32), (0, -37)], light=1.3, outlined=False)


def _bench(sketch: Sketch) -> None:
    for x in (-32, 32):
        sketch.add("tyre", *limb(3.4, (x, -44), (x, -2)))
        sketch.add("tyre", *limb(3.4, (x, -22), (x + 3, -2)))
    for y in (-44, -35):
        sketch.add("paint", rectangle(-38, y, 38, y + 6))
    sketch.add("paint", rectangle(-38, -25, 38, -19), light=0.9)


def _sofa(sketch: Sketch) -> None:
    for x in (-38, 38):
        sketch.add("dark wood", rectangle(x - 3, -6, x + 3, 0))
    sketch.add("paint", smooth([(-42, -20), (-44, -58), (44, -58), (42, -20)], 1), light=0.9)
    sketch.add("paint", smooth(rectangle(-42, -30, 42, -5), 1))
    sketch.add("paint", smooth(rectangle(-52, -42, -36, -4)), light=0.94)
    sketch.add("paint", smooth(rectangle(36, -42, 52, -4)), light=0.94)
    sketch.add("paint", rectangle(-0.6, -30, 0.6, -7), light=0.7, outlined=False)


def _table(sketch: Sketch) -> None:
    for x in (-30, 30):
        sketch.add("paint", *limb(4, (x, -36), (x, -2)), light=0.85)
    sketch.add("paint", smooth(rectangle(-40, -42, 40, -35), 1))


def _tree(sketch: Sketch) -> None:
    sketch.add("trunk", [(-7, 0), (-5, -26), (-5, -60), (5, -60), (5, -26), (8, 0)])
    sketch.add("trunk", *limb(4, (1, -44), (16, -62)))
    crown = [
        oval(x, y, radius)
        for x, y, radius in ((-22, -72, 20), (22, -72, 20), (0, -98, 24), (-14, -92, 20), (16, -90, 20), (0, -72, 22))
    ]
    sketch.add("leaf", *crown)
    sketch.add("leaf", oval(-12, -98, 9), oval(12, -82, 8), oval(-24, -76, 6), light=1.22, outlined=False)


def _palm(sketch: Sketch) -> None:
    sketch.add("trunk", *limb(7.5, *curve((0, -3), (4, -50), (-4, -92))))
    for x, y, tip in ((-40, -84, -72), (38, -88, -76), (-32, -112, -104), (30, -114, -106), (-4, -126, -112)):
        leaf = [*curve((-4, -94), (x * 0.5, y - 14), (x, tip)), *curve((x, tip), (x * 0.4, y + 6), (-4, -92))]
        sketch.add("leaf", leaf)
    sketch.add("trunk", oval(-7, -88, 3.6), oval(1, -87, 3.6), light=0.8)


def _pine(sketch: Sketch) -> None:
    sketch.add("trunk", rectangle(-5, -20, 5, 0))
    for width, low, high in ((34, -14, -60), (27, -42, -86), (19, -70, -112)):
        sketch.add("pine", [(-width, low), (0, high), (width, low), (width * 0.4, low + 4), (-width * 0.4, low + 4)])
        side, edge = width * 0.36, high * 0.62 + low * 0.38
        sketch.add("snow", [(-side, edge), (0, high), (side, edge), (0, high * 0.72 + low * 0.28)], outlined=False)


def _house(sketch: Sketch) -> None:
    sketch.add("dark roof", rectangle(22, -104, 33, -74))
    sketch.add("paint", rectangle(-46, -62, 46, 0))
    sketch.add("paint", rectangle(-46, -5, 46, 0), light=0.75, outlined=False)
    sketch.add("roof", [(-56, -60), (-36, -98), (36, -98), (56, -60)])
    for y in (-70, -79, -88):
        sketch.add("roof", rectangle(-49 - (y + 70) * 0.5, y, 49 + (y + 70) * 0.5, y + 1.2), light=0.85, outlined=False)
    sketch.add("dark wood", rectangle(-9, -36, 10, 0))
    sketch.add("gold", oval(6, -18, 1.6), outlined=False)
    for x in (-29, 30):
        sketch.add("white", rectangle(x - 11, -47, x + 11, -24))
        sketch.add("glass", rectangle(x - 9, -45, x - 1, -26), rectangle(x + 1, -45, x + 9, -26), outlined=False)


def _barn(sketch: Sketch) -> None:
    sketch.add("paint", [(-46, 0), (-46, -56), (-30, -84), (0, -98), (30, -84), (46, -56), (46, 0)])
    roof = [
        (-52, -52),
        (-34, -88),
        (0, -104),
        (34, -88),
        (52, -52),
        (46, -52),
        (30, -82),
        (0, -97),
        (-30, -82),
        (-46, -52),
    ]
    sketch.add("dark roof", roof)
    sketch.add("white", rectangle(-20, -42, 20, 0))
    sketch.add("paint", rectangle(-17.5, -39.5, -1, 0), rectangle(1, -39.5, 17.5, 0), light=0.85, outlined=False)
    for side in (-1, 1):
        sketch.add(
            "white",
            *limb(2, (side * 2, -38), (side * 16.5, -2)),
            *limb(2, (side * 16.5, -38), (side * 2, -2)),
            outlined=False,
        )
    sketch.add("white", rectangle(-9, -78, 9, -58))
    sketch.add("ink", rectangle(-7, -76, 7, -60), light=1.2, outlined=False)


def _flowers(sketch: Sketch) -> None:
    for x, height in ((-9, 22), (0, 29), (9, 23)):
        sketch.add("stem", *limb(1.6, (x * 0.5, -1), (x, -height)))
        sketch.add("stem", tilted(x * 0.8 + 3, -height * 0.45, 4.5, 1.8, -30), outlined=False)
        petals = [oval(x + dx, -height + dy, 3.5) for dx, dy in ((-4, 0), (4, 0), (0, -4), (0, 4))]
        sketch.add("paint", *petals)
        sketch.add("gold", oval(x, -height, 2.4), outlined=False)


def _snowman(sketch: Sketch) -> None:
    for start, end in (((-14, -38), (-32, -50)), ((14, -38), (32, -52))):
        sketch.add("trunk", *limb(2.2, start, end))
    sketch.add("snow", oval(0, -18, 22, 19), oval(0, -44, 17, 15), oval(0, -65, 13, 12.5))
    sketch.add("paint", *limb(5, (-12, -56), (0, -53), (12, -56)), *limb(5, (7, -54), (10, -42)))
    sketch.add("ink", rectangle(-9, -91, 9, -76), rectangle(-15, -78, 15, -74), light=1.15)
    for x, y in ((-4, -68), (5, -68), (0, -46), (0, -38)):
        sketch.add("ink", oval(x, y, 1.7), outlined=False)
    sketch.add("orange", [(1, -65.5), (15, -62), (1, -61)])


def _sandcastle(sketch: Sketch) -> None:
    for x, top in ((-24, -30), (24, -30), (0, -40)):
        teeth = [
            (x + dx, top - 5 if index % 4 in (1, 2) else top)
            for index, dx in enumerate((-10, -10, -4, -4, 3, 3, 10, 10))
        ]
        sketch.add("sand", [(x - 11, 0), (x - 10, top), *teeth, (x + 10, top), (x + 11, 0)], light=0.9)
    sketch.add("sand", rectangle(-34, -16, 34, 0))
    sketch.add("dark wood", smooth([(-5, 0), (-5, -11), (0, -14), (5, -11), (5, 0)], 1), outlined=False)
    sketch.add("wood", *limb(1.4, (0, -44), (0, -58)))
    sketch.add("paint", [(0.7, -58), (14, -54), (0.7, -49)])


def _leash(sketch: Sketch, run: float, drop: float) -> None:
    """From the origin (a hand) to a collar `run` units ahead and `drop` below."""
    sketch.add("red", *limb(1.6, *curve((0, 0), (run * 0.5, drop + 6), (run, drop), 8)), outlined=False)


def _string(sketch: Sketch, run: float, drop: float) -> None:
    sketch.add("ink", *limb(0.9, *curve((0, 0), (run * 0.6, drop * 0.25), (run, drop), 8)), outlined=False)


THINGS: dict[str, Callable[[Sketch], None]] = {
    **VEHICLES,
    "guitar": _guitar,
    "drum": _drum,
    "trumpet": _trumpet,
    "ball": _ball,
    "balloon": _balloon,
    "kite": _kite,
    "umbrella": _umbrella,
    "bench": _bench,
    "sofa": _sofa,
    "table": _table,
    "tree": _tree,
    "palm": _palm,
    "pine": _pine,
    "house": _house,
    "barn": _barn,
    "flowers": _flowers,
    "snowman": _snowman,
    "sandcastle": _sandcastle,
}


@lru_cache(maxsize=256)
def thing(kind: str) -> Sketch:
    sketch = Sketch()
    THINGS[kind](sketch)
    return sketch


@lru_cache(maxsize=4096)
def rope(kind: str, run: float, drop: float) -> Sketch:
    """A leash or a kite's string between two points."""
    sketch = Sketch()
    (_leash if kind == "leash" else _string)(sketch, run, drop)
    return sketch
