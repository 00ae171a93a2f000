"""What is true in a scene: who does what to whom, which combinations occur, and whether a claim holds.

Claims are what a caption says once its words are stripped away. They let the corpus prove that an exchanged caption
is false, and that a held-out combination never occurs in training.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from deixis.corpus.scenes.catalog import KINDS
from deixis.corpus.scenes.drawn_figures import Look, extent_of
from deixis.corpus.scenes.plans import Plan
from deixis.corpus.scenes.staging import Scene

Tags = tuple[str, ...]
#: Relations that can be true in one direction only.
ASYMMETRIC = ("chase", "follow", "drive", "throw", "kick", "point", "left", "front", "above")


class Fact(NamedTuple):
    verb: str
    subject: Tags
    object: Tags = ()
    thing: Tags = ()


class Description(NamedTuple):
    """What a noun phrase says: how many there are, of which kinds, and with which traits (fields of `Look`)."""

    kinds: tuple[str, ...]
    traits: tuple[tuple[str, object], ...] = ()
    number: int = 1

    def fits(self, looks: list[Look]) -> bool:
        return len(looks) == self.number and all(map(self.fits_one, looks))

    def fits_one(self, look: Look) -> bool:
        """Whether one of them has the kind and the traits, however many there are."""
        if look.kind not in self.kinds:
            return False
        return all(getattr(look, trait) == value for trait, value in self.traits)


class Claim(NamedTuple):
    """Someone of that description does something, to someone or something of that description; or merely exists."""

    verb: str
    subject: Description
    object: Description | None = None


def facts_of(plan: Plan) -> tuple[Fact, ...]:
    """What happens, with the plan's tags."""
    event, things = plan.event, tuple(f"t{index}" for index in range(len(plan.things)))
    actors = tuple(f"a{index}" for index in range(len(plan.actors)))
    if event in ("hold", "play"):
        return tuple(Fact(event, (actor,), (thing,)) for actor, thing in zip(actors, things, strict=True))
    if event == "act":
        return tuple(Fact(deed, (actor,)) for actor, deed in zip(actors, plan.deeds, strict=True))
    if event == "group":
        return (Fact(plan.deeds[0], actors),)
    if event in ("ride", "walk", "sit"):
        return (Fact({"walk": "lead", "sit": "seat"}.get(event, event), actors, things),)
    return (Fact({"beside": "left"}.get(event, event), actors[:1], actors[1:], things),)


def holds(scene: Scene, claim: Claim) -> bool:
    """Whether anything in the scene makes a claim true."""
    subject, target = claim.subject, claim.object
    if claim.verb in ("left", "above") and target is not None:
        ones = [party for party in _parties(scene) if subject.fits(_looks(scene, party))]
        others = [party for party in _parties(scene) if target.fits(_looks(scene, party))]
        pairs = [(one, other) for one in ones for other in others if not set(one) & set(other)]
        return any(spatially(scene, claim.verb, one, other) for one, other in pairs)
    if claim.verb == "exist":
        return any(subject.fits(_looks(scene, party)) for party in _parties(scene))
    return any(
        fact.verb == claim.verb
        and subject.fits(_looks(scene, fact.subject))
        and (target is None or target.fits(_looks(scene, fact.object)))
        for fact in facts_of(scene.plan)
    )


def _parties(scene: Scene) -> list[Tags]:
    """Everyone and everything that a phrase can name: one by one, and all actors together."""
    actors = tuple(tag for tag in scene.tags if tag[0] == "a")
    singles = [(tag,) for tag in scene.tags if tag[0] in "atx"]
    return [*singles, actors] if len(actors) > 1 else [*singles]


def _looks(scene: Scene, tags: Tags) -> list[Look]:
    return [scene.figure(tag).look for tag in tags]


def hull(scene: Scene, tags: Tags) -> tuple[float, float, float, float]:
    extents = [extent_of(scene.figure(tag)) for tag in tags]
    x1, y1, x2, y2 = zip(*extents, strict=True)
    return min(x1), min(y1), max(x2), max(y2)


def spatially(scene: Scene, relation: str, one: Tags, other: Tags) -> bool:
    """Whether the middle of one is left of, or above, the middle of the other."""
    first, second = hull(scene, one), hull(scene, other)
    return (
        first[0] + first[2] < second[0] + second[2]
        if relation == "left"
        else first[1] + first[3] < second[1] + second[3]
    )


def apart(scene: Scene, one: Tags, other: Tags) -> bool:
    """Whether two share no column of the picture, so that left and right are beyond doubt."""
    first, second = hull(scene, one), hull(scene, other)
    return first[2] <= second[0] or second[2] <= first[0]


NUMBERS = ("no", "one", "two", "three", "four", "five", "six")

#: Pairs that occur in the split `unseen` alone; each word of a pair occurs without the other everywhere.
HELD_OUT = frozenset({
    ("purple", "shirt"), ("green", "hat"), ("red", "balloon"), ("green", "car"), ("white", "cat"), ("black", "horse"),
    ("rabbit", "chase"), ("cat", "follow"), ("girl", "bicycle"), ("woman", "drum"), ("boy", "guitar"),
    ("three", "dog"), ("four", "cat"), ("two", "horse"), ("five", "dog"),
})  # fmt: skip


def combinations(plan: Plan) -> frozenset[tuple[str, str]]:
    """The pairs of words that a scene binds together: colour and thing, actor and action, number and kind."""
    pairs: set[tuple[str, str]] = set()
    for look in (*plan.actors, *plan.things, *plan.extras):
        if look.human:
            pairs |= {(look.colour, "shirt"), (look.lower_colour, look.lower)}
            if look.hat:
                pairs.add((look.hat_colour, "hat"))
        else:
            pairs.add((look.colour, look.kind))
    looks = dict(_tagged_looks(plan))
    for fact in facts_of(plan):
        pairs |= {(looks[tag].kind, fact.verb) for tag in (*fact.subject, *fact.object)}
        if fact.verb in ("ride", "play", "hold", "lead", "seat"):
            pairs |= {(looks[one].kind, looks[other].kind) for one in fact.subject for other in fact.object}
    kinds = [look.kind for look in plan.actors]
    if len(kinds) > 1 and all(one == other for one, other in pairwise(kinds)):
        pairs.add((NUMBERS[len(kinds)], kinds[0]))
    return frozenset(pairs)


def _tagged_looks(plan: Plan) -> list[tuple[str, Look]]:
    groups = (("a", plan.actors), ("t", plan.things), ("x", plan.extras))
    return [(f"{letter}{index}", look) for letter, looks in groups for index, look in enumerate(looks)]


def type_of(look: Look) -> str:
    return KINDS[look.kind].type
