"""Draw a picture with the regions of a sentence's snippets; below it the sentence in the colours of the regions.

As Fig. 4 of the DVSA paper's supplement; `draw_regions` is a sheet of cut-out regions, as its Figs. 1 to 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image as Pillow
from PIL import ImageDraw

from deixis.corpus import Box, Phrase, make_caption
from deixis.vision.drawing.outlines import Outline, draw_outlines
from deixis.vision.drawing.palette import GREY, INK, PALETTE, PAPER, ChainStyle
from deixis.vision.drawing.typesetting import draw_caption, font, printable, set_caption

_LONGER, _COLUMN = 900, 640
_MARGIN, _GAP = 28, 14
_TEXT, _SMALL, _TITLE = 22, 15, 20
#: Size of a cell of a sheet, and cells per row.
_CELL, _ACROSS = 170, 8


class Part(NamedTuple):
    """Tokens `start` to `end` (exclusive) of a sentence, their boxes in the picture's pixels, and a figure to show."""

    start: int
    end: int
    boxes: Sequence[Box]
    figure: str
    whole: bool


def draw_alignment(picture: Pillow.Image, tokens: Sequence[str], parts: Sequence[Part], note: str = "") -> Pillow.Image:
    """A page. Parts with the same boxes share a colour; those of the whole picture have a dotted line and no box."""
    scale = _LONGER / max(picture.size)
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    shown = picture.convert("RGB").resize(size, Pillow.Resampling.LANCZOS)
    across, down = size[0] / picture.width, size[1] / picture.height
    places = list(dict.fromkeys(tuple(part.boxes) for part in parts if not part.whole))
    names = [f"region {number}" for number in range(len(places))]
    styles = {
        name: ChainStyle(PALETTE[number % len(PALETTE)], dashed=number >= len(PALETTE))
        for number, name in enumerate(names)
    }
    labels: dict[int, list[str]] = {}
    for part in parts:
        if not part.whole:
            words = " ".join(tokens[part.start : part.end])
            labels.setdefault(places.index(tuple(part.boxes)), []).append(f"{words} {part.figure}")
    outlines = []
    for number, boxes in enumerate(places):
        for place, box in enumerate(boxes):
            label = " | ".join(labels[number]) if not place else ""
            outlines.append(Outline(box.scaled(across, down), styles[names[number]], label))
    draw_outlines(shown, outlines)
    whole = "whole"
    phrases = [
        Phrase(part.start, part.end, whole if part.whole else names[places.index(tuple(part.boxes))]) for part in parts
    ]
    column = max(size[0], _COLUMN)
    setting = set_caption(make_caption(" ".join(tokens), list(tokens), phrases), _TEXT, column)
    height = size[1] + setting.lines * setting.line_height + 2 * _SMALL + 3 * _MARGIN
    page = Pillow.new("RGB", (column + 2 * _MARGIN, height), PAPER)
    page.paste(shown, (_MARGIN + (column - size[0]) // 2, _MARGIN))
    draw = ImageDraw.Draw(page)
    grey = ChainStyle(GREY, dashed=False)
    draw_caption(draw, setting, (_MARGIN, size[1] + 2 * _MARGIN), _TEXT, {**styles, whole: grey}, frozenset(styles))
    notes = [note] if note else []
    if any(part.whole for part in parts):
        notes.append("grey, dotted: the whole picture")
    draw.text((_MARGIN, height - _MARGIN), printable("   ·   ".join(notes)), font=font(_SMALL), fill=GREY, anchor="ls")
    return page


class Cut(NamedTuple):
    """A region of a picture, and the text below it."""

    picture: Pillow.Image
    box: Box
    figure: str


def draw_regions(rows: Sequence[tuple[str, Sequence[Cut]]]) -> Pillow.Image:
    """A sheet of cut-out regions in rows, each under its heading."""
    line = _CELL + _SMALL + 2 * _GAP
    heights = [_TITLE + _GAP + line * max(1, -(-len(cuts) // _ACROSS)) for _, cuts in rows]
    width = 2 * _MARGIN + _ACROSS * (_CELL + _GAP) - _GAP
    page = Pillow.new("RGB", (width, sum(heights) + 2 * _MARGIN), PAPER)
    draw = ImageDraw.Draw(page)
    y = _MARGIN
    for (heading, cuts), height in zip(rows, heights, strict=True):
        draw.text((_MARGIN, y + _TITLE), printable(heading), font=font(_TITLE), fill=INK, anchor="ls")
        for number, cut in enumerate(cuts):
            left = _MARGIN + number % _ACROSS * (_CELL + _GAP)
            top = y + _TITLE + _GAP + number // _ACROSS * line
            shown = _cut_out(cut)
            place = left + (_CELL - shown.width) // 2, top + (_CELL - shown.height) // 2
            page.paste(shown, place)
            middle = left + _CELL // 2, top + _CELL + _SMALL + 2
            draw.text(middle, printable(cut.figure), font=font(_SMALL), fill=GREY, anchor="ms")
        y += height
    return page


def _cut_out(cut: Cut) -> Pillow.Image:
    """The region, as large as a cell allows."""
    x1, y1 = max(0, int(cut.box.x1)), max(0, int(cut.box.y1))
    x2, y2 = min(cut.picture.width, round(cut.box.x2)), min(cut.picture.height, round(cut.box.y2))
    part = cut.picture.convert("RGB").crop((x1, y1, max(x1 + 1, x2), max(y1 + 1, y2)))
    scale = _CELL / max(part.size)
    return part.resize(
        (max(1, round(part.width * scale)), max(1, round(part.height * scale))), Pillow.Resampling.LANCZOS
    )
