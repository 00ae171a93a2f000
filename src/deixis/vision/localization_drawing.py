"""Draw where methods localize the phrases of captions, one method per row (two-branch, Fig. 2; Entities, Fig. 3).

Phrases and their regions share a colour. A correct region (IoU with the ground-truth box at least 0.5) has a solid
outline; a wrong one has a dashed outline, and its phrase a dotted line. Scores are in brackets after the phrases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image as Pillow
from PIL import ImageDraw

from deixis.corpus import Box, Caption, Image, Phrase, make_caption
from deixis.errors import DeixisError
from deixis.vision.drawing.outlines import Outline, draw_outlines
from deixis.vision.drawing.palette import GREY, INK, PALETTE, PAPER, ChainStyle
from deixis.vision.drawing.typesetting import draw_caption, font, printable, set_caption

#: Width of a column, and the greatest height of a picture in it.
_COLUMN, _TALLEST = 560, 420
_MARGIN, _GAP = 28, 14
_TITLE, _TEXT, _SMALL = 20, 18, 14
_NOTE = (
    "solid: right (IoU with the ground-truth box at least 0.5)   ·   dashed box, dotted phrase: wrong   ·   "
    "in brackets: the region's score"
)


@dataclass(frozen=True)
class FoundPhrase:
    """The best region of a phrase: its box in the original picture's pixels, its score, and whether it is correct."""

    phrase: Phrase
    box: Box
    score: float
    right: bool


@dataclass(frozen=True)
class Example:
    """A column: a picture, one of its captions, and the result of each method, in their order."""

    image: Image
    picture: Pillow.Image
    caption: Caption
    found: tuple[tuple[FoundPhrase, ...], ...]


def draw_comparison(methods: Sequence[str], examples: Sequence[Example]) -> Pillow.Image:
    """A page with one row per method and one column per example.

    Args:
        methods: the names of the rows.
        examples: each with a result for every method.
    """
    if not examples or any(len(example.found) != len(methods) for example in examples):
        raise DeixisError("a comparison needs examples, each with a result for every method")
    columns = [[_cell(example, row) for row in range(len(methods))] for example in examples]
    heights = [max(column[row].height for column in columns) for row in range(len(methods))]
    width = 2 * _MARGIN + len(columns) * (_COLUMN + _MARGIN) - _MARGIN
    page = Pillow.new("RGB", (width, sum(heights) + len(methods) * (_TITLE + 2 * _GAP) + 2 * _MARGIN + _SMALL), PAPER)
    draw = ImageDraw.Draw(page)
    y = _MARGIN
    for row, (name, height) in enumerate(zip(methods, heights, strict=True)):
        found = [phrase for example in examples for phrase in example.found[row]]
        count = f"{sum(phrase.right for phrase in found)} of {len(found)} right"
        draw.text((_MARGIN, y + _TITLE), printable(name), font=font(_TITLE), fill=INK, anchor="ls")
        draw.text((width - _MARGIN, y + _TITLE), count, font=font(_SMALL), fill=GREY, anchor="rs")
        y += _TITLE + _GAP
        for number, column in enumerate(columns):
            page.paste(column[row], (_MARGIN + number * (_COLUMN + _MARGIN), y))
        y += height + _GAP
    draw.text((_MARGIN, page.height - _MARGIN + 6), printable(_NOTE), font=font(_SMALL), fill=GREY, anchor="ls")
    return page


def _cell(example: Example, row: int) -> Pillow.Image:
    """The result of one method on one picture, with the caption below it."""
    scale = min(_COLUMN / example.picture.width, _TALLEST / example.picture.height)
    size = tuple(max(1, round(side * scale)) for side in example.picture.size)
    picture = example.picture.resize((size[0], size[1]), Pillow.Resampling.LANCZOS)
    original = (example.image.width or example.picture.width, example.image.height or example.picture.height)
    across, down = (shown / whole for shown, whole in zip(picture.size, original, strict=True))
    found = example.found[row]
    # By phrase, not by chain: mentions of one chain may be localized differently.
    colours = [PALETTE[number % len(PALETTE)] for number in range(len(found))]
    outlines = [
        Outline(one.box.scaled(across, down), ChainStyle(colour, dashed=not one.right))
        for one, colour in zip(found, colours, strict=True)
    ]
    draw_outlines(picture, outlines)
    caption = _with_scores(example.caption, found)
    setting = set_caption(caption, _TEXT, _COLUMN)
    cell = Pillow.new("RGB", (_COLUMN, picture.height + _GAP + setting.lines * setting.line_height), PAPER)
    cell.paste(picture, ((_COLUMN - picture.width) // 2, 0))
    own = {str(number): ChainStyle(colour, dashed=False) for number, colour in enumerate(colours, 1)}
    right = frozenset(str(number) for number, one in enumerate(found, 1) if one.right)
    draw_caption(ImageDraw.Draw(cell), setting, (0, picture.height + _GAP), _TEXT, own, right)
    return cell


def _with_scores(caption: Caption, found: Sequence[FoundPhrase]) -> Caption:
    """The caption with each score as a word after its phrase; the chain of a phrase is its number."""
    # If several phrases end together, the score of the innermost, the last of them, comes first.
    order = sorted(range(len(found)), key=lambda number: (found[number].phrase.end, -number))
    words = list(caption.tokens)
    for place, number in enumerate(order):
        words.insert(found[number].phrase.end + place, f"({found[number].score:.2f})")
    phrases = [
        Phrase(
            one.phrase.start + sum(other.phrase.end <= one.phrase.start for other in found),
            one.phrase.end + order.index(number) + 1,
            str(number + 1),
        )
        for number, one in enumerate(found)
    ]
    return make_caption(" ".join(words), words, phrases)
