"""Captions by composition: a clause for what happens, in one of several voices and styles, and what goes with it.

Each caption of an image takes another shape: the event in detail, the event in few words with what stands by, all
together in one word, what they wear, what stands left or right of whom.
"""

from __future__ import annotations

from typing import NamedTuple

from deixis.corpus.scenes.catalog import SETTINGS
from deixis.corpus.scenes.chance import Chance
from deixis.corpus.scenes.facts import ASYMMETRIC, Claim, Fact, Tags, apart, facts_of, holds, spatially, type_of
from deixis.corpus.scenes.naming import garment, name_group, name_one, shared_noun
from deixis.corpus.scenes.staging import Scene
from deixis.corpus.scenes.words import POSTURE, TOPICS, WAYS, Item, Mention, NounPhrase, Way, conjugate

STYLES = ("simple", "progressive", "progressive", "gerund", "gerund", "there")
MOTION = ("chase", "follow", "drive", "run", "walk", "ride", "lead")
CAPTIONS = 5


class Draft(NamedTuple):
    """A caption's items and what it claims; `order` and `count` tell what in it can be falsified."""

    items: tuple[Item, ...]
    claims: tuple[Claim, ...]
    order: bool
    count: bool

    @property
    def text(self) -> str:
        words = " ".join(item if isinstance(item, str) else item.words for item in self.items)
        return words[0].upper() + words[1:]


class Writer:
    """Writes one caption. `twist` is "order" to exchange who is who, "count" to miscount, or nothing."""

    def __init__(self, scene: Scene, chance: Chance, twist: str = "") -> None:
        self.scene, self.chance, self.twist = scene, chance, twist
        self.setting = SETTINGS[scene.plan.setting]
        self.facts = facts_of(scene.plan)
        self.actors = tuple(tag for tag in scene.tags if tag[0] == "a")
        self.extras = tuple(tag for tag in scene.tags if tag[0] == "x")
        self.claims: list[Claim] = []
        self.order = self.count = False

    def write(self, shape: str) -> Draft:
        body = getattr(self, f"_{shape}")()
        return Draft((*body, "."), tuple(self.claims), self.order, self.count)

    def _event(self) -> list[Item]:
        """What happens, in some detail, and where."""
        detail, style = self.chance.pick((0, 1, 1, 2)), self.chance.pick(STYLES)
        first = self._place() if self.chance.maybe(0.65) else []
        if style != "there" and first and first[0] in ("in", "on", "at") and self.chance.maybe(0.2):
            return [*first, ",", *self._happening("progressive" if style == "gerund" else style, detail)]
        extra = self._beside_extra() if self.extras and self.chance.maybe(0.3) else []
        time = self._time() if self.chance.maybe(0.12) else []
        return [*self._happening(style, detail), *extra, *first, *time]

    def _brief(self) -> list[Item]:
        """What happens, in few words, with what stands by or when it is."""
        style = self.chance.pick(STYLES)
        more = self._beside_extra() if self.extras and self.chance.maybe(0.7) else self._time() if self.chance.maybe(0.6) else []
        return [*self._happening(style, 0), *more]

    def _together(self) -> list[Item]:
        """All actors under one name, doing what they have in common."""
        if len(self.actors) == 1:
            return self._event()
        looks = [self.scene.figure(tag).look for tag in self.actors]
        event = self.scene.plan.event
        if event == "group":
            return self._brief()
        joined = not shared_noun(looks, Chance("any")) or self.chance.maybe(0.35)
        subject = self._joined(0) if joined else self._group(self.actors, 1)
        deed = {"chase": "run", "follow": "walk", "drive": "drive", "above": "fly"}.get(event, "stand")
        self.claims.append(Claim("exist", subject.means))
        style = self.chance.pick(("simple", "progressive", "gerund", "there"))
        if event in ("throw", "kick"):
            rest: list[Item] = ["with", *self._name("t0", 0).items, *self._topic("during", "game", 0.3)]
            return self._sentence(subject, "play", rest, style)
        if event in ("play", "act"):
            music: list[Item] = [Mention("music", "other", topic="music")] if event == "play" else [Mention("fun", "notvisual")]
            return [*self._sentence(subject, "make" if event == "play" else "have", music, style), *self._place()]
        if event == "sit":
            return self._sentence(subject, "sit", ["together on", *self._name("t0", 1).items], style)
        if event == "drive":
            return [*self._sentence(subject, "drive", [], style), *self._way()]
        if event == "above":
            return self._sentence(subject, self._posture(subject.tags), ["in", self._sky()], style)
        place = self._way() if deed in ("run", "walk") else self._place()
        return [*self._sentence(subject, deed, ["together"] if self.chance.maybe(0.3) else [], style), *place]

    def _attire(self) -> list[Item]:
        """What one or two people wear."""
        people = [tag for tag in self.actors if self.scene.figure(tag).look.human]
        if not people or self.scene.plan.event == "group":
            return self._event()
        parts: list[list[Item]] = []
        chosen = self.chance.shuffled(people)[:2]
        named = [name_one(self.scene, tag, self.chance, 0, definite=self.chance.maybe(0.4)) for tag in chosen]
        self.order = len(chosen) == 2
        order = list(reversed(named)) if self.twist == "order" and self.order else named
        for tag, subject in zip(chosen, order, strict=True):
            look = self.scene.figure(tag).look
            traits = ["colour", "lower_colour"] if not look.hat or self.chance.maybe(0.5) else ["colour", "hat_colour"]
            clothes = [garment(look, (tag,), trait, self.chance) for trait in traits[: 1 if len(chosen) == 2 else 2]]
            style = "progressive" if self.chance.maybe(0.6) else "simple"
            on_head: list[Item] = []
            if len(chosen) == 1 and traits[1] == "hat_colour":
                on_head = ["on", Mention(f"{self._possessive((tag,))} head", "bodyparts", (tag,), "head")]
            worn: list[Item] = [clothes[0]] if len(clothes) == 1 else [clothes[0], "and", clothes[1]]
            parts.append([*subject.items, *conjugate("wear", style, False), *worn, *on_head])
            means = subject.means._replace(traits=(*subject.means.traits, ("colour", look.colour)))
            self.claims.append(Claim("exist", means))
        if len(parts) == 1:
            return parts[0] if self.chance.maybe(0.5) else [*parts[0], *self._place()]
        return [*parts[0], *self.chance.pick((["and"], [",", "and"], ["while"])), *parts[1]]

    def _aside(self) -> list[Item]:
        """Where something that stands by is."""
        who = self.actors if len(self.actors) < 3 or self.scene.plan.event == "group" else self.actors[:1]
        fitting = [tag for tag in self.extras if apart(self.scene, (tag,), who)] if self.scene.plan.event != "above" else []
        if not fitting:
            return self._event()
        extra = self.chance.pick(fitting)
        one = self._name(extra, 1)
        other = self._joined(0) if len(who) == 2 and self.scene.plan.event != "group" else self._named(who, 0)
        above = self.scene.figure(extra).look.kind in ("bird", "kite", "balloon") and self.scene.plan.deeds != ("fly",)
        relation = "above" if above else "left"
        first, second = (one, other) if spatially(self.scene, relation, one.tags, other.tags) else (other, one)
        style = self.chance.pick(("simple", "progressive", "gerund", "there"))
        items = self._relate(Fact(relation, first.tags, second.tags), first, second, style)
        return [*items, *self._place()] if self.chance.maybe(0.4) else items

    def _happening(self, style: str, detail: int) -> list[Item]:
        """A clause for each fact; two facts become two clauses, or the first alone."""
        if len(self.facts) == 1:
            return self._clause(self.facts[0], style, detail)
        facts = self.chance.shuffled(self.facts)
        subjects = [self._name(fact.subject[0], detail) for fact in facts]
        if self.chance.maybe(0.15):
            return self._clause(facts[0], style, detail, subjects[0])
        self.order = True
        if self.twist == "order":
            subjects.reverse()
        style = self.chance.pick(("simple", "progressive"))
        link: list[Item] = self.chance.pick((["while"], ["and"], [",", "and"]))
        return [*self._clause(facts[0], style, 0, subjects[0]), *link, *self._clause(facts[1], style, 0, subjects[1])]

    def _clause(self, fact: Fact, style: str, detail: int, subject: NounPhrase | None = None) -> list[Item]:
        subject = subject or self._named(fact.subject, detail)
        other = self._named(fact.object, detail) if fact.object else None
        human = all(self.scene.figure(tag).look.human for tag in fact.object)
        if fact.verb in ASYMMETRIC and other is not None and (fact.verb != "point" or human):
            self.order = True
            if self.twist == "order":
                subject, other = other, subject
        return self._relate(fact, subject, other, style)

    def _relate(self, fact: Fact, subject: NounPhrase, other: NounPhrase | None, style: str) -> list[Item]:
        """Say that `subject` does to `other` what the fact's verb means, in one of its ways."""
        way = self.chance.pick(WAYS[fact.verb])
        if fact.verb == "hold" and other is not None:
            kind = self.scene.figure(fact.object[0]).look.kind
            special = {"kite": Way("s", "fly"), "umbrella": Way("s", "stand", "under")}.get(kind)
            way = special if special is not None and self.chance.maybe(0.5) else way
        self.claims.append(Claim(fact.verb, subject.means, other.means if other else None))
        if way.subject == "o" and other is not None:
            subject, other = other, subject
        verb = self._posture(subject.tags) if way.verb == POSTURE else way.verb
        rest = self._rest(way.rest, fact, subject)
        if other is not None:
            rest += self._instrument(other) if fact.verb == "play" else other.items
        if fact.verb == "lead" and self.chance.maybe(0.4):
            rest += ["on", Mention("a leash", "other", ("leash",))]
        if fact.verb == "hold" and self.chance.maybe(0.2) and way.verb in ("hold", "carry"):
            rest += ["in", Mention(f"{self._possessive(fact.subject)} hand", "bodyparts", fact.subject, "hand")]
        return self._sentence(subject, verb, rest, style)

    def _sentence(self, subject: NounPhrase, verb: str, rest: list[Item], style: str) -> list[Item]:
        if style == "there":
            return ["there", "are" if subject.many else "is", *subject.items, *conjugate(verb, "gerund", subject.many), *rest]
        return [*subject.items, *conjugate(verb, style, subject.many), *rest]

    def _rest(self, words: str, fact: Fact, subject: NounPhrase) -> list[Item]:
        items: list[Item] = []
        for word in words.split():
            if word == "{thing}":
                items += self._name(fact.thing[0], 1).items
            elif word == "{arms}":
                both = self.chance.pick(("arms", "hands", "arms"))
                items.append(Mention(f"{self._possessive(subject.tags)} {both}", "bodyparts", subject.tags, "arms"))
            elif word == "{sky}":
                items.append(self._sky())
            elif word[0] == "{":
                name, type = TOPICS[word[1:-1]]
                items.append(Mention(name, type, topic=word[1:-1]))
            else:
                items.append(word)
        return items

    def _posture(self, tags: Tags) -> str:
        look = self.scene.figure(tags[0]).look
        type = type_of(look)
        airy = {"bird": ("fly", "fly"), "kite": ("fly", "float"), "balloon": ("float", "hover")}.get(look.kind)
        grounded = {"people": ("stand", "be"), "animals": ("stand", "be"), "vehicles": ("be park", "be")}.get(type, ("stand", "be"))
        if look.kind in ("flowers", "bench", "sofa", "table", "sandcastle", "boat"):
            grounded = ("be", "be")
        return self.chance.pick(airy or grounded)

    def _possessive(self, tags: Tags) -> str:
        if len(tags) > 1:
            return "their"
        return "his" if self.scene.figure(tags[0]).look.kind in ("man", "boy") else "her"

    def _instrument(self, instrument: NounPhrase) -> list[Item]:
        """One plays "the guitar" as well as "a red guitar"."""
        mention = instrument.items[0]
        assert isinstance(mention, Mention)
        words = mention.words.split()
        return [mention._replace(words=f"the {words[1]}") if len(words) == 2 and self.chance.maybe(0.4) else mention]

    def _name(self, tag: str, detail: int) -> NounPhrase:
        return name_one(self.scene, tag, self.chance, detail)

    def _named(self, tags: Tags, detail: int) -> NounPhrase:
        if len(tags) == 1:
            return self._name(tags[0], detail)
        looks = [self.scene.figure(tag).look for tag in tags]
        if len(tags) == 2 and (not shared_noun(looks, Chance("any")) or (looks[0] != looks[1] and self.chance.maybe(0.4))):
            return self._joined(detail)
        return self._group(tags, detail)

    def _group(self, tags: Tags, detail: int) -> NounPhrase:
        self.count = True
        more = self.chance.pick((-1, 1)) if len(tags) > 2 else 1
        return name_group(self.scene, tags, self.chance, detail, more if self.twist == "count" else 0)

    def _joined(self, detail: int) -> NounPhrase:
        """The two actors, each by name: "a man and a woman"."""
        first, second = (self._name(tag, detail) for tag in self.chance.shuffled(self.actors))
        kinds = tuple(dict.fromkeys((*first.means.kinds, *second.means.kinds)))
        means = first.means._replace(kinds=kinds, traits=(), count=2)
        return NounPhrase((*first.items, "and", *second.items), True, self.actors, means)

    def _place(self) -> list[Item]:
        motion = self.facts[0].verb in MOTION
        options = self.setting.ways if motion and self.chance.maybe(0.5) else self.chance.pick((self.setting.places, self.setting.places, self.setting.grounds))
        if self.scene.plan.setting == "pitch" and self.chance.maybe(0.15):
            return self._topic("in front of", "crowd", 1)
        return self._somewhere(options)

    def _way(self) -> list[Item]:
        return self._somewhere(self.setting.ways)

    def _somewhere(self, options: tuple[tuple[str, str], ...]) -> list[Item]:
        preposition, words = self.chance.pick(options)
        return [preposition, Mention(words, "scene", topic=words.split()[-1])]

    def _sky(self) -> Mention:
        if not self.setting.outdoors:
            return Mention("the room", "scene", topic="room")
        return Mention(self.chance.pick(("the sky", "the sky", "the evening sky" if self.scene.plan.setting in ("night", "savanna") else "the blue sky")), "scene", topic="sky")

    def _time(self) -> list[Item]:
        preposition, words = self.chance.pick(self.setting.times)
        return [preposition, Mention(words, "notvisual")]

    def _topic(self, before: str, topic: str, probability: float) -> list[Item]:
        if not self.chance.maybe(probability):
            return []
        words, type = TOPICS[topic]
        return [before, Mention(words, type, topic=topic)]

    def _beside_extra(self) -> list[Item]:
        tag = self.chance.pick(self.extras)
        extra = self._name(tag, 1)
        if self.scene.figure(tag).look.kind in ("bird", "kite", "balloon"):
            verb = conjugate(self._posture((tag,)), "gerund", False)
            return ["with", *extra.items, *verb, self.chance.pick(("overhead", "nearby"))]
        if self.chance.maybe(0.35):
            return ["with", *extra.items, "in", Mention("the background", "notvisual")]
        return [self.chance.pick(("near", "near", "close to", "not far from")), *extra.items]


def shapes_for(scene: Scene, chance: Chance) -> list[str]:
    """Five shapes: three of the event, the rest of what else there is to say."""
    rest = ["together", "attire", *(["aside", "aside"] if scene.plan.extras else []), "brief"]
    return chance.shuffled(["event", "event", "brief", *chance.shuffled(rest)[:2]])


def write_captions(scene: Scene, seed: int) -> list[Draft]:
    """Five captions of which no two read alike."""
    return [draft for draft, _ in _drafts(scene, seed)]


def _drafts(scene: Scene, seed: int) -> list[tuple[Draft, tuple[str, int]]]:
    """Captions with what is needed to write each again: its shape and the number of the try."""
    found: list[tuple[Draft, tuple[str, int]]] = []
    texts: set[str] = set()
    attempt = 0
    for shape in shapes_for(scene, Chance(seed, scene.id, "shapes")):
        while True:
            draft = Writer(scene, Chance(seed, scene.id, attempt)).write(shape)
            attempt += 1
            if draft.text not in texts:
                break
        texts.add(draft.text)
        found.append((draft, (shape, attempt - 1)))
    return found


def false_twins(scene: Scene, seed: int, twist: str) -> list[str | None]:
    """For each caption, the same words with roles exchanged or another count, where that makes it false."""
    twins: list[str | None] = []
    for draft, (shape, attempt) in _drafts(scene, seed):
        twin = Writer(scene, Chance(seed, scene.id, attempt), twist).write(shape)
        possible = draft.order if twist == "order" else draft.count
        false = not all(holds(scene, claim) for claim in twin.claims)
        twins.append(twin.text if possible and false and twin.text != draft.text else None)
    return twins
