"""False captions: a caption of a picture with one thing in it changed, checked against the picture's other captions.

Four kinds are made, by word lists alone:

- colour: "a red bus" → "a yellow bus";
- number: "two dogs" → "three dogs";
- attribute: "a small dog" → "a large dog";
- role: the words stay and change places. Two colours or attributes ("a man in a red shirt and a woman in a blue
  dress", "a black dog chases a brown dog"), or two people or animals of whom one does something to the other ("a man
  carries a child") or has something of its own ("a man in a red shirt and a woman").

`deixis.base` learns from them; `deixis.metrics.caption_twins` measures with them; `deixis.adapters.changed_sentences`
asks whether one fits a picture better than what somebody searched for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from deixis.text.plurals import plural, singular

Tokens = tuple[str, ...]
Kind = Literal["colour", "number", "attribute", "role"]
KINDS: tuple[Kind, ...] = ("colour", "number", "attribute", "role")

#: Colours that people call by each other's names are one group, and never take each other's place.
COLOUR_GROUPS: tuple[tuple[str, ...], ...] = (
    ("red", "maroon"),
    ("blue",),
    ("green",),
    ("yellow",),
    ("orange",),
    ("purple",),
    ("pink",),
    ("brown", "tan", "beige"),
    ("black",),
    ("white",),
    ("gray", "grey", "silver"),
)
#: Pairs of groups, by their first colour, that are often confused.
SIMILAR = frozenset(
    frozenset(pair.split())
    for pair in (
        "red orange",
        "red pink",
        "yellow orange",
        "blue purple",
        "purple pink",
        "black gray",
        "white gray",
        "brown orange",
        "brown yellow",
    )
)
_GROUP = {colour: group[0] for group in COLOUR_GROUPS for colour in group}
#: What a new colour is drawn from: the first of each group, about as often as captions name it.
_COLOUR_SHARES = {
    "red": 16,
    "blue": 16,
    "green": 9,
    "yellow": 9,
    "orange": 5,
    "purple": 3,
    "pink": 4,
    "brown": 9,
    "black": 17,
    "white": 20,
    "gray": 3,
}

NUMBERS = ("two", "three", "four", "five", "six")
_DIGITS = {"2": "two", "3": "three", "4": "four", "5": "five", "6": "six", "couple": "two", "pair": "two"}
#: Words that leave the number open.
_NO_NUMBER = "several many some group multiple various bunch few crowd numerous"
_ANY_NUMBER = frozenset(_NO_NUMBER.split())

#: Attributes that exclude each other: each of one side may be exchanged for each of the other.
OPPOSITES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("big", "large", "huge"), ("small", "little", "tiny")),
    (("young",), ("old", "older", "elderly")),
    (("tall", "long"), ("short",)),
    (("open",), ("closed",)),
    (("empty",), ("full", "crowded", "busy")),
    (("wet",), ("dry",)),
    (("wooden", "wood"), ("metal", "stone", "brick", "concrete", "plastic")),
    (("clean",), ("dirty", "muddy")),
    (("bright", "sunny"), ("dark", "cloudy")),
    (("snowy", "snow-covered"), ("grassy", "sandy", "rocky")),
    (("fluffy", "furry", "hairy"), ("bald", "smooth")),
    (("striped",), ("plaid", "checkered")),
    (("male",), ("female",)),
    (("standing",), ("sitting", "lying", "laying")),
    (("stands",), ("sits", "lies")),
    (("indoor", "indoors", "inside"), ("outdoor", "outdoors", "outside")),
    (("shirtless", "barefoot"), ("uniformed", "costumed")),
)
_OPPOSITE = {word: other for pair in OPPOSITES for side, other in (pair, pair[::-1]) for word in side}
_SIDE = {word: side for pair in OPPOSITES for side in pair for word in side}
_POSTURES = frozenset({"standing", "stands", "sitting", "sits", "lying", "lies", "laying"})
#: Attributes before a noun, which two nouns can exchange.
_MODIFIERS = frozenset(_GROUP) | frozenset(_OPPOSITE) - _POSTURES - {"inside", "outside", "indoors", "outdoors"}

_SINGULAR = """man woman boy girl child person kid baby toddler guy lady player adult mother father mom dad bride groom
    cowboy skier surfer biker skateboarder snowboarder cyclist soldier officer dog cat horse cow elephant zebra giraffe
    bird sheep bear puppy kitten goat duck monkey pony lamb calf infant teenager husband wife son daughter brother
    sister batter catcher umpire pitcher"""
_PLURAL = "men women boys girls children people kids dogs cats horses cows elephants zebras giraffes birds players"
#: People and animals, who can do to each other what is done to them.
ANIMATE = frozenset(f"{_SINGULAR} {_PLURAL}".split())
_MUTUAL = """and with alongside among beside between by close near next together accompany embrace embracing face facing
    fight fighting hug hugging hugs kiss kissing kisses meet meeting touch touching playing play plays other another
    against or around at talking talks wrestling wrestle posing pose"""
#: Relations that hold both ways.
MUTUAL = frozenset(_MUTUAL.split())
_ONE_WAY = """bites biting brushing carries carrying catches catching chased chases chasing feeding feeds followed
    following follows grabbing grabs held helping helps holding holds kicking kicks leading leads licking
    licks lifting lifts pets petting pulled pulling pulls pushed pushes pushing rides riding sniffing sniffs
    stares staring tackled tackles tackling washing watched watches watching"""
#: Relations that do not, whatever else is said.
ONE_WAY = frozenset(_ONE_WAY.split())
#: Words between two things of one name that say something different of each.
_DIFFERENTLY = ONE_WAY | {"after", "behind", "front", "over", "under", "while", "who"}
_CLOTHES = """apron backpack bikini cap clothes clothing coat costume dress glasses gloves goggles gown hat headband
    helmet hoodie jacket jeans jersey mask outfit pants robe scarf shirt shirts shorts skirt suit sunglasses sweater
    sweatshirt swimsuit t-shirt tie top tuxedo umbrella uniform vest"""
CLOTHES = frozenset(_CLOTHES.split())
_WEARING = frozenset({"in", "wearing", "wears", "with", "dressed"})
#: What one of two people does alone.
_DOES_ALONE = """carries carrying cutting drinking eating feeding hitting holding holds kicking pushing reading rides
    riding smoking swinging throwing throws"""
_ALONE = frozenset(_DOES_ALONE.split())
#: Where one of two people or animals is, if the other is somewhere else.
_PLACES = frozenset({"on", "in", "under", "behind", "inside", "atop"})
_IN_A_GAME = frozenset({"batter", "catcher", "umpire", "pitcher"})
#: Who somebody is, as far as a word says it: sex and age. Words that do not say it may be about the same person.
_PERSONS = {
    **dict.fromkeys(("man", "guy", "men", "father", "dad", "groom", "cowboy", "husband"), ("male", "adult")),
    **dict.fromkeys(("woman", "lady", "women", "mother", "mom", "bride", "wife"), ("female", "adult")),
    **dict.fromkeys(("boy", "boys", "son"), ("male", "young")),
    **dict.fromkeys(("girl", "girls", "daughter"), ("female", "young")),
    **dict.fromkeys(("child", "kid", "baby", "infant", "toddler", "children", "kids", "teenager"), ("", "young")),
    **dict.fromkeys(("adult",), ("", "adult")),
    **dict.fromkeys(("person", "player", "people", "players", "skier", "surfer", "biker"), ("", "")),
    **dict.fromkeys(("brother",), ("male", "")),
    **dict.fromkeys(("sister",), ("female", "")),
    **dict.fromkeys(("skateboarder", "snowboarder", "cyclist", "soldier", "officer"), ("", "")),
}
#: Things of which a caption that names one would name two.
_COUNTED = ANIMATE | frozenset({"bus", "train", "truck", "plane", "airplane", "motorcycle", "boat", "skier", "surfer"})
_DETERMINERS = frozenset({"a", "an", "the", "his", "her", "its", "their", "this", "that", "one", "another", "some"})
_AFTER = "and or in on at with of to by from is are was while as that which for near over under into it"
#: Words that follow a colour which is not before a noun.
_NOT_NOUNS = frozenset(_AFTER.split())


class FalseCaption(NamedTuple):
    kind: Kind
    tokens: Tokens
    #: The word that was changed and what it became; of a role, the two that changed places.
    before: str
    after: str


#: Of a word after a colour, how often each colour, by the first of its group, was before it.
ColourCounts = Mapping[str, Mapping[str, int]]


def colour_counts(captions: Iterable[Tokens]) -> ColourCounts:
    """Count the colours of things in captions, so that false colours can be likely ones: no pink dogs."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for tokens in captions:
        for colour, noun in pairwise(tokens):
            if colour in _GROUP:
                counts[noun][_GROUP[colour]] += 1
    return counts


def false_captions(
    tokens: Tokens, others: Sequence[Tokens], random: np.random.Generator, counts: ColourCounts | None = None
) -> list[FalseCaption]:
    """At most one false caption of each kind and changed word of a caption.

    Args:
        tokens: lower-case tokens.
        others: all captions of the picture; what one of them says is not called false.
        random: draws colours, numbers and attributes where there is a choice.
        counts: of `colour_counts`; without them all things have the same colours.
    """
    mentioned = {token for other in (tokens, *others) for token in other}
    return [
        *_colours(tokens, mentioned, random, counts or {}),
        *_numbers(tokens, mentioned, random),
        *_attributes(tokens, mentioned, random),
        *_modifier_exchanges(tokens, others),
        *_clothes_exchanges(tokens, others),
        *_party_exchanges(tokens, others),
    ]


def every_change(tokens: Tokens) -> list[FalseCaption]:
    """What a sentence becomes by one change, where nothing else is known of the picture.

    Every other colour in each place; otherwise as `false_captions`, which draws one.
    """
    others = _other_colours(set(tokens))
    colours = [
        FalseCaption("colour", _with_word(tokens, index, colour), tokens[index], colour)
        for index in _coloured(tokens)
        for colour in others
    ]
    rest = false_captions(tokens, [], np.random.default_rng(0))
    return colours + [change for change in rest if change.kind != "colour"]


def _colours(
    tokens: Tokens, mentioned: set[str], random: np.random.Generator, counts: ColourCounts
) -> Iterator[FalseCaption]:
    allowed = _other_colours(mentioned)
    if not allowed:
        return
    for index in _coloured(tokens):
        known = counts.get(tokens[index + 1], {})
        shares = np.array([known.get(colour, 0) + _COLOUR_SHARES[colour] / 100 for colour in allowed])
        new = allowed[random.choice(len(allowed), p=shares / shares.sum())]
        yield FalseCaption("colour", _with_word(tokens, index, new), tokens[index], new)


def _coloured(tokens: Tokens) -> list[int]:
    """The places of colours that belong to a noun and stand alone."""
    return [
        index
        for index, token in enumerate(tokens)
        if token in _GROUP and _before_noun(tokens, index) and not _of_two_colours(tokens, index)
    ]


def _other_colours(mentioned: set[str]) -> list[str]:
    """The colours that are not mentioned and not confused with any that is."""
    groups = {_GROUP[word] for word in mentioned if word in _GROUP}
    return [
        colour
        for colour in _COLOUR_SHARES
        if colour not in groups and not any(frozenset((colour, group)) in SIMILAR for group in groups)
    ]


def _numbers(tokens: Tokens, mentioned: set[str], random: np.random.Generator) -> Iterator[FalseCaption]:
    numbers = {word for word in mentioned if word in NUMBERS} | {_DIGITS[word] for word in mentioned if word in _DIGITS}
    for index, token in enumerate(tokens):
        # A picture whose captions give two numbers has two kinds of things, or people who disagree.
        if token in NUMBERS and numbers == {token} and index + 1 < len(tokens):
            near = [other for other in NUMBERS if 0 < abs(NUMBERS.index(other) - NUMBERS.index(token)) <= 2]
            new = near[random.integers(len(near))]
            yield FalseCaption("number", _with_word(tokens, index, new), token, new)
        if token == "two" and numbers == {"two"}:
            yield from _one_and_two(tokens, index, mentioned, "two", "a", singular)
        elif token in ("a", "an") and not numbers:
            yield from _one_and_two(tokens, index, mentioned, "a", "two", plural)
            return


def _one_and_two(
    tokens: Tokens, index: int, mentioned: set[str], before: str, after: str, change: Callable[[str], str]
) -> Iterator[FalseCaption]:
    """ "two dogs are running" as "a dog is running", and the reverse, where nothing else in the sentence changes."""
    noun_place = index + 1
    while noun_place < len(tokens) and tokens[noun_place] in _MODIFIERS:
        noun_place += 1
    if noun_place + 1 >= len(tokens):
        return
    noun, following = tokens[noun_place], tokens[noun_place + 1]
    new = change(noun)
    verbs = {"is": "are", "was": "were"} if after == "two" else {"are": "is", "were": "was"}
    goes_on = following in verbs or following.endswith("ing") or following in _NOT_NOUNS - {"is", "are", "was", "and"}
    if not noun.isalpha() or new == noun or new in mentioned or following == "of" or not goes_on:
        return
    if mentioned & _ANY_NUMBER or (after == "two" and noun not in _COUNTED):
        return
    changed = (*tokens[:noun_place], new, verbs.get(following, following), *tokens[noun_place + 2 :])
    yield FalseCaption("number", _with_word(changed, index, after), before, after)


def _attributes(tokens: Tokens, mentioned: set[str], random: np.random.Generator) -> Iterator[FalseCaption]:
    for index, token in enumerate(tokens):
        opposite = _OPPOSITE.get(token)
        if opposite is None or mentioned & set(opposite):
            continue
        new = opposite[random.integers(len(opposite))]
        yield FalseCaption("attribute", _with_word(tokens, index, new), token, new)


def _modifier_exchanges(tokens: Tokens, others: Sequence[Tokens]) -> Iterator[FalseCaption]:
    """Two colours, or two attributes of one kind, that belong to different nouns, in each other's place.

    Also of two nouns that are equal, if they do different things: "a black dog chases a white dog".
    """
    places = [
        index
        for index, token in enumerate(tokens)
        if token in _MODIFIERS
        and (_before_noun(tokens, index) or _worn(tokens, index))
        and not _of_two_colours(tokens, index)
    ]
    pairs_of_others = {pair for other in others for pair in pairwise(other)}
    for first, second in combinations(places, 2):
        one, two = tokens[first], tokens[second]
        if not _comparable(one, two):
            continue
        noun, alone = _noun(tokens, first), [_worn(tokens, index) for index in (first, second)]
        if all(alone):
            noun, second_noun = (tokens[index - 2] for index in (first, second))
        else:
            second_noun = "" if any(alone) else _noun(tokens, second)
        if second_noun in (noun, "one", "another", "other"):
            differ = noun in ANIMATE and _DIFFERENTLY & set(tokens[first + 1 : second])
            if not differ or any(_order(other, two, one) for other in others):
                continue
        else:
            # What another caption says of these nouns, or of what somebody is in, is not false.
            new_places = ((first, two, alone[0]), (second, one, alone[1]))
            pairs = pairs_of_others | set(pairwise(tokens))
            if any(
                ("in", new) in pairs_of_others if worn else (new, tokens[index + 1]) in pairs
                for index, new, worn in new_places
            ):
                continue
        yield FalseCaption("role", _with_word(_with_word(tokens, first, two), second, one), one, two)


def _comparable(one: str, two: str) -> bool:
    if one in _GROUP and two in _GROUP:
        return _GROUP[one] != _GROUP[two] and frozenset((_GROUP[one], _GROUP[two])) not in SIMILAR
    return one in _OPPOSITE and two in _OPPOSITE[one]


def _party_exchanges(tokens: Tokens, others: Sequence[Tokens]) -> Iterator[FalseCaption]:
    """Two people or animals in each other's place: one of them does something to the other, or has something alone."""
    places = [index for index, token in enumerate(tokens) if token in ANIMATE]
    for first, second in pairwise(places):
        if tokens.count(tokens[first]) == tokens.count(tokens[second]) == 1:
            yield from _party_exchange(tokens, first, second, others)


def _party_exchange(tokens: Tokens, first: int, second: int, others: Sequence[Tokens]) -> Iterator[FalseCaption]:
    one, two = tokens[first], tokens[second]
    if not _exclusive(one, two) or (one in _PLURAL.split()) != (two in _PLURAL.split()):
        return
    between = [token for token in tokens[first + 1 : second] if token.isalpha() and token not in _DETERMINERS]
    between = [token for token in between if token not in _MODIFIERS]
    things = _own_things(tokens, first, second), _own_things(tokens, second, len(tokens))
    verbs = ONE_WAY & set(between)
    one_way = bool(between) and (bool(verbs) or not MUTUAL & set(between))
    # What follows the second may be said of both ("a man and a woman in hats"), but not "in a hat".
    single = things[1] - things[0] if {"a", "an"} & set(tokens[second + 2 : second + 4]) else set()
    if not one_way and not things[0] - things[1] and not single:
        return
    # "a woman … a man" in another caption may say the same the other way round, "held by a man" if it has the verb.
    reversed_captions = [other for other in others if _order(other, two, one)]
    stems = {verb[:4] for verb in verbs} | ({"held", "hold"} if {"held", "holds", "holding"} & verbs else set())
    same_verb = any(not stems or stems & {word[:4] for word in other} for other in reversed_captions)
    if one_way and not things[0] - ONE_WAY and same_verb:
        return
    # What another caption says of them is not false.
    if any(_has_own(other, two, things[0]) or _has_own(other, one, things[1]) for other in others):
        return
    yield FalseCaption("role", _with_word(_with_word(tokens, first, two), second, one), one, two)


def _clothes_exchanges(tokens: Tokens, others: Sequence[Tokens]) -> Iterator[FalseCaption]:
    """What two people wear in each other's place: "a man in a hat and a woman in a dress"."""
    people = [index for index, token in enumerate(tokens) if token in ANIMATE]
    if len(people) != 2:
        return
    first, second = people
    parts = [
        [index for index in range(start + 1, min(end, start + 7)) if tokens[index] in CLOTHES]
        for start, end in ((first, second), (second, len(tokens)))
    ]
    if any(len(part) != 1 for part in parts):
        return
    (one_place,), (two_place,) = parts
    one, two = tokens[one_place], tokens[two_place]
    worn = all(tokens[start + 1] in _WEARING for start in people)
    plurals = [word.endswith("s") and not word.endswith("ss") for word in (one, two)]
    if one == two or plurals[0] != plurals[1] or not worn:
        return
    if any(_has_own(other, tokens[first], {two}) or _has_own(other, tokens[second], {one}) for other in others):
        return
    yield FalseCaption("role", _with_word(_with_word(tokens, one_place, two), two_place, one), one, two)


def _exclusive(one: str, two: str) -> bool:
    """Whether two words cannot be about the same person or animal; a girl may be called a child."""
    if {one, two} in ({"dog", "puppy"}, {"dogs", "puppy"}) or one == two:
        return False
    if one not in _PERSONS or two not in _PERSONS:
        # A batter may be called a man, but is not the catcher.
        return not ({one, two} & _IN_A_GAME and {one, two} & _PERSONS.keys())
    return any(trait and other and trait != other for trait, other in zip(_PERSONS[one], _PERSONS[two], strict=True))


def _own_things(tokens: Tokens, start: int, end: int) -> set[str]:
    """What somebody wears or does alone by the words that follow: colours, clothes, verbs."""
    following = tokens[start + 1 : min(end, start + 8)]
    rest = following[1:] if following[:1] in (("is",), ("are",)) else following
    if not rest:
        return set()
    if rest[0] in _ALONE:
        return {rest[0], *(rest[1:4])} & (_ALONE | CLOTHES | frozenset(_GROUP))
    worn = {token for token in rest[:6] if token in CLOTHES or token in _GROUP} if rest[0] in _WEARING else set()
    # "… on a bench and …": a place of its own.
    if not worn and rest[0] in _PLACES and "and" in rest[2:5]:
        return {rest[rest.index("and") - 1]}
    return worn


def _has_own(tokens: Tokens, noun: str, things: set[str]) -> bool:
    places = [index for index, token in enumerate(tokens) if token == noun]
    return any(things & set(tokens[index + 1 : index + 7]) for index in places)


def _order(tokens: Tokens, first: str, second: str) -> bool:
    return first in tokens and second in tokens and tokens.index(first) < tokens.index(second)


def _before_noun(tokens: Tokens, index: int) -> bool:
    """Whether a word follows, as a noun follows a colour; "orange ." and "white and" are not before one."""
    following = tokens[index + 1] if index + 1 < len(tokens) else ""
    return following.isalpha() and following not in _NOT_NOUNS


def _worn(tokens: Tokens, index: int) -> bool:
    """Whether a colour is all that is said of somebody's clothes: "a man in white"."""
    return index > 0 and tokens[index] in _GROUP and tokens[index - 1] == "in" and not _before_noun(tokens, index)


def _of_two_colours(tokens: Tokens, index: int) -> bool:
    """Whether a colour is part of "black and white", or next to another colour."""
    for near in (tokens[max(0, index - 2) : index][::-1], tokens[index + 1 : index + 3]):
        if near and near[0] in _GROUP:
            return True
        if len(near) == 2 and near[1] in _GROUP and (near[0] in ("and", "or") or not near[0].isalpha()):
            return True
    return False


def _noun(tokens: Tokens, index: int) -> str:
    """The first word after a modifier that is none."""
    return next((token for token in tokens[index + 1 :] if token not in _MODIFIERS), "")


def _with_word(tokens: Tokens, index: int, word: str) -> Tokens:
    """The tokens with another word at a place, and "a" or "an" before it as it needs."""
    before = tokens[:index]
    following = tokens[index + 1 :]
    if before and before[-1] in ("a", "an"):
        before = (*before[:-1], _article(word))
    return (*before, _article(following[0]) if word == "a" else word, *following)


def _article(word: str) -> str:
    return "an" if word[0] in "aeio" else "a"


Made = TypeVar("Made")


def balanced(made: Sequence[Made], changes: Sequence[FalseCaption], random: np.random.Generator) -> list[Made]:
    """As many of each change as of its reverse, so that the words alone do not say which caption is false.

    Args:
        made: what to choose from, one for each of `changes`.
        changes: roles, whose words stay, are all kept.
    """
    rows: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for row, change in enumerate(changes):
        rows[change.kind, change.before, change.after].append(row)
    chosen: list[int] = []
    for (kind, before, after), members in rows.items():
        count = len(members) if kind == "role" else min(len(members), len(rows.get((kind, after, before), ())))
        chosen += random.permutation(members)[:count].tolist()
    return [made[row] for row in sorted(chosen)]
