"""Set captions in lines, each phrase underlined and in the colour of its chain."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from PIL import ImageDraw, ImageFont

from deixis.corpus import Caption, Phrase
from deixis.vision.drawing.palette import GREY, INK, ChainStyle, Colour, readable

#: Replacements for characters that the bundled font lacks.
_TWINS = {
    "–": "-",
    "—": "-",
    "‑": "-",
    "−": "-",
    "×": "x",
    "‚": ",",
    "«": '"',
    "»": '"',
    "ß": "ss",
    "æ": "ae",
    "ø": "o",
}
#: Tokens that follow the word before them without a space.
_CLOSE = frozenset(
    {",", ".", ";", ":", "!", "?", ")", "]", "%", "'", "''", "'s", "'S", "n't", "'re", "'ll", "'ve", "'d"}
)
_OPEN = frozenset({"(", "[", "``", "$", "#"})


def stands_close(previous: str, token: str) -> bool:
    """Whether there is no space between two tokens."""
    return token in _CLOSE or previous in _OPEN


def as_written(tokens: Sequence[str]) -> str:
    """Join tokens with the usual spaces."""
    return "".join(
        token if not index or stands_close(tokens[index - 1], token) else f" {token}"
        for index, token in enumerate(tokens)
    )


@cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """Pillow's bundled font, so that a drawing looks the same on every machine."""
    loaded = ImageFont.load_default(size)
    assert isinstance(loaded, ImageFont.FreeTypeFont)
    return loaded


@cache
def _drawn(character: str) -> str:
    """The character; if the font lacks it, a similar one or its base letter, or the replacement character."""
    if character in _TWINS:
        return _TWINS[character]
    for form in (character, unicodedata.normalize("NFKD", character)[:1]):
        if _has_glyph(form):
            return form
    return "" if unicodedata.combining(character) or unicodedata.category(character) == "Cf" else "\ufffd"


@cache
def _has_glyph(character: str) -> bool:
    missing, mask = (font(20).getmask(glyph) for glyph in ("\uffff", character))
    return character.isprintable() and (mask.size != missing.size or bytes(mask) != bytes(missing))


def printable(text: str) -> str:
    """The text in characters that the font has."""
    return "".join(_drawn(character) for character in text)


@dataclass(frozen=True)
class Word:
    """A token, or a piece of one that is too long for a line, with its position."""

    text: str
    token: int
    line: int
    x: float
    width: float


@dataclass(frozen=True)
class Setting:
    """The layout of a caption: `x` from the left edge of the column, lines from 0."""

    words: tuple[Word, ...]
    lines: int
    line_height: int
    levels: Mapping[Phrase, int]


def underline_levels(phrases: Sequence[Phrase]) -> dict[Phrase, int]:
    """Phrase → level of its underline; the underline of an inner phrase is closer to the text."""
    levels: dict[Phrase, int] = {}
    for phrase in sorted(phrases, key=lambda phrase: phrase.end - phrase.start):
        used_levels = {
            level for other, level in levels.items() if other.start < phrase.end and phrase.start < other.end
        }
        levels[phrase] = next(level for level in range(len(used_levels) + 1) if level not in used_levels)
    return levels


def set_caption(caption: Caption, size: int, column: float) -> Setting:
    """Break a caption into lines no wider than `column` pixels."""
    face, space = font(size), font(size).getlength(" ")
    words: list[Word] = []
    x, line, previous = 0.0, 0, ""
    for index, token in enumerate(caption.tokens):
        close = token in _CLOSE and bool(words)
        gap = 0.0 if close or previous in _OPEN or not words else space
        for piece in _pieces(printable(token), face, column):
            width = face.getlength(piece)
            # A line never begins with punctuation, which may exceed the column instead.
            if x and x + gap + width > column + (size if close else 0):
                x, line, gap = 0.0, line + 1, 0.0
            words.append(Word(piece, index, line, x + gap, width))
            x, gap = x + gap + width, 0.0
        previous = token
    levels = underline_levels(caption.phrases)
    depth = 1 + max(levels.values(), default=0)
    return Setting(tuple(words), line + 1, round(size * 1.25) + depth * max(4, size // 4), levels)


def _pieces(text: str, face: ImageFont.FreeTypeFont, column: float) -> list[str]:
    """The text, cut into pieces that fit into a line."""
    pieces = [""]
    for character in text:
        if pieces[-1] and face.getlength(pieces[-1] + character) > column:
            pieces.append("")
        pieces[-1] += character
    return pieces


def draw_caption(
    draw: ImageDraw.ImageDraw,
    setting: Setting,
    origin: tuple[float, float],
    size: int,
    styles: Mapping[str, ChainStyle],
    boxed: frozenset[str],
    ink: Colour = INK,
) -> None:
    """Draw a caption with its upper left corner at `origin`; chains that are not in `boxed` get a dotted line.

    Args:
        ink: the colour of words outside phrases.
    """
    left, top = origin
    for word in setting.words:
        baseline = top + word.line * setting.line_height + size
        inside = [phrase for phrase in setting.levels if phrase.start <= word.token < phrase.end]
        colour = _text_colour(min(inside, key=setting.levels.__getitem__), styles) if inside else ink
        draw.text((left + word.x, baseline), word.text, font=font(size), fill=colour, anchor="ls")
    thickness = max(2, size // 9)
    for phrase, level in setting.levels.items():
        if not phrase.visual:
            continue
        style = styles[phrase.chain]
        pattern = "dotted" if phrase.chain not in boxed else "dashed" if style.dashed else "solid"
        for line, start, end in _runs(setting, phrase):
            y = top + line * setting.line_height + size + size // 4 + level * max(4, size // 4)
            draw_line(draw, left + start, left + end, y, style.colour, thickness, pattern)


def _text_colour(phrase: Phrase, styles: Mapping[str, ChainStyle]) -> Colour:
    return readable(styles[phrase.chain].colour) if phrase.visual else GREY


def _runs(setting: Setting, phrase: Phrase) -> list[tuple[int, float, float]]:
    """(line, start, end) of a phrase for each of its lines."""
    ends: dict[int, tuple[float, float]] = {}
    for word in setting.words:
        if phrase.start <= word.token < phrase.end:
            start, _ = ends.get(word.line, (word.x, 0.0))
            ends[word.line] = (start, word.x + word.width)
    return [(line, start, end) for line, (start, end) in ends.items()]


def draw_line(
    draw: ImageDraw.ImageDraw, start: float, end: float, y: float, colour: Colour, thickness: int, pattern: str
) -> None:
    """A horizontal line: solid, dashed or dotted."""
    mark, step = {"solid": (end - start, end - start), "dashed": (9.0, 14.0), "dotted": (thickness, thickness * 2.5)}[
        pattern
    ]
    x = start
    while x < end:
        draw.rectangle((round(x), y, round(min(x + mark, end)) - 1, y + thickness - 1), fill=colour)
        x += max(step, 1.0)
