"""Captions by composition: a clause for what happens, in one of several voices and styles, and what goes with it.

Each caption of an image takes another shape: the event in detail, the event in few words with what stands by, all
together in one word, what they wear, what stands left or right of whom.
"""

from __future__ import annotations

from typing import NamedTuple

from deixis.corpus.scenes.catalog import SETTINGS, TIMES, Where
from deixis.corpus.scenes.chance import Chance
from deixis.corpus.scenes.clauses import Clauses, topic
from deixis.corpus.scenes.facts import Claim, Fact, apart, holds, spatially, type_of
from deixis.corpus.scenes.naming import garment, have_noun, name_one
from deixis.corpus.scenes.staging import FLYING, Scene
from deixis.corpus.scenes.words import Item, Mention, conjugate

STYLES = ("simple", "progressive", "progressive", "gerund", "gerund", "there")
MOTION = {"chase", "follow", "drive", "run", "walk", "ride", "lead"}


class Draft(NamedTuple):
    """A caption with its mentions and what it claims; what in it could be exchanged or miscounted; how it was made."""

    text: str
    items: list[Item]
    claims: list[Claim]
    ordered: bool
    counted: bool
    shape: str
    attempt: int


class Writer:
    """Writes one caption of a scene."""

    def __init__(self, scene: Scene, chance: Chance, twist: str = "") -> None:
        self.scene, self.plan, self.chance = scene, scene.plan, chance
        self.say = Clauses(scene, chance, twist)
        self.setting = SETTINGS[scene.plan.setting]
        self.extras = [tag for tag in scene.tags if tag[0] == "x"]

    def event(self) -> list[Item]:
        """What happens, in some detail, and where."""
        detail, style = self.chance.pick((0, 1, 1, 2)), self.chance.pick(STYLES)
        setting = self._place() if self.chance.maybe(0.65) else []
        if style != "there" and setting and setting[0] in ("in", "on", "at", "over") and self.chance.maybe(0.2):
            return [*setting, ",", *self.say.happening("progressive" if style == "gerund" else style, detail)]
        extra = self._with_extra() if self.extras and self.chance.maybe(0.3) else []
        under_the_sky = any(isinstance(item, Mention) and item.topic == "sky" for item in setting)
        time = self._time() if not extra and not under_the_sky and self.chance.maybe(0.15) else []
        return [*self.say.happening(style, detail), *setting, *extra, *time]

    def brief(self) -> list[Item]:
        """What happens, in few words, with what stands by or when it is."""
        clause = self.say.happening(self.chance.pick(STYLES), 0)
        if self.extras and self.chance.maybe(0.7):
            return [*clause, *self._with_extra()]
        return [*clause, *self._time()] if self.chance.maybe(0.6) else clause

    def together(self) -> list[Item]:
        """All actors under one name, doing what they have in common."""
        event, actors = self.plan.event, self.say.actors
        if len(actors) == 1 or event == "group":
            return self.event()
        looks = [self.scene.figure(tag).look for tag in actors]
        joined = not have_noun(looks) or self.chance.maybe(0.35)
        subject = self.say.both(0) if joined else self.say.group(actors, 1)
        self.say.claims.append(Claim("exist", subject.means))
        style = self.chance.pick(("simple", "progressive", "gerund", "there"))
        verb, rest = "stand", list[Item]()
        if event in ("throw", "kick"):
            verb, rest = "play", ["with", *self.say.one("t0", 0).items]
            rest += ["during", topic("game")] if self.chance.maybe(0.3) else []
        elif event == "play":
            verb, rest = "make", [topic("music"), *self._place()]
        elif event == "act":
            verb, rest = "have", [Mention("fun", "notvisual"), *self._somewhere(self.setting.places)]
        elif event == "sit":
            verb, rest = "sit", ["together on", *self.say.one("t0", 1).items]
        elif event == "above":
            verb, rest = self.say.posture(subject.tags), ["in", self.say.sky()]
        elif event in ("chase", "follow", "drive"):
            verb, rest = {"chase": "run", "follow": "walk"}.get(event, event), self._somewhere(self.setting.ways)
        elif not {type_of(look) for look in looks} <= {"people", "animals"}:
            verb, rest = "be", self._place()
        else:
            rest = [*(["together"] if self.chance.maybe(0.3) else []), *self._place()]
        return self.say.sentence(subject, verb, rest, style)

    def attire(self) -> list[Item]:
        """What one or two people wear."""
        people = [tag for tag in self.say.actors if self.scene.figure(tag).look.human]
        alike = len(people) > len({self.scene.figure(tag).look.kind for tag in people})
        if not people or alike:  # telling alike people apart by their clothes would leave nothing to say
            return self.event()
        people = self.chance.shuffled(people)
        subjects = [name_one(self.scene, tag, self.chance, 0, definite=self.chance.maybe(0.4)) for tag in people]
        self.say.ordered = len(people) == 2
        if self.say.twist == "order":
            subjects.reverse()
        clauses: list[list[Item]] = []
        for tag, subject in zip(people, subjects, strict=True):
            look = self.scene.figure(tag).look
            worn: list[Item] = [garment(look, (tag,), "colour", self.chance)]
            if len(people) == 1:
                worn += ["and", garment(look, (tag,), "hat_colour" if look.hat else "lower_colour", self.chance)]
                worn += ["on", self.say.own((tag,), "head", "head")] if look.hat else []
            style = "progressive" if self.chance.maybe(0.6) else "simple"
            clauses.append([*subject.items, *conjugate("wear", style, False), *worn])
            means = subject.means._replace(traits=(*subject.means.traits, ("colour", look.colour)))
            self.say.claims.append(Claim("exist", means))
        if len(clauses) == 2:
            return [*clauses[0], *self.chance.pick((["and"], [",", "and"], ["while"])), *clauses[1]]
        ended = self.scene.figure(people[0]).look.hat or self.chance.maybe(0.5)
        return clauses[0] if ended else [*clauses[0], *self._somewhere(self.setting.places)]

    def aside(self) -> list[Item]:
        """Where something that stands by is."""
        actors = self.say.actors
        fitting = [tag for tag in self.extras if self.plan.event != "above" and apart(self.scene, (tag,), actors)]
        if not fitting:
            return self.event()
        extra = self.say.one(self.chance.pick(fitting), 1)
        others = self.say.both(0) if len(actors) == 2 and self.plan.event != "group" else self.say.named(actors, 0)
        above = extra.means.kinds[0] in FLYING and self.plan.deeds != ("fly",)
        relation = "above" if above else "left"
        first, second = extra, others
        if not spatially(self.scene, relation, first.tags, second.tags):
            first, second = second, first
        self.say.ordered = True
        if self.say.twist == "order":
            first, second = second, first
        style = self.chance.pick(("simple", "progressive", "gerund", "there"))
        clause = self.say.relate(Fact(relation, first.tags, second.tags), first, second, style)
        return [*clause, *self._somewhere(self.setting.places)] if self.chance.maybe(0.4) else clause

    def _place(self) -> list[Item]:
        setting, verbs = self.setting, {fact.verb for fact in self.say.facts}
        if verbs == {"fly"} and setting.outdoors and self.chance.maybe(0.5):
            return ["in", self.say.sky()]
        if verbs <= {"above", "fly"}:
            return ["over" if setting.outdoors else "in", self._somewhere(setting.places)[1]]
        if self.plan.setting == "pitch" and self.chance.maybe(0.15):
            return ["in front of", topic("crowd")]
        if verbs <= MOTION and self.chance.maybe(0.5):
            return self._somewhere(setting.ways)
        # Who sits on a bench is in the park, but not on the grass.
        indirect = verbs == {"seat"} or self.chance.maybe(0.67)
        return self._somewhere(setting.places if indirect else setting.grounds)

    def _somewhere(self, options: tuple[Where, ...]) -> list[Item]:
        preposition, words, referent = self.chance.pick(options)
        return [preposition, Mention(words, "scene", topic=referent)]

    def _time(self) -> list[Item]:
        preposition, words = self.chance.pick(TIMES[self.plan.conditions])
        return [preposition, Mention(words, "notvisual")]

    def _with_extra(self) -> list[Item]:
        tag = self.chance.pick(self.extras)
        extra = self.say.one(tag, 1)
        if self.scene.figure(tag).look.kind in FLYING:
            link, style = self.chance.pick((("with", "gerund"), ("as", "simple")))
            verb = conjugate(self.say.posture((tag,)), style, False)
            return [link, *extra.items, *verb, self.chance.pick(("overhead", "nearby"))]
        if self.plan.airborne or self.scene.figure(tag).look.kind == "boat" or self.chance.maybe(0.35):
            return ["with", *extra.items, "in", Mention("the background", "notvisual")]
        return [self.chance.pick(("near", "near", "close to", "not far from")), *extra.items]


SHAPES = {
    "event": Writer.event,
    "brief": Writer.brief,
    "together": Writer.together,
    "attire": Writer.attire,
    "aside": Writer.aside,
}


def _write(scene: Scene, seed: int, shape: str, attempt: int, twist: str = "") -> Draft:
    writer = Writer(scene, Chance(seed, scene.id, attempt), twist)
    items = [*SHAPES[shape](writer), "."]
    text = " ".join([item if isinstance(item, str) else item.words for item in items])
    statement = writer.say
    return Draft(
        text[0].upper() + text[1:], items, statement.claims, statement.ordered, statement.counted, shape, attempt
    )


def write_captions(scene: Scene, seed: int) -> list[Draft]:
    """Five captions of which no two read alike: three of the event, two of what else there is to say."""
    chance = Chance(seed, scene.id, "shapes")
    rest = ["together", "attire", "brief", *["aside", "aside"] * bool(scene.plan.extras)]
    drafts: dict[str, Draft] = {}
    attempt = 0
    for shape in chance.shuffled(["event", "event", "brief", *chance.shuffled(rest)[:2]]):
        while (draft := _write(scene, seed, shape, attempt)).text in drafts:
            attempt += 1
        attempt += 1
        drafts[draft.text] = draft
    return list(drafts.values())


class FalseTwin(NamedTuple):
    """A false caption, and the verb of the first claim that makes it so."""

    text: str
    relation: str


def false_twins(scene: Scene, seed: int, twist: str) -> list[FalseTwin | None]:
    """For each caption, the same words with roles exchanged or another count, where that makes it false."""
    twins: list[FalseTwin | None] = []
    for draft in write_captions(scene, seed):
        twin = _write(scene, seed, draft.shape, draft.attempt, twist)
        possible = draft.ordered if twist == "order" else draft.counted
        false = [claim.verb for claim in twin.claims if not holds(scene, claim)]
        usable = possible and false and twin.text != draft.text
        twins.append(FalseTwin(twin.text, false[0]) if usable else None)
    return twins
