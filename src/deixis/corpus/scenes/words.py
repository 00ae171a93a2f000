"""The grammar's smallest pieces: mentions, articles, verbs and the ways to say what happens."""

from __future__ import annotations

from typing import NamedTuple

from deixis.corpus.scenes.facts import Description, Tags


class Mention(NamedTuple):
    """Words of a caption that name something: figures or a part of them, a scene, or nothing one could point at."""

    words: str
    type: str
    tags: Tags = ()
    part: str = ""
    #: For what has no box: the chain's name within the image.
    topic: str = ""


Item = str | Mention


class NounPhrase(NamedTuple):
    items: tuple[Item, ...]
    many: bool
    tags: Tags
    means: Description


def with_article(words: str) -> str:
    return ("an " if words[0] in "aeiou" else "a ") + words


#: Lemma → third person, gerund, participle.
VERBS = {
    "be": ("is", "being", "been"),
    "carry": ("carries", "carrying", "carried"),
    "catch": ("catches", "catching", "caught"),
    "chase": ("chases", "chasing", "chased"),
    "cheer": ("cheers", "cheering", "cheered"),
    "drive": ("drives", "driving", "driven"),
    "flee": ("flees", "fleeing", "fled"),
    "float": ("floats", "floating", "floated"),
    "fly": ("flies", "flying", "flown"),
    "follow": ("follows", "following", "followed"),
    "gesture": ("gestures", "gesturing", "gestured"),
    "have": ("has", "having", "had"),
    "hold": ("holds", "holding", "held"),
    "hover": ("hovers", "hovering", "hovered"),
    "jump": ("jumps", "jumping", "jumped"),
    "kick": ("kicks", "kicking", "kicked"),
    "lead": ("leads", "leading", "led"),
    "leap": ("leaps", "leaping", "leapt"),
    "make": ("makes", "making", "made"),
    "park": ("parks", "parking", "parked"),
    "pass": ("passes", "passing", "passed"),
    "perform": ("performs", "performing", "performed"),
    "play": ("plays", "playing", "played"),
    "point": ("points", "pointing", "pointed"),
    "race": ("races", "racing", "raced"),
    "raise": ("raises", "raising", "raised"),
    "relax": ("relaxes", "relaxing", "relaxed"),
    "rest": ("rests", "resting", "rested"),
    "ride": ("rides", "riding", "ridden"),
    "run": ("runs", "running", "run"),
    "sit": ("sits", "sitting", "sat"),
    "stand": ("stands", "standing", "stood"),
    "stroll": ("strolls", "strolling", "strolled"),
    "throw": ("throws", "throwing", "thrown"),
    "toss": ("tosses", "tossing", "tossed"),
    "walk": ("walks", "walking", "walked"),
    "wear": ("wears", "wearing", "worn"),
}


def conjugate(verb: str, style: str, many: bool) -> list[str]:
    """A verb in a style: `simple`, `progressive` or `gerund`. "be X" is a passive, "be" alone has no gerund."""
    lemma, _, rest = verb.partition(" ")
    third, gerund, _ = VERBS[lemma]
    if lemma == "be":
        copula = "are" if many else "is"
        if not rest:
            return [] if style == "gerund" else [copula]
        participle = VERBS[rest][2]
        state = rest == "park"  # a car is parked, no one is parking it
        if style == "gerund":
            return [participle] if state else ["being", participle]
        return [copula, "being", participle] if style == "progressive" and not state else [copula, participle]
    if style == "gerund":
        return [gerund]
    if style == "progressive":
        return ["are" if many else "is", gerund]
    return [lemma if many else third]


class Way(NamedTuple):
    """One way to say a fact: which party is the subject, the verb, and the words before the other party.

    In `rest`, a word in braces is a mention of its own: what is thrown, or something that has no box.
    """

    subject: str
    verb: str
    rest: str = ""


#: A placeholder for the verb of posture: standing, parked, flying.
POSTURE = "posture"

WAYS: dict[str, tuple[Way, ...]] = {
    "chase": (
        Way("s", "chase"),
        Way("s", "run", "after"),
        Way("o", "run", "away from"),
        Way("o", "be chase", "by"),
        Way("s", "chase", "after"),
        Way("o", "flee", "from"),
    ),
    "follow": (
        Way("s", "follow"),
        Way("s", "walk", "behind"),
        Way("o", "walk", "ahead of"),
        Way("o", "be follow", "by"),
        Way("o", "lead"),
    ),
    "drive": (
        Way("s", "follow"),
        Way("s", "drive", "behind"),
        Way("o", "drive", "ahead of"),
        Way("o", "be follow", "by"),
    ),
    "throw": (
        Way("s", "throw", "{thing} to"),
        Way("s", "toss", "{thing} to"),
        Way("o", "catch", "{thing} from"),
        Way("s", "throw", "{thing} towards"),
    ),
    "kick": (Way("s", "kick", "{thing} to"), Way("s", "kick", "{thing} towards"), Way("s", "pass", "{thing} to")),
    "point": (Way("s", "point", "at"), Way("s", "point", "to"), Way("s", "gesture", "towards")),
    "left": (
        Way("s", POSTURE, "to the left of"),
        Way("o", POSTURE, "to the right of"),
        Way("s", POSTURE, "left of"),
        Way("o", POSTURE, "right of"),
        Way("s", POSTURE, "on the left side of"),
        Way("o", POSTURE, "on the right side of"),
    ),
    "front": (Way("s", POSTURE, "in front of"), Way("o", POSTURE, "behind")),
    "above": (
        Way("s", POSTURE, "above"),
        Way("o", POSTURE, "below"),
        Way("s", POSTURE, "higher than"),
        Way("o", POSTURE, "under"),
    ),
    "ride": (Way("s", "ride"), Way("o", "be ride", "by"), Way("s", "ride", "on")),
    "lead": (
        Way("s", "walk"),
        Way("o", "be walk", "by"),
        Way("o", "walk", "ahead of"),
    ),
    "seat": (Way("s", "sit", "on"), Way("s", "rest", "on"), Way("s", "relax", "on"), Way("s", "be", "on")),
    "play": (Way("s", "play"), Way("s", "play"), Way("s", "make", "{music} on"), Way("s", "perform", "on")),
    "hold": (Way("s", "hold"), Way("s", "carry")),
    "run": (Way("s", "run"), Way("s", "race"), Way("s", "run", "fast")),
    "walk": (Way("s", "walk"), Way("s", "stroll"), Way("s", "walk", "slowly")),
    "jump": (Way("s", "jump"), Way("s", "leap", "into {air}"), Way("s", "jump", "in {air}"), Way("s", "jump", "high")),
    "cheer": (Way("s", "raise", "{arms}"), Way("s", "cheer"), Way("s", "hold", "{arms} up")),
    "stand": (Way("s", "stand"), Way("s", "stand", "around"), Way("s", "stand", "still")),
    "sit": (Way("s", "sit"), Way("s", "sit", "still"), Way("s", "rest")),
    "fly": (Way("s", POSTURE), Way("s", POSTURE, "together")),
}

#: What has a name in captions but no box in the picture: the words, the type.
TOPICS = {
    "music": ("music", "other"),
    "air": ("the air", "other"),
    "game": ("a game", "other"),
    "crowd": ("a crowd", "people"),
}
