"""Clauses: who does what to whom, in one of several ways to say it, with agreement of number."""

from __future__ import annotations

from deixis.corpus.scenes.catalog import SETTINGS, SKIES
from deixis.corpus.scenes.chance import Chance
from deixis.corpus.scenes.drawn_figures import Look
from deixis.corpus.scenes.facts import ASYMMETRIC, Claim, Fact, Tags, facts_of, type_of
from deixis.corpus.scenes.naming import have_noun, name_group, name_one
from deixis.corpus.scenes.staging import Scene
from deixis.corpus.scenes.words import POSTURE, TOPICS, WAYS, Item, Mention, NounPhrase, Way, conjugate

#: How things in the air are there.
AIRY = {"bird": ("fly", "fly"), "kite": ("fly", "float"), "balloon": ("float", "hover")}
UPRIGHT = ("tree", "palm", "pine", "house", "barn", "snowman")
#: Poses of people and animals that do not stand still.
MOVING = ("run", "walk", "jump", "ride", "cycle", "lead", "kick")
#: Ways to say what someone does with a thing of that kind in the hand.
HANDLING = {"kite": Way("s", "fly"), "umbrella": Way("s", "stand", "under")}


class Clauses:
    """Says things about one scene and keeps account of what was claimed.

    `twist` is "order" to exchange who is who, "count" to miscount, or nothing. Exchanging and miscounting draw the same
    chances as telling the truth, so that a twin differs in nothing else.
    """

    def __init__(self, scene: Scene, chance: Chance, twist: str) -> None:
        self.scene, self.chance, self.twist = scene, chance, twist
        self.facts = facts_of(scene.plan)
        self.actors = tuple(tag for tag in scene.tags if tag[0] == "a")
        self.claims: list[Claim] = []
        #: Whether anything said so far could be exchanged or miscounted.
        self.ordered = self.counted = False

    def happening(self, style: str, detail: int) -> list[Item]:
        """A clause for each fact; two facts become two clauses, or the first alone."""
        if len(self.facts) == 1:
            return self._clause(self.facts[0], style, detail)
        facts = self.chance.shuffled(self.facts)
        subjects = [self.one(fact.subject[0], detail) for fact in facts]
        if self.chance.maybe(0.15):
            return self._clause(facts[0], style, detail, subjects[0])
        self.ordered = True
        if self.twist == "order":
            subjects.reverse()
        style = self.chance.pick(("simple", "progressive"))
        link: list[Item] = self.chance.pick((["while"], ["and"], [",", "and"]))
        return [*self._clause(facts[0], style, 0, subjects[0]), *link, *self._clause(facts[1], style, 0, subjects[1])]

    def _clause(self, fact: Fact, style: str, detail: int, subject: NounPhrase | None = None) -> list[Item]:
        subject = subject or self.named(fact.subject, detail)
        other = self.named(fact.object, detail) if fact.object else None
        # A tree never points back at a man: such an exchange would be no more than nonsense.
        human = all(self.scene.figure(tag).look.human for tag in fact.object)
        if fact.verb in ASYMMETRIC and other is not None and (fact.verb != "point" or human):
            self.ordered = True
            if self.twist == "order":
                subject, other = other, subject
        return self.relate(fact, subject, other, style)

    def relate(self, fact: Fact, subject: NounPhrase, other: NounPhrase | None, style: str) -> list[Item]:
        """Say that `subject` does to `other` what the fact's verb means."""
        way = self.chance.pick(WAYS[fact.verb])
        if fact.verb == "hold" and self.chance.maybe(0.5):
            way = HANDLING.get(self.scene.figure(fact.object[0]).look.kind, way)
        self.claims.append(Claim(fact.verb, subject.means, other.means if other else None))
        if way.subject == "o" and other is not None:
            subject, other = other, subject
        verb = self.posture(subject.tags) if way.verb == POSTURE else way.verb
        rest = self._rest(way.rest, fact, subject)
        if other is not None:
            rest += self._instrument(other) if way.verb == "play" else other.items
        if fact.verb == "lead" and way.subject == "s" and self.chance.maybe(0.5):
            rest += ["on", Mention("a leash", "other", ("leash",))]
        if fact.verb == "hold" and way.verb in ("hold", "carry") and self.chance.maybe(0.2):
            rest += ["in", self.own(subject.tags, "hand", "hand")]
        return self.sentence(subject, verb, rest, style)

    def sentence(self, subject: NounPhrase, verb: str, rest: list[Item], style: str) -> list[Item]:
        """Subject, verb and the rest; `style` is one of `conjugate`, or `there` for "there is …"."""
        if style != "there":
            return [*subject.items, *conjugate(verb, style, subject.many), *rest]
        # A list agrees with its first member: there is a dog and a cat. So does a group of people.
        mentions = [item for item in subject.items if isinstance(item, Mention)]
        listed = sum(not mention.part for mention in mentions) > 1
        single = listed or mentions[0].words.startswith(("a group", "a pair")) or not subject.many
        return ["there", "is" if single else "are", *subject.items, *conjugate(verb, "gerund", subject.many), *rest]

    def _rest(self, words: str, fact: Fact, subject: NounPhrase) -> list[Item]:
        """The words of a way between verb and object, with the mentions they call for."""
        items: list[Item] = []
        for word in words.split():
            if word == "{thing}":
                items += self.one(fact.thing[0], 1).items
            elif word == "{arms}":
                items.append(self.own(subject.tags, self.chance.pick(("arms", "hands", "arms")), "arms"))
            elif word == "{sky}":
                items.append(self.sky())
            elif word[0] == "{":
                items.append(topic(word[1:-1]))
            else:
                items.append(word)
        return items

    def posture(self, tags: Tags) -> str:
        """The verb for how someone or something is there."""
        figure = self.scene.figure(tags[0])
        kind, type = figure.look.kind, type_of(figure.look)
        options: tuple[str, ...] = ("stand", "be") if kind in UPRIGHT else ("be",)
        if kind in AIRY:
            kinds = [self.scene.figure(tag).look.kind for tag in tags]
            options = tuple(verb for verb in AIRY[kind] if all(verb in AIRY[other] for other in kinds)) or options
        elif type in ("people", "animals") and figure.pose not in MOVING:
            options = ("sit", "be") if figure.pose == "sit" else ("stand", "be")
        elif type == "vehicles" and kind != "boat" and self.scene.plan.event not in ("drive", "ride"):
            options = ("be park", "be")
        return self.chance.pick(options)

    def own(self, tags: Tags, word: str, part: str) -> Mention:
        """A part of someone's body, as theirs."""
        kind = self.scene.figure(tags[0]).look.kind
        whose = "their" if len(tags) > 1 else "his" if kind in ("man", "boy") else "her"
        return Mention(f"{whose} {word}", "bodyparts", tags, part)

    def _instrument(self, instrument: NounPhrase) -> list[Item]:
        """One plays "the guitar" as well as "a guitar"."""
        return [
            item._replace(words=f"the {item.words.split()[1]}")
            if isinstance(item, Mention) and item.words.count(" ") == 1 and self.chance.maybe(0.4)
            else item
            for item in instrument.items
        ]

    def one(self, tag: str, detail: int) -> NounPhrase:
        return name_one(self.scene, tag, self.chance, detail)

    def named(self, tags: Tags, detail: int) -> NounPhrase:
        """One, or several together under one noun or as a list of two."""
        if len(tags) == 1:
            return self.one(tags[0], detail)
        looks = [self.scene.figure(tag).look for tag in tags]
        if len(tags) == 2 and (not have_noun(looks) or (_unlike(*looks) and self.chance.maybe(0.4))):
            return self.both(detail)
        return self.group(tags, detail)

    def group(self, tags: Tags, detail: int) -> NounPhrase:
        self.counted = True
        # One of two is there as well, so "a dog" would not be false of two dogs.
        more = self.chance.pick((-1, 1)) if len(tags) > 2 else 1
        return name_group(self.scene, tags, self.chance, detail, more if self.twist == "count" else 0)

    def both(self, detail: int) -> NounPhrase:
        """The two actors, each by name: "a man and a woman"."""
        first, second = (self.one(tag, detail) for tag in self.chance.shuffled(self.actors))
        kinds = tuple(dict.fromkeys((*first.means.kinds, *second.means.kinds)))
        means = first.means._replace(kinds=kinds, traits=(), number=2)
        return NounPhrase((*first.items, "and", *second.items), True, self.actors, means)

    def sky(self) -> Mention:
        if not SETTINGS[self.scene.plan.setting].outdoors:
            return Mention("the room", "scene", topic="place")
        colour = SKIES[self.scene.plan.conditions]
        return Mention(self.chance.pick(("the sky", "the sky", f"the {colour} sky")), "scene", topic="sky")


def _unlike(one: Look, other: Look) -> bool:
    """Whether two differ in what their names say."""
    return (one.kind, one.colour, one.size) != (other.kind, other.colour, other.size)


def topic(name: str) -> Mention:
    words, type = TOPICS[name]
    return Mention(words, type, topic=name)
