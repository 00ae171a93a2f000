"""Noun phrases: what captions call the people and things of a scene, with as much detail as asked for."""

from __future__ import annotations

from deixis.corpus.scenes.catalog import COLOUR_WORDS, KINDS, NAMED_BY, plural
from deixis.corpus.scenes.chance import Chance
from deixis.corpus.scenes.drawn_figures import Look
from deixis.corpus.scenes.facts import NUMBERS, Description, Tags, type_of
from deixis.corpus.scenes.staging import Scene
from deixis.corpus.scenes.words import Item, Mention, NounPhrase, with_article

SIZE_WORDS = {"big": ("big", "large"), "small": ("small", "little")}
HAT_WORDS = {"cap": ("cap", "hat"), "hat": ("hat",), "beanie": ("knit hat", "hat", "beanie")}


def name_one(scene: Scene, tag: str, chance: Chance, detail: int, definite: bool = False) -> NounPhrase:
    """A single person or thing with a name that fits no other in the scene."""
    look = scene.figure(tag).look
    if look.human:
        return _person(scene, tag, chance, detail, definite)
    kind = KINDS[look.kind]
    noun = kind.nouns[0] if chance.maybe(0.8) else chance.pick(kind.nouns)
    traits: dict[str, object] = {}
    if look.size and chance.maybe(0.8):
        traits["size"] = look.size
    if kind.said and chance.maybe((0.35, 0.75, 0.95)[detail]):
        traits["colour"] = look.colour
    if _ambiguous(scene, tag, noun, traits):
        noun = kind.nouns[0]
        traits |= {"colour": look.colour} | ({"size": look.size} if look.size else {})
    words = [chance.pick(SIZE_WORDS[look.size])] if "size" in traits else []
    if "colour" in traits and kind.said:
        words.append(COLOUR_WORDS.get((look.kind, look.colour), look.colour))
    words.append(noun)
    many = look.kind == "flowers"
    text = " ".join(words)
    text = f"the {text}" if definite else text if many else with_article(text)
    means = Description(NAMED_BY[noun], tuple(traits.items()))
    return NounPhrase((Mention(text, kind.type, (tag,)),), many, (tag,), means)


def _ambiguous(scene: Scene, tag: str, noun: str, traits: dict[str, object]) -> bool:
    means = Description(NAMED_BY[noun], tuple(traits.items()))
    return any(other != tag and means.fits_one(scene.figures[index].look) for other, index in scene.tags.items())


def _person(scene: Scene, tag: str, chance: Chance, detail: int, definite: bool) -> NounPhrase:
    look = scene.figure(tag).look
    kind = KINDS[look.kind]
    noun = kind.nouns[0] if chance.maybe(0.7) else chance.pick(kind.nouns)
    options = [
        "colour",
        "lower_colour",
        *(["hat_colour"] * 2 if look.hat else []),
        "hair",
        *(["beard"] if look.beard else []),
    ]
    chosen = set(chance.shuffled(options)[:detail])
    traits = {trait: getattr(look, trait) for trait in TRAITS if trait in chosen}
    if _ambiguous(scene, tag, noun, traits):
        noun = kind.nouns[0]
        if _ambiguous(scene, tag, noun, traits):
            traits["colour"] = look.colour
    young = look.kind in ("boy", "girl") and noun == kind.nouns[0] and chance.maybe(0.3)
    head = f"{chance.pick(('little', 'young'))} {noun}" if young else noun
    items: list[Item] = [Mention(f"the {head}" if definite else with_article(head), "people", (tag,))]
    body = [trait for trait in ("hair", "beard") if trait in traits]
    worn = [trait for trait in ("colour", "hat_colour", "lower_colour") if trait in traits]
    if body:
        items += ["with", *_listed([_body_part(look, tag, trait, chance) for trait in body])]
    if worn:
        garments: list[Item] = [garment(look, (tag,), trait, chance) for trait in worn]
        if worn == ["colour"] and chance.maybe(0.15):
            garments = [Mention(look.colour, "clothing", (tag,), "shirt")]
            items += ["dressed in", *garments]
        else:
            items += [chance.pick(("in", "in", "wearing")), *_listed(garments)]
    if "lower_colour" in traits:
        traits["lower"] = look.lower
    return NounPhrase(tuple(items), False, (tag,), Description(NAMED_BY[noun], tuple(traits.items())))


#: In the order in which phrases list them.
TRAITS = ("hair", "beard", "colour", "hat_colour", "lower_colour")


def _listed(items: list[Item]) -> list[Item]:
    """a; a and b; a , b and c."""
    if len(items) == 1:
        return items
    listed: list[Item] = []
    for item in items[:-1]:
        listed += [item, ","]
    return [*listed[:-1], "and", items[-1]]


def _body_part(look: Look, tag: str, trait: str, chance: Chance) -> Mention:
    if trait == "beard":
        return Mention("a beard", "bodyparts", (tag,), "beard")
    length = "long " if look.kind in ("woman", "girl") and chance.maybe(0.6) else ""
    return Mention(f"{length}{look.hair} hair", "bodyparts", (tag,), "hair")


def garment(look: Look, tags: Tags, trait: str, chance: Chance) -> Mention:
    """A piece of clothing of one person, or the same piece of several."""
    many = len(tags) > 1
    if trait == "colour":
        noun, colour, part = chance.pick(("shirt", "shirt", "t-shirt")), look.colour, "shirt"
    elif trait == "hat_colour":
        noun, colour, part = chance.pick(HAT_WORDS[look.hat]), look.hat_colour, "hat"
    else:
        noun, colour, part = look.lower, look.lower_colour, "lower"
        if noun == "trousers":
            noun = chance.pick(("jeans", "pants") if colour == "blue" else ("pants", "trousers"))
    words = f"{colour} {noun}"
    if many and noun[-1] != "s":
        words += "s"
    elif noun[-1] != "s":
        words = with_article(words)
    return Mention(words, "clothing", tags, part)


def name_group(scene: Scene, tags: Tags, chance: Chance, detail: int, more: int = 0) -> NounPhrase:
    """Several together, counted; `more` falsifies the count by that many."""
    looks = [scene.figure(tag).look for tag in tags]
    noun = _shared_noun(looks, chance)
    count = len(looks) + more
    words = [NUMBERS[count]]
    same = len({look.colour for look in looks}) == 1 and len({look.kind for look in looks}) == 1
    coloured = same and not looks[0].human and KINDS[looks[0].kind].said and chance.maybe((0.3, 0.7, 0.9)[detail])
    colour = COLOUR_WORDS.get((looks[0].kind, looks[0].colour), looks[0].colour)
    if coloured:
        words.append(colour)
    bundled, bundle = chance.maybe(0.22), chance.pick(("pair", "couple"))
    if bundled:
        words = ["a", bundle, "of", *words[1:]] if count == 2 else ["a", "group", "of", *words]
    text = " ".join([*words, plural(noun)])
    items: list[Item] = [Mention(text, type_of(looks[0]), tags)]
    traits = (("colour", looks[0].colour),) if coloured else ()
    if same and looks[0].human and chance.maybe((0.3, 0.7, 0.9)[detail]):
        items += [chance.pick(("in", "wearing")), garment(looks[0], tags, "colour", chance)]
        traits = (("colour", looks[0].colour),)
    return NounPhrase(tuple(items), True, tags, Description(NAMED_BY[noun], traits, count))


def have_noun(looks: list[Look]) -> bool:
    """Whether there is a noun that names them all."""
    return len({look.kind for look in looks}) == 1 or _general_noun(looks) != ""


def _general_noun(looks: list[Look]) -> str:
    types = {type_of(look) for look in looks}
    return GENERAL.get(types.pop(), "") if len(types) == 1 else ""


GENERAL = {"people": "person", "animals": "animal", "vehicles": "vehicle"}


def _shared_noun(looks: list[Look], chance: Chance) -> str:
    kinds = {look.kind for look in looks}
    if len(kinds) == 1:
        nouns = KINDS[looks[0].kind].nouns
        return nouns[0] if chance.maybe(0.75) else chance.pick(nouns)
    return chance.pick(("child", "kid")) if kinds == {"boy", "girl"} else _general_noun(looks)
