"""Draw boxes with labels on a picture so that they do not hide each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from PIL import Image as Pillow
from PIL import ImageDraw

from deixis.corpus import Box
from deixis.vision.drawing.palette import PAPER, ChainStyle, text_on
from deixis.vision.drawing.typesetting import font, printable

_LINE = 4
_TEXT = 17
_LONGEST_LABEL = 28
_DASH, _DASH_STEP = 14, 22

Area = tuple[int, int, int, int]


@dataclass(frozen=True)
class Outline:
    """A box to draw, in the picture's pixels; an empty label is not drawn."""

    box: Box
    style: ChainStyle
    label: str = ""


def draw_outlines(picture: Pillow.Image, outlines: Sequence[Outline]) -> None:
    """Draw large boxes below small ones, equal boxes nested, and labels above all boxes."""
    draw = ImageDraw.Draw(picture)
    ordered = sorted(
        outlines, key=lambda outline: -(outline.box.x2 - outline.box.x1) * (outline.box.y2 - outline.box.y1)
    )
    seen: Counter[Box] = Counter()
    for outline in ordered:
        _draw_frame(draw, _inset(_area(outline.box, picture.size), seen[outline.box] * (_LINE + 1)), outline.style)
        seen[outline.box] += 1
    placed: list[Area] = []
    # Small boxes have the fewest positions for a label, so they come first.
    for outline in reversed(ordered):
        if outline.label:
            placed.append(_draw_label(draw, outline, picture.size, placed))


def _area(box: Box, size: tuple[int, int]) -> Area:
    """The box in whole pixels, inside the picture and at least one pixel large."""
    width, height = size
    left, top = min(round(box.x1), width - 1), min(round(box.y1), height - 1)
    return left, top, min(max(round(box.x2), left + 1), width), min(max(round(box.y2), top + 1), height)


def _inset(area: Area, amount: int) -> Area:
    left, top, right, bottom = area
    amount = min(amount, (right - left - 1) // 2, (bottom - top - 1) // 2)
    return left + amount, top + amount, right - amount, bottom - amount


def _draw_frame(draw: ImageDraw.ImageDraw, area: Area, style: ChainStyle) -> None:
    left, top, right, bottom = area
    # A thin white edge on both sides keeps the line visible on a background of its colour.
    draw.rectangle((left - 1, top - 1, right, bottom), outline=PAPER, width=_LINE + 2)
    draw.rectangle((left, top, right - 1, bottom - 1), outline=style.colour, width=_LINE)
    if style.dashed:
        for x in range(left + _DASH, right - _LINE, _DASH_STEP):
            for y in (top, max(top, bottom - _LINE)):
                draw.rectangle((x, y, min(x + _DASH_STEP - _DASH, right) - 1, y + _LINE - 1), fill=PAPER)
        for y in range(top + _DASH, bottom - _LINE, _DASH_STEP):
            for x in (left, max(left, right - _LINE)):
                draw.rectangle((x, y, x + _LINE - 1, min(y + _DASH_STEP - _DASH, bottom) - 1), fill=PAPER)


def _draw_label(draw: ImageDraw.ImageDraw, outline: Outline, size: tuple[int, int], placed: Sequence[Area]) -> Area:
    text = printable(_shortened(outline.label))
    width, height = round(font(_TEXT).getlength(text)) + 12, _TEXT + 9
    area = min(
        (_inside((x, y, x + width, y + height), size) for x, y in _places(_area(outline.box, size), width, height)),
        key=lambda candidate: sum(_overlap(candidate, other) for other in placed),
    )
    left, top, right, bottom = area
    draw.rectangle((left, top, right - 1, bottom - 1), fill=outline.style.colour, outline=PAPER)
    draw.text(((left + right) / 2, bottom - 8), text, font=font(_TEXT), fill=text_on(outline.style.colour), anchor="ms")
    return area


def _places(area: Area, width: int, height: int) -> Iterator[tuple[int, int]]:
    """Possible upper left corners of a label, best first: at the upper edge, the lower edge, then inside."""
    left, top, right, bottom = area
    for y in (top - height, top, bottom, bottom - height, *range(top + height, bottom - height, height)):
        yield left, y
        yield right - width, y


def _inside(area: Area, size: tuple[int, int]) -> Area:
    left, top, right, bottom = area
    across = max(0, min(left, size[0] - (right - left))) - left
    down = max(0, min(top, size[1] - (bottom - top))) - top
    return left + across, top + down, right + across, bottom + down


def _overlap(first: Area, second: Area) -> int:
    across = min(first[2], second[2]) - max(first[0], second[0])
    down = min(first[3], second[3]) - max(first[1], second[1])
    return max(across, 0) * max(down, 0)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1].rstrip() + "…"
