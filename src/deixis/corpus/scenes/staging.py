"""From a plan to figures with places: nothing hides another except where the scene is about that.

Blocks of figures that belong together (a rider and a horse) stand side by side on the ground, so that left and right
are plain; what stands by is farther back and smaller; things in the air find a free spot.
"""

from __future__ import annotations

from typing import NamedTuple

from deixis.corpus.scenes.chance import Chance
from deixis.corpus.scenes.drawn_figures import STAGE, Figure, Look, extent_of, natural_scale, sketch_of
from deixis.corpus.scenes.plans import Plan

Tagged = tuple[str, Figure]
#: Figures around a common origin on the ground, at the scale of the foreground, facing right.
Block = list[Tagged]

MARGIN = 6
#: Where things stand that merely stand by, and how large they are there.
BACKGROUND_Y = (166.0, 176.0)
BACKGROUND_SCALE = 0.66
SKY_SCALE = 0.7
FLYING = ("bird", "kite", "balloon")


class Scene(NamedTuple):
    """A scene ready to be painted and described. Tags: `a0`, `a1` … the plan's actors, `t…` things, `x…` extras."""

    id: str
    family: str
    plan: Plan
    figures: tuple[Figure, ...]
    #: Tag → index in `figures`.
    tags: dict[str, int]
    #: Where on the ground shadows fall, and what leaves speed lines behind: indexes.
    grounded: tuple[int, ...]
    speeding: tuple[int, ...]

    def figure(self, tag: str) -> Figure:
        return self.figures[self.tags[tag]]


def stage(scene_id: str, family: str, plan: Plan, chance: Chance) -> Scene:
    """Give everything in a plan a place."""
    figures: list[Tagged] = []
    facing = chance.pick((1, -1))
    extras = _tagged("x", plan.extras)
    flying = [(tag, look) for tag, look in extras if look.kind in FLYING]
    standing = [(tag, look) for tag, look in extras if look.kind not in FLYING]
    blocks = [] if plan.airborne else _blocks(plan, facing, chance)
    left, right = _standing_by(figures, standing, blocks, chance)
    _line_up(figures, blocks, left, right, chance)
    if plan.event == "above":
        _one_above_the_other(figures, plan, facing, chance)
    else:
        _fly(figures, [*flying, *(_tagged("a", plan.actors) if plan.airborne else [])], facing, chance)
    tags = {tag: index for index, (tag, _) in enumerate(figures)}
    placed = tuple(
        figure._replace(held=tuple(tags[held] for held in _held_by(tag, plan))) if tag[0] == "a" else figure
        for tag, figure in figures
    )
    grounded = tuple(index for index, (tag, figure) in enumerate(figures) if _grounded(plan, tag, figure))
    speeding = tuple(index for index, (tag, figure) in enumerate(figures) if _speeding(plan, tag, figure))
    return Scene(scene_id, family, plan, placed, tags, grounded, speeding)


def _grounded(plan: Plan, tag: str, figure: Figure) -> bool:
    """Whether a figure throws a shadow on the ground: not in the air, on water, in someone's hand or on a back."""
    if figure.look.kind in (*FLYING, "boat", "leash", "string"):
        return False
    if plan.event in ("ride", "sit"):
        return tag[0] != "a"
    return tag[0] != "t" or plan.event not in ("hold", "play", "throw")


def _speeding(plan: Plan, tag: str, figure: Figure) -> bool:
    passed = tag == "t0" and plan.event in ("throw", "kick")
    return passed or figure.pose == "run" or (plan.event == "drive" and tag[0] == "a")


def _tagged(letter: str, looks: tuple[Look, ...]) -> list[tuple[str, Look]]:
    return [(f"{letter}{index}", look) for index, look in enumerate(looks)]


def _held_by(tag: str, plan: Plan) -> tuple[str, ...]:
    """What an actor carries in front of the body."""
    index = int(tag[1:])
    if plan.event not in ("hold", "play") or plan.things[index].kind in ("drum", "kite"):
        return ()
    return (f"t{index}",)


def _at(look: Look, pose: str, x: float = 0, y: float = 0, facing: int = 1, scale: float | None = None) -> Figure:
    return Figure(look, pose, facing, x, y, natural_scale(look) if scale is None else scale)


def _blocks(plan: Plan, facing: int, chance: Chance) -> list[Block]:
    """The blocks of an event from left to right."""
    event, actors, things = plan.event, plan.actors, plan.things
    if event in ("chase", "follow", "drive"):
        pose = {"chase": "run", "follow": "walk", "drive": ""}[event]
        return _turned([[(tag, _at(look, pose))] for tag, look in _tagged("a", actors)], facing)
    if event in ("throw", "kick"):
        scale = natural_scale(actors[0])
        x, y = (66, -76) if event == "throw" else (58, -14)
        first = [("a0", _at(actors[0], event)), ("t0", _at(things[0], "", x * scale, y * scale))]
        return _turned([first, [("a1", _at(actors[1], "catch" if event == "throw" else "stand", facing=-1))]], facing)
    if event == "point":
        other = _at(actors[1], "stand", facing=chance.pick((1, -1)))
        return _turned([[("a0", _at(actors[0], "point"))], [("a1", other)]], facing)
    if event == "front":
        return [_overlapping(actors, facing, chance)]
    if event == "ride":
        return _turned([_riding(actors[0], things[0])], facing)
    if event == "walk":
        return _turned([_leading(actors[0], things[0])], facing)
    if event == "sit":
        return [_seated(actors, things[0], facing)]
    if event in ("hold", "play"):
        blocks = [
            _with_thing(event, index, look, thing)
            for index, (look, thing) in enumerate(zip(actors, things, strict=True))
        ]
        return [block for original in blocks for block in _turned([original], chance.pick((1, -1)))]
    pose = plan.deeds[0] if plan.deeds else "stand"
    poses = plan.deeds if len(plan.deeds) == len(actors) else (pose,) * len(actors)
    together = facing if pose in ("run", "walk") else 0
    return [
        [(tag, _at(look, poses[index], facing=together or chance.pick((1, -1))))]
        for index, (tag, look) in enumerate(_tagged("a", actors))
    ]


def _turned(blocks: list[Block], facing: int) -> list[Block]:
    """The same blocks seen in a mirror, where they are to face left."""
    if facing > 0:
        return blocks
    return [
        [(tag, figure._replace(x=-figure.x, facing=-figure.facing)) for tag, figure in block]
        for block in reversed(blocks)
    ]


def _overlapping(actors: tuple[Look, ...], facing: int, chance: Chance) -> Block:
    """The first stands in front of the second and hides a part of it."""
    back = _at(actors[1], "stand", y=-30, facing=facing, scale=natural_scale(actors[1]) * 0.88)
    front = _at(actors[0], "stand", facing=chance.pick((1, -1)))
    back_1, _, back_2, _ = extent_of(back)
    front_1, _, front_2, _ = extent_of(front)
    shared = 0.4 * min(back_2 - back_1, front_2 - front_1)
    shift = back_2 - shared - front_1 if chance.maybe(0.5) else back_1 + shared - front_2
    return [("a1", back), ("a0", front._replace(x=shift))]


def _riding(rider: Look, mount: Look) -> Block:
    scale = natural_scale(rider)
    if mount.kind == "bicycle":
        return [("t0", _at(mount, "", scale=scale)), ("a0", _at(rider, "cycle", -10 * scale, -2 * scale))]
    x, y = sketch_of(mount, "walk").anchors["back"]
    return [("t0", _at(mount, "walk")), ("a0", _at(rider, "ride", x - 4, y + 30 * scale))]


def _leading(person: Look, dog: Look) -> Block:
    scale = natural_scale(person)
    hand = sketch_of(person, "lead").anchors["hand"]
    collar = sketch_of(dog, "walk").anchors["collar"]
    x, y = hand[0] * scale, hand[1] * scale
    ahead = 48 * scale + 24
    leash = Figure(
        Look("leash", "red"), "", 1, x, y, 1, run=round(ahead + collar[0] - x, 2), drop=round(collar[1] - y, 2)
    )
    return [("a0", _at(person, "lead")), ("t0", _at(dog, "walk", ahead)), ("leash", leash)]


def _seated(people: tuple[Look, ...], seat: Look, facing: int) -> Block:
    block: Block = [("t0", _at(seat, ""))]
    for index, look in enumerate(people):
        x, turn = (-7 * facing, facing) if len(people) == 1 else ((-24, 1), (24, -1))[index]
        lift = -1 if natural_scale(look) == 1 else -8
        block.append((f"a{index}", _at(look, "sit", x, lift, turn)))
    return block


def _with_thing(event: str, index: int, person: Look, thing: Look) -> Block:
    """A person with an instrument, or with something in the hand."""
    scale = natural_scale(person)
    pose = thing.kind if event == "play" else "hold" if thing.kind in ("flowers", "ball") else "raise"
    anchors = sketch_of(person, pose).anchors
    x, y = anchors["mouth"] if thing.kind == "trumpet" else anchors["hand"]
    size = scale
    if thing.kind == "guitar":
        x, y = 4, -50
    elif thing.kind == "drum":
        x, y = 37, 0
    elif thing.kind in ("flowers", "ball"):
        x, y, size = x + 2, y + (8 if thing.kind == "ball" else 7), 0.85
    elif thing.kind == "umbrella":
        x, size = x - 2, max(scale, 0.8)
    elif thing.kind == "kite":
        string = Figure(Look("string", "black"), "", 1, x * scale, y * scale, 1, run=44, drop=-62)
        kite = _at(thing, "", x * scale + 44, y * scale - 64, scale=0.85)
        return [(f"a{index}", _at(person, pose)), (f"t{index}", kite), (f"string{index}", string)]
    return [(f"a{index}", _at(person, pose)), (f"t{index}", _at(thing, "", x * scale, y * scale, scale=size))]


def _span(block: Block) -> tuple[float, float]:
    extents = [extent_of(figure) for _, figure in block]
    return min(extent[0] for extent in extents), max(extent[2] for extent in extents)


def _standing_by(
    figures: list[Tagged], extras: list[tuple[str, Look]], blocks: list[Block], chance: Chance
) -> tuple[float, float]:
    """Place what stands by at the left or right edge, farther back; give the room that is left between."""
    left, right = float(MARGIN), float(STAGE[0] - MARGIN)
    for tag, look in extras:
        at_left = chance.maybe(0.5)
        y = 132.0 if look.kind == "boat" else chance.between(*BACKGROUND_Y)
        if look.kind in ("flowers", "sandcastle", "bench", "snowman", "table"):
            y += 20
        scale = 0.5 if look.kind == "boat" else BACKGROUND_SCALE + (y - BACKGROUND_Y[0]) / 150
        if not blocks:
            scale *= 1.15
        figure = Figure(look, "", chance.pick((1, -1)), 0, y, scale * natural_scale(look))
        x1, _, x2, _ = extent_of(figure)
        spare = 60 if not blocks else 4
        shift = chance.between(0, spare)
        x = left - x1 + shift if at_left else right - x2 - shift
        figures.append((tag, figure._replace(x=x)))
        if at_left:
            left = x + x2 + 5
        else:
            right = x + x1 - 5
    return left, right


def _line_up(figures: list[Tagged], blocks: list[Block], left: float, right: float, chance: Chance) -> None:
    """Place blocks side by side between two edges, as large as there is room for."""
    if not blocks:
        return
    spans = [_span(block) for block in blocks]
    total, room = sum(end - start for start, end in spans), right - left
    gap = 9.0
    y = chance.between(206, 224)
    tallest = max(-extent_of(figure)[1] for block in blocks for _, figure in block)
    # Scenes of small animals are seen from nearer by; of children, hardly, or they would look grown up.
    people = any(figure.look.human for block in blocks for _, figure in block)
    largest = min(1.12 if people else 1.45, max(0.85, 118 / tallest)) - (224 - y) / 120
    scale = min(largest, (room - gap * (len(blocks) - 1)) / total)
    spare = room - total * scale - gap * (len(blocks) - 1)
    shares = [chance.random() + 0.15 for _ in range(len(blocks) + 1)]
    # Those in one event stay near each other: more of the room goes to the outer edges.
    shares[0] *= 2
    shares[-1] *= 2
    x = left
    for index, (block, (start, end)) in enumerate(zip(blocks, spans, strict=True)):
        x += spare * shares[index] / sum(shares)
        nearer = chance.between(-5, 5) if len(blocks) > 1 else 0
        for tag, figure in block:
            placed = figure._replace(
                x=x + (figure.x - start) * scale, y=y + nearer + figure.y * scale, scale=figure.scale * scale
            )
            figures.append((tag, placed))
        x += (end - start) * scale + gap


def _one_above_the_other(figures: list[Tagged], plan: Plan, facing: int, chance: Chance) -> None:
    middle = chance.between(110, 210)
    taken = [extent_of(figure) for _, figure in figures]
    for x1, _, x2, _ in taken:
        if x1 - 60 < middle < x2 + 60:
            middle = (x2 + 280) / 2 if x1 + x2 < 320 else (x1 + 40) / 2
    for index, y in ((0, 38.0), (1, 112.0)):
        look = plan.actors[index]
        figure = Figure(
            look,
            "fly" if look.kind == "bird" else "",
            facing,
            middle + chance.between(-18, 18),
            0,
            SKY_SCALE * natural_scale(look),
        )
        _, top, _, bottom = extent_of(figure)
        figures.append((f"a{index}", figure._replace(y=y - (top + bottom) / 2)))


def _fly(figures: list[Tagged], flying: list[tuple[str, Look]], facing: int, chance: Chance) -> None:
    """Place things in the air where they touch nothing; with no such place, where they touch least."""
    for tag, look in flying:
        scale = natural_scale(look) * (0.62 if look.kind == "bird" else 0.58)
        best: tuple[float, Figure] | None = None
        taken = [extent_of(figure) for _, figure in figures]
        for _ in range(24):
            figure = Figure(look, "fly" if look.kind == "bird" else "", facing, 0, 0, scale)
            x1, y1, x2, y2 = extent_of(figure)
            figure = figure._replace(
                x=chance.between(MARGIN - x1, STAGE[0] - MARGIN - x2), y=chance.between(MARGIN - y1, 92 - y2)
            )
            x1, y1, x2, y2 = extent_of(figure)
            touched = sum(
                max(0.0, min(x2, b2) - max(x1, b1) + 8) * max(0.0, min(y2, d2) - max(y1, d1) + 8)
                for b1, d1, b2, d2 in taken
            )
            if best is None or touched < best[0]:
                best = (touched, figure)
            if not touched:
                break
        if best is not None:
            figures.append((tag, best[1]))
