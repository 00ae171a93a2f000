"""What happens in a scene, before anything has a place: the event and who takes part."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from deixis.corpus.scenes.catalog import FAIR, HATS, KINDS, LOWERS, SETTINGS, SHIRTS, Conditions
from deixis.corpus.scenes.chance import Chance
from deixis.corpus.scenes.drawn_figures import ANIMALS, PEOPLE, Look
from deixis.corpus.scenes.scene_colours import SKIN


def draw_person(
    chance: Chance, kinds: tuple[str, ...] = PEOPLE, unlike: Look | None = None, cold: bool = False
) -> Look:
    """A person; `unlike` another in shirt and, mostly, kind."""
    if unlike is not None and chance.maybe(0.7):
        kinds = tuple(kind for kind in kinds if kind != unlike.kind) or kinds
    kind = chance.pick(kinds)
    shirts = SHIRTS if unlike is None else tuple(colour for colour in SHIRTS if colour != unlike.colour)
    lower = chance.pick(
        ("trousers", "trousers", "skirt", "skirt") if kind in ("woman", "girl") else ("trousers", "shorts")
    )
    if cold:
        lower = "trousers"
    hat = chance.pick(("cap", "hat", "beanie")) if chance.maybe(0.45) else ""
    if cold and hat:
        hat = "beanie"
    return Look(
        kind,
        chance.pick(shirts),
        hat=hat,
        hat_colour=chance.pick(HATS[hat]) if hat else "",
        lower=lower,
        lower_colour=chance.pick(LOWERS[lower]),
        hair=chance.pick(("black", "brown", "blond", "red")),
        skin=int(chance.random() * len(SKIN)),
        beard=kind == "man" and chance.maybe(0.25),
    )


def draw_thing(kind: str, chance: Chance, unlike: Look | None = None) -> Look:
    """Anything but a person; `unlike` another in colour or, where a kind has but one, in size."""
    colours = KINDS[kind].colours
    if unlike is None or unlike.kind != kind:
        return Look(kind, chance.pick(colours))
    others = tuple(colour for colour in colours if colour != unlike.colour)
    if others:
        return Look(kind, chance.pick(others))
    return Look(kind, colours[0], "small" if unlike.size == "big" else "big")


class Plan(NamedTuple):
    """A scene's content. `actors` are who the event is about, `things` what they handle, `extras` stand by."""

    setting: str
    event: str
    actors: tuple[Look, ...]
    things: tuple[Look, ...] = ()
    #: What each actor does, where actors do different things.
    deeds: tuple[str, ...] = ()
    extras: tuple[Look, ...] = ()
    conditions: Conditions = FAIR

    @property
    def airborne(self) -> bool:
        """Whether all that the event is about is in the air."""
        return self.event == "above" or self.deeds == ("fly",)


#: Event → how often, in parts of the sum.
EVENTS = {
    "chase": 15, "follow": 9, "drive": 6, "throw": 8, "kick": 5, "point": 6, "beside": 12, "front": 8, "above": 5,
    "ride": 6, "hold": 9, "walk": 5, "sit": 6, "play": 10, "group": 17, "act": 8,
}  # fmt: skip
COUNTS = (2, 3, 4, 5)
DEEDS = ("run", "jump", "cheer", "walk")
#: Big things that others can be in front of, and that can be in front of others.
SOLID = ("horse", "cow", "elephant", "car", "truck", "bus", "tractor", "tree", "bench", "house", "barn", "sofa")


def draw_plan(chance: Chance) -> Plan:
    """A plan by chance: first the event, then a setting that has what it needs."""
    point = chance.between(0, sum(EVENTS.values()))
    for event in EVENTS:
        point -= EVENTS[event]
        if point < 0:
            break
    while True:
        setting = chance.pick(tuple(SETTINGS))
        plan = DRAW[event](setting, chance)
        if plan is not None:
            conditions = chance.pick(SETTINGS[setting].conditions)
            return _with_extras(plan._replace(conditions=conditions), chance)


def _being(setting: str, chance: Chance, unlike: Look | None = None, people: float = 0.5) -> Look:
    """A person or an animal of the setting; with `unlike`, of the same sort, so that either could be the other."""
    human = unlike.human if unlike is not None else chance.maybe(people)
    if human:
        return draw_person(chance, unlike=unlike, cold=setting == "snow")
    return draw_thing(chance.pick(SETTINGS[setting].animals), chance, unlike)


def _pair(event: str, people: float) -> Callable[[str, Chance], Plan | None]:
    def draw(setting: str, chance: Chance) -> Plan | None:
        first = _being(setting, chance, people=people)
        second = _being(setting, chance, first)
        if event == "chase" and chance.maybe(0.25):  # a person and an animal
            second = _being(setting, chance, people=0.0 if first.human else 1.0)
        pair = chance.shuffled(_told_apart((first, second), chance))
        return Plan(setting, event, (pair[0], pair[1]))

    return draw


def _told_apart(pair: tuple[Look, Look], chance: Chance) -> tuple[Look, Look]:
    """Two animals of one kind are often of different sizes too."""
    first, second = pair
    if first.kind != second.kind or first.human or (not second.size and chance.maybe(0.5)):
        return pair
    return first._replace(size="big"), second._replace(size="small")


def _drive(setting: str, chance: Chance) -> Plan | None:
    vehicles = tuple(kind for kind in SETTINGS[setting].vehicles if kind in ("car", "bus", "truck", "tractor"))
    if len(vehicles) < 2:
        return None
    first = draw_thing(chance.pick(vehicles), chance)
    return Plan(setting, "drive", (first, draw_thing(chance.pick(vehicles), chance, first)))


def _pass(event: str) -> Callable[[str, Chance], Plan | None]:
    def draw(setting: str, chance: Chance) -> Plan | None:
        cold = setting == "snow"
        first = draw_person(chance, cold=cold)
        return Plan(
            setting, event, (first, draw_person(chance, unlike=first, cold=cold)), (draw_thing("ball", chance),)
        )

    return draw


def _point(setting: str, chance: Chance) -> Plan | None:
    first = draw_person(chance, cold=setting == "snow")
    surroundings = SETTINGS[setting]
    second = chance.pick((
        draw_person(chance, unlike=first, cold=setting == "snow"),
        draw_thing(chance.pick(surroundings.animals), chance),
        draw_thing(chance.pick((*surroundings.vehicles, *surroundings.props)), chance),
    ))  # fmt: skip
    return Plan(setting, "point", (first, second))


def _beside(setting: str, chance: Chance) -> Plan | None:
    surroundings = SETTINGS[setting]
    if surroundings.vehicles and chance.maybe(0.25):
        first = draw_thing(chance.pick(surroundings.vehicles), chance)
        pair: tuple[Look, ...] = (first, draw_thing(chance.pick(surroundings.vehicles), chance, first))
    else:
        first = _being(setting, chance)
        pair = _told_apart((first, _being(setting, chance, first)), chance)
    return Plan(setting, "beside", tuple(chance.shuffled(pair)))


def _front(setting: str, chance: Chance) -> Plan | None:
    surroundings = SETTINGS[setting]
    solid = tuple(
        kind for kind in (*surroundings.animals, *surroundings.vehicles, *surroundings.props) if kind in SOLID
    )
    if not solid:
        return None
    first = draw_thing(chance.pick(solid), chance)
    if chance.maybe(0.5):
        second = draw_person(chance, cold=setting == "snow")
    else:
        second = draw_thing(chance.pick(solid), chance, first)
        if second.kind == first.kind and first.kind in ("tree", "bench", "barn", "house", "elephant", "sofa"):
            return None
    return Plan(setting, "front", tuple(chance.shuffled((first, second))))


def _above(setting: str, chance: Chance) -> Plan | None:
    first = draw_thing(chance.pick(SETTINGS[setting].sky), chance)
    second = draw_thing(chance.pick(SETTINGS[setting].sky), chance, first)
    return Plan(setting, "above", tuple(chance.shuffled((first, second))))


def _ride(setting: str, chance: Chance) -> Plan | None:
    mounts = [
        kind
        for kind in (*SETTINGS[setting].animals, *SETTINGS[setting].vehicles)
        if kind in ("horse", "elephant", "bicycle")
    ]
    if not mounts:
        return None
    return Plan(
        setting, "ride", (draw_person(chance, cold=setting == "snow"),), (draw_thing(chance.pick(mounts), chance),)
    )


def _each_with(event: str, kinds: tuple[str, ...]) -> Callable[[str, Chance], Plan | None]:
    """One or two people, each with a thing of their own."""

    def draw(setting: str, chance: Chance) -> Plan | None:
        fitting = tuple(kind for kind in kinds if SETTINGS[setting].outdoors or kind not in ("umbrella", "kite"))
        cold = setting == "snow"
        first, thing = draw_person(chance, cold=cold), draw_thing(chance.pick(fitting), chance)
        if chance.maybe(0.4):
            return Plan(setting, event, (first,), (thing,))
        second = draw_person(chance, unlike=first, cold=cold)
        other = draw_thing(
            chance.pick(tuple(kind for kind in fitting if kind != "trumpet" or thing.kind != kind)), chance, thing
        )
        return Plan(setting, event, (first, second), (thing, other))

    return draw


def _walk(setting: str, chance: Chance) -> Plan | None:
    if "dog" not in SETTINGS[setting].animals or not SETTINGS[setting].outdoors:
        return None
    return Plan(setting, "walk", (draw_person(chance, cold=setting == "snow"),), (draw_thing("dog", chance),))


def _sit(setting: str, chance: Chance) -> Plan | None:
    seat = SETTINGS[setting].seat
    if seat not in SETTINGS[setting].props:
        return None
    first = draw_person(chance)
    people = (first,) if chance.maybe(0.4) else (first, draw_person(chance, unlike=first))
    return Plan(setting, "sit", people, (draw_thing(seat, chance),))


def _group(setting: str, chance: Chance) -> Plan | None:
    surroundings = SETTINGS[setting]
    count = chance.pick(COUNTS)
    sort = chance.random()
    if sort < 0.35:
        kind = chance.pick(PEOPLE)
        first = draw_person(chance, (kind,), cold=setting == "snow")
        team = chance.maybe(0.5)
        members = [first]
        while len(members) < count:
            other = draw_person(chance, (kind,), cold=setting == "snow")
            members.append(other._replace(colour=first.colour) if team else other)
        return Plan(setting, "group", tuple(members), deeds=(chance.pick(("stand", *DEEDS)),))
    if sort < 0.8:
        look = draw_thing(chance.pick(tuple(kind for kind in surroundings.animals if kind != "bird")), chance)
        deeds = ("stand", "run", "walk", "sit") if look.kind in ("dog", "cat") else ("stand", "run", "walk")
        return Plan(setting, "group", (look,) * count, deeds=(chance.pick(deeds),))
    look = draw_thing(chance.pick(surroundings.sky), chance)
    return Plan(setting, "group", (look,) * count, deeds=("fly",))


def _act(setting: str, chance: Chance) -> Plan | None:
    cold = setting == "snow"
    first, deeds = draw_person(chance, cold=cold), chance.shuffled(DEEDS)
    if chance.maybe(0.4):
        return Plan(setting, "act", (first,), deeds=(deeds[0],))
    return Plan(setting, "act", (first, draw_person(chance, unlike=first, cold=cold)), deeds=(deeds[0], deeds[1]))


DRAW: dict[str, Callable[[str, Chance], Plan | None]] = {
    "chase": _pair("chase", 0.4),
    "follow": _pair("follow", 0.55),
    "drive": _drive,
    "throw": _pass("throw"),
    "kick": _pass("kick"),
    "point": _point,
    "beside": _beside,
    "front": _front,
    "above": _above,
    "ride": _ride,
    "hold": _each_with("hold", ("umbrella", "balloon", "kite", "flowers", "ball")),
    "walk": _walk,
    "sit": _sit,
    "play": _each_with("play", ("guitar", "drum", "trumpet")),
    "group": _group,
    "act": _act,
}


def _with_extras(plan: Plan, chance: Chance) -> Plan:
    """Add what stands by: none of the sorts already there, so that no description fits two."""
    surroundings = SETTINGS[plan.setting]
    taken = {KINDS[look.kind].nouns[-1] for look in (*plan.actors, *plan.things)}
    kinds = {look.kind for look in (*plan.actors, *plan.things)}
    animals = bool(kinds & set(ANIMALS))
    ground = [kind for kind in surroundings.props if kind not in kinds and KINDS[kind].nouns[-1] not in taken]
    sky = [kind for kind in surroundings.sky if kind not in kinds and not (animals and kind == "bird")]
    busy = len(plan.actors) > 3 or plan.event == "drive"
    extras: list[Look] = []
    if ground and chance.maybe(0.9 if plan.airborne else 0.25 if busy else 0.6):
        extras.append(draw_thing(chance.pick(ground), chance))
    if sky and not plan.airborne and plan.event not in ("hold", "front") and chance.maybe(0.25):
        extras.append(draw_thing(chance.pick(sky), chance))
    return plan._replace(extras=tuple(extras))
