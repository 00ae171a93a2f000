"""What can occur: kinds with their types, colours and words, settings with what fits into them."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """One sort of thing: its coarse type (paper 0), the colours it comes in, and what people call it."""

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

#: A preposition and a noun phrase.
Where = tuple[str, str]


class Setting(NamedTuple):
    """A place: what it is called (preposition, noun phrase), and what fits into it."""

    places: tuple[Where, ...]
    grounds: tuple[Where, ...]
    #: Along, through, across: where things move.
    ways: tuple[Where, ...]
    #: Words for the time or weather, which no one can point at.
    times: tuple[Where, ...]
    animals: tuple[str, ...]
    vehicles: tuple[str, ...]
    props: tuple[str, ...]
    #: Things in the air.
    sky: tuple[str, ...]
    seat: str = "bench"
    outdoors: bool = True


SUNNY = (("on", "a sunny day"), ("on", "a warm day"), ("in", "summer"))
SETTINGS: dict[str, Setting] = {
    "park": Setting(
        (("in", "the park"), ("in", "a park"), ("at", "the park")),
        (("on", "the grass"), ("on", "green grass")),
        (("across", "the grass"), ("through", "the park")),
        SUNNY,
        ("dog", "cat", "rabbit", "duck", "horse"),
        ("bicycle",),
        ("tree", "bench", "flowers", "house"),
        ("bird", "kite", "balloon"),
    ),
    "beach": Setting(
        (("on", "the beach"), ("at", "the beach"), ("on", "a sandy beach")),
        (("on", "the sand"), ("near", "the ocean"), ("by", "the water")),
        (("along", "the beach"), ("across", "the sand")),
        SUNNY,
        ("dog", "horse", "duck"),
        ("bicycle",),
        ("palm", "sandcastle", "boat"),
        ("bird", "kite", "balloon"),
    ),
    "street": Setting(
        (("on", "the street"), ("in", "the city"), ("on", "a city street")),
        (("on", "the road"), ("on", "the pavement")),
        (("down", "the street"), ("along", "the road")),
        (("on", "a busy day"), ("during", "the day"), ("on", "a bright morning")),
        ("dog", "cat"),
        ("car", "bus", "truck", "bicycle"),
        ("tree", "bench", "car"),
        ("bird", "balloon"),
    ),
    "snow": Setting(
        (("in", "the snow"), ("in", "the snowy mountains"), ("in", "a snowy field")),
        (("on", "the snow"), ("on", "snowy ground")),
        (("through", "the snow"), ("across", "the snow")),
        (("on", "a cold day"), ("in", "winter"), ("on", "a winter day")),
        ("dog", "rabbit", "horse", "cat"),
        (),
        ("pine", "snowman", "house"),
        ("bird", "kite"),
    ),
    "room": Setting(
        (("in", "a living room"), ("in", "the living room"), ("inside", "a room")),
        (("on", "the carpet"), ("on", "a rug")),
        (("across", "the room"), ("around", "the room")),
        (("at", "home"), ("on", "a rainy day")),
        ("dog", "cat", "rabbit"),
        (),
        ("sofa", "table", "flowers"),
        ("balloon",),
        "sofa",
        outdoors=False,
    ),
    "pitch": Setting(
        (("in", "a stadium"), ("on", "a sports field"), ("on", "the field")),
        (("on", "the grass"), ("on", "a green field")),
        (("across", "the field"), ("over", "the grass")),
        (("during", "a break"), ("on", "a sunny day"), ("before", "the match")),
        ("dog", "cat", "rabbit"),
        ("bicycle",),
        ("bench", "flowers"),
        ("bird", "kite", "balloon"),
    ),
    "farm": Setting(
        (("on", "a farm"), ("on", "the farm"), ("in", "the countryside")),
        (("in", "a pasture"), ("on", "the grass"), ("in", "a green meadow")),
        (("across", "the pasture"), ("through", "the meadow")),
        (("on", "a sunny day"), ("in", "the morning"), ("in", "spring")),
        ("cow", "sheep", "horse", "pig", "dog", "cat", "duck", "rabbit"),
        ("tractor", "truck"),
        ("barn", "tree", "flowers"),
        ("bird",),
    ),
    "night": Setting(
        (("in", "the city"), ("on", "a dark street"), ("on", "a city street")),
        (("on", "the road"), ("under", "the night sky")),
        (("down", "the street"), ("through", "the city")),
        (("at", "night"), ("late at", "night"), ("in", "the evening")),
        ("dog", "cat"),
        ("car", "bus", "truck", "bicycle"),
        ("bench", "tree", "car"),
        ("balloon",),
    ),
    "savanna": Setting(
        (("in", "the savanna"), ("on", "a dry plain"), ("on", "the grassland")),
        (("on", "dry grass"), ("under", "an orange sky")),
        (("across", "the plain"), ("through", "dry grass")),
        (("at", "sunset"), ("in", "the evening"), ("on", "a hot day")),
        ("elephant", "horse"),
        ("truck",),
        ("tree", "flowers"),
        ("bird", "balloon"),
    ),
}
