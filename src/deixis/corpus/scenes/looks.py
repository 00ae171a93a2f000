"""How people and things look, by chance."""

from __future__ import annotations

from deixis.corpus.scenes.catalog import HATS, KINDS, LOWERS, SHIRTS
from deixis.corpus.scenes.chance import Chance
from deixis.corpus.scenes.drawn_figures import PEOPLE, Look
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
