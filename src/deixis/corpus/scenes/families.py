"""Families of scenes: a plan and variants of it that differ in one factor.

Roles exchanged, another count, colours exchanged or changed: so a split holds hard negatives for word order, counting
and binding.
"""

from __future__ import annotations

from deixis.corpus.scenes.catalog import KINDS
from deixis.corpus.scenes.chance import Chance
from deixis.corpus.scenes.plans import COUNTS, Plan, draw_person

#: Events in which two take part and it matters who is who.
PAIRED = ("chase", "follow", "drive", "throw", "kick", "beside", "front", "above")


def vary(plan: Plan, chance: Chance) -> Plan | None:
    """The same scene with one factor changed, or None where nothing fitting comes up."""
    if plan.event == "group":
        if chance.maybe(0.7):
            count = len(plan.actors) + chance.pick((-1, 1))
            return _recount(plan, count, chance) if count in COUNTS else None
        return _recoloured(plan, chance)
    if len(plan.actors) < 2:
        return _recoloured(plan, chance)
    first, second = plan.actors
    choice = chance.random()
    exchangeable = plan.event in PAIRED or len(plan.things) == 2 or len(plan.deeds) == 2
    if (exchangeable or (plan.event == "point" and second.human)) and choice < 0.5:
        return plan._replace(actors=(second, first))
    alike = first.human == second.human and first.colour != second.colour
    fitting = second.colour in KINDS[first.kind].colours and first.colour in KINDS[second.kind].colours
    if choice < 0.75 and alike and fitting:
        return plan._replace(actors=(first._replace(colour=second.colour), second._replace(colour=first.colour)))
    return _recoloured(plan, chance)


def _recount(plan: Plan, count: int, chance: Chance) -> Plan:
    """One member fewer, or one more that looks like another."""
    members = plan.actors[:count]
    if count > len(plan.actors):
        extra = plan.actors[-1]
        if extra.human:
            other = draw_person(chance, (extra.kind,), cold=plan.setting == "snow")
            uniform = len({look.colour for look in plan.actors}) == 1
            extra = other._replace(colour=extra.colour) if uniform else other
        members = (*plan.actors, extra)
    return plan._replace(actors=members)


def _recoloured(plan: Plan, chance: Chance) -> Plan | None:
    """The first actor (of a group of like ones: all) in another colour that no one else there has."""
    first = plan.actors[0]
    taken = {look.colour for look in plan.actors}
    free = tuple(colour for colour in KINDS[first.kind].colours if colour not in taken)
    if not free:
        return None
    colour = chance.pick(free)
    uniform = plan.event == "group" and len(taken) == 1
    members = tuple(
        look._replace(colour=colour) if uniform or index == 0 else look for index, look in enumerate(plan.actors)
    )
    return plan._replace(actors=members)
