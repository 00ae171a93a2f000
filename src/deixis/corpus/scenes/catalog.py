"""What can occur: kinds with their types, colours and words, settings with what fits into them."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """One sort of thing: its coarse type (the Entities paper), the colours it comes in, and what people call it."""

    type: str
    colours: tuple[str, ...]
    #: Singular nouns, the most usual first.
    nouns: tuple[str, ...]
    #: Whether its colour is worth saying.
    said: bool = True


BRIGHT = ("red", "blue", "green", "yellow", "orange", "purple", "pink")
SHIRTS = ("red", "blue", "green", "yellow", "orange", "purple", "pink", "black", "white")
LOWERS = {
    "trousers": ("blue", "black", "gray", "brown", "white"),
    "shorts": ("blue", "black", "brown", "red", "white"),
    "skirt": ("red", "blue", "purple", "black", "pink"),
}
HATS = {"cap": BRIGHT, "hat": ("red", "blue", "green", "white", "black", "purple", "pink"), "beanie": BRIGHT}

KINDS: dict[str, Kind] = {
    "man": Kind("people", SHIRTS, ("man", "guy", "person")),
    "woman": Kind("people", SHIRTS, ("woman", "lady", "person")),
    "boy": Kind("people", SHIRTS, ("boy", "child", "kid")),
    "girl": Kind("people", SHIRTS, ("girl", "child", "kid")),
    "dog": Kind("animals", ("black", "brown", "white", "gray"), ("dog", "animal")),
    "cat": Kind("animals", ("black", "white", "gray", "orange"), ("cat", "animal")),
    "rabbit": Kind("animals", ("white", "gray", "brown"), ("rabbit", "bunny")),
    "pig": Kind("animals", ("pink",), ("pig", "animal")),
    "sheep": Kind("animals", ("white", "black"), ("sheep", "animal")),
    "horse": Kind("animals", ("brown", "black", "white", "gray"), ("horse", "animal")),
    "cow": Kind("animals", ("white", "brown", "black"), ("cow", "animal")),
    "elephant": Kind("animals", ("gray",), ("elephant", "animal")),
    "duck": Kind("animals", ("white", "yellow", "brown"), ("duck",)),
    "bird": Kind("animals", ("red", "blue", "yellow", "black", "white"), ("bird",)),
    "car": Kind("vehicles", ("red", "blue", "green", "yellow", "white", "black"), ("car", "vehicle")),
    "bus": Kind("vehicles", ("red", "blue", "green", "yellow", "orange"), ("bus", "vehicle")),
    "truck": Kind("vehicles", ("red", "blue", "green", "yellow", "orange"), ("truck", "vehicle")),
    "tractor": Kind("vehicles", ("red", "blue", "green"), ("tractor", "vehicle")),
    "bicycle": Kind("vehicles", ("red", "blue", "green", "orange", "black"), ("bicycle", "bike")),
    "boat": Kind("vehicles", ("red", "blue", "green", "purple"), ("sailboat", "boat")),
    "guitar": Kind("instruments", ("brown", "red", "blue", "black"), ("guitar", "instrument")),
    "drum": Kind("instruments", ("red", "blue", "green"), ("drum", "instrument")),
    "trumpet": Kind("instruments", ("yellow",), ("trumpet", "horn", "instrument"), said=False),
    "ball": Kind("other", BRIGHT, ("ball",)),
    "balloon": Kind("other", BRIGHT, ("balloon",)),
    "kite": Kind("other", BRIGHT, ("kite",)),
    "umbrella": Kind("other", BRIGHT, ("umbrella",)),
    "bench": Kind("other", ("brown",), ("bench",), said=False),
    "sofa": Kind("other", ("red", "blue", "green", "yellow"), ("sofa", "couch")),
    "table": Kind("other", ("brown",), ("table",), said=False),
    "tree": Kind("other", ("green",), ("tree",), said=False),
    "palm": Kind("other", ("green",), ("palm tree", "tree"), said=False),
    "pine": Kind("other", ("green",), ("pine tree", "tree"), said=False),
    "house": Kind("other", ("red", "blue", "yellow", "white"), ("house", "building")),
    "barn": Kind("other", ("red",), ("barn", "building")),
    "flowers": Kind("other", ("red", "yellow", "pink", "purple", "white"), ("flowers",)),
    "snowman": Kind("other", ("red", "blue", "green"), ("snowman",), said=False),
    "sandcastle": Kind("other", ("red",), ("sandcastle",), said=False),
    "leash": Kind("other", ("red",), ("leash",)),
    "string": Kind("other", ("black",), ("string",), said=False),
}

#: Where a colour has its own word: coats with patches.
COLOUR_WORDS = {("cow", "white"): "spotted"}
#: Plurals that take more than an s.
PLURALS = {"person": "people", "man": "men", "woman": "women", "child": "children", "sheep": "sheep",
           "lady": "ladies", "bunny": "bunnies", "bus": "buses", "flowers": "flowers"}  # fmt: skip


def plural(noun: str) -> str:
    return PLURALS.get(noun, noun + "s")


#: Noun → the kinds it can name: "child" names boys and girls.
NAMED_BY: dict[str, tuple[str, ...]] = {
    noun: tuple(name for name, kind in KINDS.items() if noun in kind.nouns)
    for noun in dict.fromkeys(noun for kind in KINDS.values() for noun in kind.nouns)
}
# Every child is a person, every creature an animal, whether or not we call it so.
NAMED_BY["person"] = ("man", "woman", "boy", "girl")
NAMED_BY["animal"] = tuple(name for name, kind in KINDS.items() if kind.type == "animals")
NAMED_BY["vehicle"] = tuple(name for name, kind in KINDS.items() if kind.type == "vehicles")


class Where(NamedTuple):
    """A preposition, a noun phrase, and what the phrase refers to: within an image, one referent is one chain."""

    preposition: str
    words: str
    referent: str = "place"


class Conditions(NamedTuple):
    """The time of day and the weather: seen in the picture, and all that captions say of either."""

    time: str
    weather: str


FAIR, RAIN, SNOW = Conditions("day", "fair"), Conditions("day", "rain"), Conditions("day", "snow")
EVENING, NIGHT = Conditions("evening", "fair"), Conditions("night", "fair")
#: A preposition and words that no one can point at.
TIMES: dict[Conditions, tuple[tuple[str, str], ...]] = {
    FAIR: (("on", "a sunny day"), ("on", "a bright day"), ("during", "the day")),
    RAIN: (("on", "a rainy day"), ("on", "a wet day"), ("in", "rainy weather")),
    SNOW: (("on", "a snowy day"), ("in", "winter"), ("on", "a winter day")),
    EVENING: (("at", "sunset"), ("in", "the evening"), ("on", "a warm evening")),
    NIGHT: (("at", "night"), ("late at", "night"), ("on", "a clear night")),
}
#: What the sky is called, apart from just that.
SKIES = {FAIR: "blue", RAIN: "gray", SNOW: "pale", EVENING: "orange", NIGHT: "night"}


class Setting(NamedTuple):
    """A place: what it is called, and what fits into it."""

    places: tuple[Where, ...]
    grounds: tuple[Where, ...]
    #: Along, through, across: where things move.
    ways: tuple[Where, ...]
    #: One of these, by chance.
    conditions: tuple[Conditions, ...]
    animals: tuple[str, ...]
    vehicles: tuple[str, ...]
    props: tuple[str, ...]
    #: Things in the air.
    sky: tuple[str, ...]
    seat: str = "bench"
    outdoors: bool = True


CHANGEABLE = (FAIR, FAIR, FAIR, RAIN)
GRASS = Where("on", "the grass", "ground")
SETTINGS: dict[str, Setting] = {
    "park": Setting(
        (Where("in", "the park"), Where("in", "a park"), Where("at", "the park")),
        (GRASS, Where("on", "green grass", "ground")),
        (Where("across", "the grass", "ground"), Where("through", "the park")),
        CHANGEABLE,
        ("dog", "cat", "rabbit", "duck", "horse"),
        ("bicycle",),
        ("tree", "bench", "flowers", "house"),
        ("bird", "kite", "balloon"),
    ),
    "beach": Setting(
        (Where("on", "the beach"), Where("at", "the beach"), Where("on", "a sandy beach")),
        (Where("on", "the sand", "ground"), Where("near", "the ocean", "water"), Where("by", "the water", "water")),
        (Where("along", "the beach"), Where("across", "the sand", "ground")),
        (FAIR,),
        ("dog", "horse", "duck"),
        ("bicycle",),
        ("palm", "sandcastle", "boat"),
        ("bird", "kite", "balloon"),
    ),
    "street": Setting(
        (Where("on", "the street"), Where("in", "the city"), Where("on", "a city street")),
        (Where("on", "the road"), Where("on", "the asphalt", "ground")),
        (Where("down", "the street"), Where("along", "the road")),
        CHANGEABLE,
        ("dog", "cat"),
        ("car", "bus", "truck", "bicycle"),
        ("tree", "bench", "car"),
        ("bird", "balloon"),
    ),
    "snow": Setting(
        (Where("in", "the snow", "ground"), Where("in", "the snowy mountains"), Where("in", "a snowy field")),
        (Where("on", "the snow", "ground"), Where("on", "snowy ground", "ground")),
        (Where("through", "the snow", "ground"), Where("across", "the snow", "ground")),
        (SNOW,),
        ("dog", "rabbit", "horse", "cat"),
        (),
        ("pine", "snowman", "house"),
        ("bird", "kite"),
    ),
    "room": Setting(
        (Where("in", "a living room"), Where("in", "the living room"), Where("inside", "a room")),
        (Where("on", "the floor", "ground"), Where("on", "a wooden floor", "ground")),
        (Where("across", "the room"), Where("around", "the room")),
        (FAIR, RAIN, NIGHT),
        ("dog", "cat", "rabbit"),
        (),
        ("sofa", "table", "flowers"),
        ("balloon",),
        "sofa",
        outdoors=False,
    ),
    "pitch": Setting(
        (Where("in", "a stadium"), Where("on", "a sports field"), Where("on", "the field")),
        (GRASS, Where("on", "a green field")),
        (Where("across", "the field"), Where("over", "the grass", "ground")),
        CHANGEABLE,
        ("dog", "cat", "rabbit"),
        ("bicycle",),
        ("bench", "flowers"),
        ("bird", "kite", "balloon"),
    ),
    "farm": Setting(
        (Where("on", "a farm"), Where("on", "the farm"), Where("in", "the countryside")),
        (Where("in", "a pasture"), GRASS, Where("in", "a green meadow")),
        (Where("across", "the pasture"), Where("through", "the meadow")),
        CHANGEABLE,
        ("cow", "sheep", "horse", "pig", "dog", "cat", "duck", "rabbit"),
        ("tractor", "truck"),
        ("barn", "tree", "flowers"),
        ("bird",),
    ),
    "night": Setting(
        (Where("in", "the city"), Where("on", "a dark street"), Where("on", "a city street")),
        (Where("on", "the road"), Where("under", "the night sky", "sky")),
        (Where("down", "the street"), Where("through", "the city")),
        (NIGHT,),
        ("dog", "cat"),
        ("car", "bus", "truck", "bicycle"),
        ("bench", "tree", "car"),
        ("balloon",),
    ),
    "savanna": Setting(
        (Where("in", "the savanna"), Where("on", "a dry plain"), Where("on", "the grassland")),
        (Where("on", "dry grass", "ground"), Where("under", "an orange sky", "sky")),
        (Where("across", "the plain"), Where("through", "dry grass", "ground")),
        (EVENING,),
        ("elephant", "horse"),
        ("truck",),
        ("tree", "flowers"),
        ("bird", "balloon"),
    ),
}
