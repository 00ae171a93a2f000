"""Singular and plural of English nouns, by rules and a short table that cover things in pictures."""

from __future__ import annotations

_IRREGULAR = {
    "buses": "bus",
    "calves": "calf",
    "children": "child",
    "elves": "elf",
    "feet": "foot",
    "geese": "goose",
    "halves": "half",
    "knives": "knife",
    "leaves": "leaf",
    "lives": "life",
    "loaves": "loaf",
    "men": "man",
    "mice": "mouse",
    "oxen": "ox",
    "people": "person",
    "scarves": "scarf",
    "shelves": "shelf",
    "skis": "ski",
    "taxis": "taxi",
    "teeth": "tooth",
    "thieves": "thief",
    "wives": "wife",
    "wolves": "wolf",
    "women": "woman",
}
_PLURALS = {singular: plural for plural, singular in _IRREGULAR.items()}
#: Words that look like a plural but are not, or whose plural has another meaning (glass, glasses).
_INVARIABLE = (
    "binoculars canvas christmas clothes deer fish gas glasses goggles headphones jeans lens news overalls pajamas "
    "pants perhaps scissors series sheep shorts species stairs sunglasses themselves tights trousers was woods"
)
#: Plurals whose singular ends in -ie or -oe, and singulars in -o whose plural ends in -oes.
_KEPT_E = "brownies canoes cookies hoodies movies selfies shoes smoothies snowshoes toes zombies"
_OES = "buffalo hero mango mosquito potato tomato tornado volcano"


def singular(word: str) -> str:
    """The singular of a lower-case noun; other words are returned unchanged.

    >>> [singular(word) for word in ("cats", "women", "buses", "dresses", "puppies", "cookies", "bus", "shorts")]
    ['cat', 'woman', 'bus', 'dress', 'puppy', 'cookie', 'bus', 'shorts']
    """
    if word in _INVARIABLE.split() or len(word) < 3:
        return word
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word.endswith("men") and len(word) > 5:
        return f"{word[:-3]}man"
    if word in _KEPT_E.split():
        return word[:-1]
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    if word.endswith(("sses", "shes", "ches", "xes", "zzes", "oes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def plural(word: str) -> str:
    """The plural of a lower-case singular noun; a noun without one is returned unchanged.

    >>> [plural(word) for word in ("cat", "woman", "bus", "dress", "puppy", "fireman", "photo", "short")]
    ['cats', 'women', 'buses', 'dresses', 'puppies', 'firemen', 'photos', 'short']
    """
    if word in _INVARIABLE.split():
        return word
    if word in _PLURALS:
        return _PLURALS[word]
    if word.endswith("man") and len(word) > 5:
        form = f"{word[:-3]}men"
    elif word.endswith("y") and word[-2:-1] not in "aeiou":
        form = f"{word[:-1]}ies"
    elif word.endswith(("s", "sh", "ch", "x", "z")) or word in _OES.split():
        form = f"{word}es"
    else:
        form = f"{word}s"
    # "short" has no plural here: "shorts" are something else.
    return form if singular(form) == word else word
