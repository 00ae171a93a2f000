"""Draw a picture with numbered regions, and the texts of each region beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image as Pillow
from PIL import ImageDraw

from deixis.corpus import Box, make_caption
from deixis.vision.drawing.outlines import Outline, draw_outlines
from deixis.vision.drawing.palette import GREY, PALETTE, PAPER, ChainStyle, Colour, text_on
from deixis.vision.drawing.typesetting import Word, draw_caption, font, printable, set_caption

#: The longer side of the picture, and the width of the texts beside it.
_PICTURE, _COLUMN = 720, 520
_MARGIN, _GAP = 28, 14
_TITLE, _TEXT, _SMALL = 20, 18, 14
#: Widths of the number before a text and of the figure after it.
_NUMBER, _FIGURE = 34, 64


@dataclass(frozen=True)
class Finding:
    """Lines of text, each with a figure, for a box in the picture's pixels or for the whole picture."""

    lines: tuple[tuple[str, str], ...]
    box: Box | None = None
    #: The label of the box, after its number.
    label: str = ""
    #: Drawn in grey: something that is not in the picture.
    missing: bool = False


def draw_findings(picture: Pillow.Image, findings: Sequence[Finding], title: str = "") -> Pillow.Image:
    """A page with the picture, its boxes, and the texts in the colours of their boxes."""
    scale = _PICTURE / max(picture.size)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    shown = picture.convert("RGB").resize((width, height), Pillow.Resampling.LANCZOS)
    styles = _styles(findings)
    outlines = [
        Outline(
            finding.box.scaled(width / picture.width, height / picture.height),
            style[1],
            f"{style[0]} {finding.label}".strip(),
        )
        for finding, style in zip(findings, styles, strict=True)
        if finding.box is not None and style is not None
    ]
    draw_outlines(shown, outlines)
    texts = _texts(findings, styles, title)
    page = Pillow.new("RGB", (width + _COLUMN + 3 * _MARGIN, max(height, texts.height) + 2 * _MARGIN), PAPER)
    page.paste(shown, (_MARGIN, _MARGIN))
    page.paste(texts, (width + 2 * _MARGIN, _MARGIN))
    return page


def _styles(findings: Sequence[Finding]) -> list[tuple[int, ChainStyle] | None]:
    """Number and colour of each finding with a box; after twelve, colours repeat, dashed."""
    styles: list[tuple[int, ChainStyle] | None] = []
    number = 0
    for finding in findings:
        if finding.box is None:
            styles.append(None)
            continue
        styles.append((number + 1, ChainStyle(PALETTE[number % len(PALETTE)], dashed=number >= len(PALETTE))))
        number += 1
    return styles


def _texts(findings: Sequence[Finding], styles: Sequence[tuple[int, ChainStyle] | None], title: str) -> Pillow.Image:
    column = _COLUMN - _NUMBER - _FIGURE
    settings = [[set_caption(make_caption(text), _TEXT, column) for text, _ in finding.lines] for finding in findings]
    heights = [sum(each.lines * each.line_height for each in own) + _GAP for own in settings]
    heading = set_caption(make_caption(title), _TITLE, _COLUMN) if title else None
    above = heading.lines * heading.line_height + _GAP if heading else 0
    page = Pillow.new("RGB", (_COLUMN, sum(heights) + above), PAPER)
    draw = ImageDraw.Draw(page)
    if heading:
        draw_caption(draw, heading, (0, 0), _TITLE, {}, frozenset())
    y = above
    for finding, style, own in zip(findings, styles, settings, strict=True):
        if style is not None:
            _draw_number(draw, y, *style)
        for (_, figure), setting in zip(finding.lines, own, strict=True):
            if finding.missing:
                _draw_grey(draw, setting.words, setting.line_height, y)
            else:
                draw_caption(draw, setting, (_NUMBER, y), _TEXT, {}, frozenset())
            draw.text((_COLUMN, y + _TEXT), printable(figure), font=font(_SMALL), fill=GREY, anchor="rs")
            y += setting.lines * setting.line_height
        y += _GAP
    return page


def _draw_grey(draw: ImageDraw.ImageDraw, words: Sequence[Word], line_height: int, y: int) -> None:
    for word in words:
        place = (_NUMBER + word.x, y + word.line * line_height + _TEXT)
        draw.text(place, word.text, font=font(_TEXT), fill=GREY, anchor="ls")


def _draw_number(draw: ImageDraw.ImageDraw, y: int, number: int, style: ChainStyle) -> None:
    colour: Colour = style.colour
    draw.rectangle((0, y + 2, _NUMBER - 10, y + _TEXT + 5), fill=colour)
    middle = ((_NUMBER - 10) / 2, y + _TEXT)
    draw.text(middle, str(number), font=font(_SMALL), fill=text_on(colour), anchor="ms")
