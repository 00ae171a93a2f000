"""Drawn people: one skeleton, a table of poses, and what hangs on it (clothes, hair, hats)."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from deixis.corpus.scenes.sketch import Point, Sketch, curve, limb, oval, rectangle, smooth


class Pose(NamedTuple):
    """Joints of a person 100 units tall who faces right: (knee, foot) of each leg, (elbow, hand) of each arm."""

    far_leg: tuple[Point, Point] = ((-6, -21), (-7, -3))
    near_leg: tuple[Point, Point] = ((6, -21), (7, -3))
    far_arm: tuple[Point, Point] = ((-16, -57), (-17, -42))
    near_arm: tuple[Point, Point] = ((16, -57), (17, -42))
    #: How far the shoulders lean forward.
    lean: float = 0
    #: How far hips, body and head are above their place when standing.
    lift: float = 0


STRIDE: tuple[tuple[Point, Point], tuple[Point, Point]] = (((-5, -21), (-14, -3)), ((9, -22), (13, -3)))

POSES = {
    "stand": Pose(),
    "walk": Pose(*STRIDE, far_arm=((11, -58), (17, -46)), near_arm=((-11, -57), (-14, -43)), lean=1),
    "run": Pose(
        far_leg=((-9, -24), (-25, -14)),
        near_leg=((15, -31), (11, -10)),
        far_arm=((20, -58), (28, -68)),
        near_arm=((-8, -58), (-16, -47)),
        lean=8,
    ),
    "jump": Pose(
        far_leg=((-12, -50), (-19, -33)),
        near_leg=((12, -52), (5, -33)),
        far_arm=((-18, -100), (-24, -118)),
        near_arm=((18, -100), (25, -118)),
        lift=20,
    ),
    "cheer": Pose(far_arm=((-18, -82), (-18, -103)), near_arm=((18, -82), (19, -103))),
    "hold": Pose(near_arm=((14, -57), (25, -58))),
    "raise": Pose(near_arm=((16, -60), (17, -76))),
    "lead": Pose(*STRIDE, near_arm=((13, -58), (22, -50)), far_arm=((-12, -57), (-15, -44))),
    "throw": Pose(*STRIDE, far_arm=((-15, -60), (-22, -52)), near_arm=((19, -76), (31, -88)), lean=4),
    "catch": Pose(*STRIDE, far_arm=((15, -66), (28, -76)), near_arm=((14, -60), (28, -66))),
    "kick": Pose(
        far_leg=((-4, -21), (-6, -3)),
        near_leg=((11, -30), (25, -17)),
        far_arm=((13, -62), (22, -56)),
        near_arm=((-16, -64), (-26, -60)),
        lean=-5,
    ),
    "point": Pose(near_arm=((18, -69), (35, -71))),
    "sit": Pose(
        far_leg=((15, -27), (15, -3)),
        near_leg=((19, -26), (20, -3)),
        far_arm=((11, -47), (17, -33)),
        near_arm=((3, -45), (14, -31)),
        lift=-15,
    ),
    "ride": Pose(
        far_leg=((10, -26), (7, -7)),
        near_leg=((11, -24), (7, -5)),
        far_arm=((13, -50), (24, -42)),
        near_arm=((10, -48), (23, -40)),
        lean=3,
        lift=-12,
    ),
    "cycle": Pose(
        far_leg=((16, -26), (3, -8)),
        near_leg=((13, -32), (13, -12)),
        far_arm=((22, -56), (33, -45)),
        near_arm=((20, -54), (33, -43)),
        lean=12,
        lift=-3,
    ),
    "guitar": Pose(far_arm=((17, -56), (27, -61)), near_arm=((-15, -56), (1, -50))),
    "drum": Pose(far_arm=((15, -57), (28, -58)), near_arm=((8, -52), (21, -52))),
    "trumpet": Pose(far_arm=((16, -65), (26, -80)), near_arm=((13, -62), (21, -79))),
}

#: Whether a child → the head's radius and the height of its centre.
HEADS = {False: (11.5, -86.0), True: (17.5, -88.5)}


@lru_cache(maxsize=4096)
def person(pose: str, child: bool, female: bool, lower: str, hat: str, beard: bool) -> Sketch:
    """A person; roles to colour: skin, hair, shirt, lower, hat."""
    sketch, joints = Sketch(), POSES[pose]
    if child:
        joints = joints._replace(far_arm=_clear(joints.far_arm), near_arm=_clear(joints.near_arm))
    radius, head_y = HEADS[child]
    head = (joints.lean * 1.4, head_y - joints.lift)
    shoulder, hip = -69.0 - joints.lift, -43.0 - joints.lift
    lean = joints.lean

    _arm(sketch, _shoulder(-9, lean, shoulder, joints.far_arm), joints.far_arm, far=True)
    if female:
        length = radius + (8 if child else 14)
        back = [
            (head[0] - radius - 3, head[1] - 4),
            (head[0] - 2, head[1] - radius - 2),
            (head[0] + radius + 1, head[1] - 3),
            (head[0] + radius, head[1] + length - 2),
            (head[0] - 2, head[1] + length - 6),
            (head[0] - radius - 5, head[1] + length),
        ]
        sketch.add("hair", smooth(back), part="hair", light=0.9)
    for (knee, foot), side, light in ((joints.far_leg, -5, 0.86), (joints.near_leg, 5, 1.0)):
        _leg(sketch, (side, hip), knee, foot, lower, light)
    _body(sketch, lean, shoulder, hip, lower, female)
    # The shirt hangs over the waist: trousers and skirts are seen from its hem, from a raised knee, or past a slant.
    x1, y1, x2, y2 = sketch.extents["lower"]
    hem = min(hip - min(6, 2 + abs(lean)), joints.far_leg[0][1] - 6, joints.near_leg[0][1] - 6)
    sketch.extents["lower"] = (x1, max(y1, hem), x2, y2)
    sketch.add("skin", rectangle(head[0] * 0.8 - 4, head[1] + radius - 4, head[0] * 0.8 + 4, shoulder + 1), light=0.9)
    _head(sketch, head, radius, female, beard)
    if hat:
        _hat(sketch, head, radius, hat)
        x1, y1, x2, y2 = sketch.extents["hair"]
        sketch.extents["hair"] = (x1, head[1] - radius * 0.42, x2, y2)
    _arm(sketch, _shoulder(9, lean, shoulder, joints.near_arm), joints.near_arm, far=False)
    if pose == "drum":
        for hand in (joints.far_arm[1], joints.near_arm[1]):
            sketch.add("wood", *limb(1.8, hand, (hand[0] + 13, hand[1] + 5)), front=True)
    mouth = (head[0] + radius * 0.9, head[1] + radius * 0.45)
    sketch.anchors = {"hand": joints.near_arm[1], "mouth": mouth}
    return sketch


def _clear(arm: tuple[Point, Point]) -> tuple[Point, Point]:
    """A raised arm, moved out of the way of a child's larger head."""
    (elbow_x, elbow_y), (x, y) = arm
    return ((elbow_x * 1.3, elbow_y), (x * 1.4, y - 6)) if y < -95 else arm


def _shoulder(side: float, lean: float, height: float, arm: tuple[Point, Point]) -> Point:
    """Where an arm begins: on its own side, or near the middle where it swings to the other."""
    elbow, _ = arm
    return (side if elbow[0] * side > 0 else -side * 0.5) + lean, height


def _arm(sketch: Sketch, shoulder: Point, arm: tuple[Point, Point], far: bool) -> None:
    elbow, hand = arm
    middle = ((shoulder[0] + elbow[0] * 2) / 3, (shoulder[1] + elbow[1] * 2) / 3)
    light = 0.88 if far else 1.0
    sketch.add("skin", *limb(5.5, middle, elbow, hand), oval(*hand, 3.6), part="arms", light=light, front=not far)
    if not far:
        sketch.cover("hand", oval(*hand, 3.6))
    sketch.add("shirt", *limb(8.5, shoulder, middle), part="shirt arms", light=light * 0.96, front=not far)


def _leg(sketch: Sketch, hip: Point, knee: Point, foot: Point, lower: str, light: float) -> None:
    shoe = smooth([(foot[0] - 5, foot[1] + 3), (foot[0] - 4, foot[1] - 3), (foot[0] + 3, foot[1] - 3),
                   (foot[0] + 10, foot[1] + 1), (foot[0] + 9, foot[1] + 3)])  # fmt: skip
    if lower == "trousers":
        sketch.add("shoe", shoe, light=light)
        sketch.add("lower", *limb(9, hip, knee, foot), part="lower", light=light)
        return
    sketch.add("skin", *limb(6.5, hip, knee, foot), light=light)
    sketch.add("shoe", shoe, light=light)
    if lower == "shorts":
        end = ((hip[0] + 4 * knee[0]) / 5, (hip[1] + 4 * knee[1]) / 5)
        sketch.add("lower", *limb(10.5, hip, end), part="lower", light=light)


def _body(sketch: Sketch, lean: float, shoulder: float, hip: float, lower: str, female: bool) -> None:
    waist = 8.5 if female else 10
    if lower == "skirt":
        sketch.add("lower", [(-waist, hip - 6), (waist, hip - 6), (16, hip + 16), (-16, hip + 16)], part="lower")
    elif lower == "trousers":
        sketch.add("lower", rectangle(-waist + 1, hip - 6, waist - 1, hip + 5), part="lower", outlined=False)
    torso = [
        (-8 + lean, shoulder - 5),
        (8 + lean, shoulder - 5),
        (12.5 + lean, shoulder - 1),
        (waist + 1.5, hip + 1),
        (-waist - 1.5, hip + 1),
        (-12.5 + lean, shoulder - 1),
    ]
    sketch.add("shirt", torso, part="shirt")


def _head(sketch: Sketch, head: Point, radius: float, female: bool, beard: bool) -> None:
    x, y = head
    sketch.add("skin", oval(x, y, radius), oval(x + radius * 0.95, y + 2, 2.2), part="head")
    if beard:
        jaw = [(x - 4, y + 3), (x + radius - 1, y + 4), (x + radius - 2, y + radius - 1), (x + 3, y + radius + 4),
               (x - 5, y + radius - 2)]  # fmt: skip
        sketch.add("hair", smooth(jaw), part="beard head")
    for eye in (x + 1.5, x + radius * 0.66):
        sketch.add("ink", oval(eye, y - 0.5, 1.25, 1.8), outlined=False)
    sketch.add("rose", oval(x - 0.5, y + 4.5, 2.4, 1.6), outlined=False)
    smile = curve((x + 2.5, y + 5), (x + 5, y + 8), (x + radius * 0.7, y + 5))
    sketch.add("red" if female else "ink", *limb(1.3, *smile), outlined=False)
    fringe = [
        (x - radius - 1.5, y + (6 if female else 3)),
        (x - radius - 2, y - 5),
        (x - radius * 0.5, y - radius - 2),
        (x + radius * 0.55, y - radius - 2),
        (x + radius + 1, y - 4.5),
        (x + radius * 0.35, y - 5.5),
        (x - radius * 0.4, y - 4),
        (x - radius * 0.55, y + 3),
    ]
    sketch.add("hair", smooth(fringe), part="hair head")


def _hat(sketch: Sketch, head: Point, radius: float, hat: str) -> None:
    x, y = head[0], head[1] - radius * 0.42
    r = radius + 1
    crown = [(x + r * a, y - r * b) for a, b in ((-1, 0), (-0.95, 0.5), (-0.5, 0.95), (0.5, 0.95), (0.95, 0.5), (1, 0))]
    if hat == "cap":
        visor = smooth([(x + r * 0.4, y - 3.5), (x + r + 9, y - 1), (x + r + 9, y + 2), (x + r * 0.3, y + 1.5)])
        sketch.add("hat", visor, part="hat", light=0.82)
        sketch.add("hat", crown, part="hat")
        sketch.add("hat", oval(x, y - r * 0.97, 1.6), part="hat", light=0.8)
    elif hat == "beanie":
        sketch.add("hat", oval(x, y - r - 3, 4.2), part="hat", light=1.35)
        sketch.add("hat", crown, part="hat")
        sketch.add("hat", smooth(rectangle(x - r - 1, y - 4, x + r + 1, y + 2)), part="hat", light=0.82)
    else:  # a hat with a brim all around
        sketch.add("hat", crown, part="hat")
        sketch.add("ink", rectangle(x - r * 0.97, y - 4.5, x + r * 0.97, y - 1.5), outlined=False)
        sketch.add("hat", oval(x, y + 0.5, r + 8, 3.2), part="hat", light=0.93)
