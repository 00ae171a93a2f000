"""The colours that captions name, and a few that only the drawing needs."""

from __future__ import annotations

from functools import lru_cache

Colour = tuple[int, int, int]

#: Every colour a figure can have, under the word that captions use.
NAMED: dict[str, Colour] = {
    "red": (222, 56, 49),
    "blue": (48, 105, 205),
    "green": (44, 148, 74),
    "yellow": (247, 206, 52),
    "orange": (240, 134, 38),
    "purple": (138, 74, 170),
    "pink": (243, 140, 178),
    "black": (48, 47, 54),
    "white": (248, 247, 242),
    "brown": (135, 88, 52),
    "gray": (146, 150, 158),
}
HAIR: dict[str, Colour] = {
    "black": (43, 36, 36),
    "brown": (104, 64, 36),
    "blond": (236, 196, 98),
    "red": (190, 84, 38),
    "gray": (178, 178, 182),
}
SKIN: tuple[Colour, ...] = ((251, 214, 183), (232, 184, 143), (186, 128, 86), (120, 78, 52))
#: Colours of single parts, the same in every picture.
FIXED: dict[str, Colour] = {
    **NAMED,
    "ink": (44, 36, 40),
    "shoe": (70, 56, 54),
    "wood": (160, 110, 66),
    "dark wood": (112, 74, 46),
    "trunk": (122, 84, 54),
    "leaf": (66, 150, 72),
    "pine": (42, 104, 74),
    "glass": (190, 226, 244),
    "tyre": (50, 50, 56),
    "metal": (196, 200, 208),
    "light": (255, 236, 150),
    "rose": (240, 160, 150),
    "cream": (255, 244, 218),
    "roof": (164, 74, 58),
    "dark roof": (96, 78, 84),
    "sand": (232, 200, 132),
    "snow": (248, 251, 255),
    "beak": (246, 168, 46),
    "tusk": (250, 244, 226),
    "gold": (236, 190, 66),
    "stem": (70, 140, 66),
    "rope": (120, 84, 60),
}


@lru_cache(maxsize=4096)
def shade(colour: Colour, factor: float) -> Colour:
    """Darker for a factor below 1, lighter towards white above it (2 is white)."""
    if factor <= 1:
        red, green, blue = (int(part * factor) for part in colour)
    else:
        red, green, blue = (int(part + (255 - part) * (factor - 1)) for part in colour)
    return red, green, blue
