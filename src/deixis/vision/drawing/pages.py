"""Pages with a picture: its annotations, proposals, an aligned or grounded sentence, descriptions, a comparison.

Annotations are drawn as in Figure 1 of the Entities paper, alignments as in Fig. 4 of DVSA's supplement, cut-out
regions as in its Figs. 1 to 3, comparisons as in Fig. 2 of the two-branch paper and Fig. 3 of the Entities paper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from PIL import Image as Pillow
from PIL import ImageDraw

from deixis.corpus import Box, Caption, Chain, Corpus, Image, Phrase, make_caption
from deixis.errors import DeixisError
from deixis.vision.drawing.outlines import Outline, draw_outlines
from deixis.vision.drawing.palette import (
    GREY,
    INK,
    PALETTE,
    PAPER,
    ChainStyle,
    Colour,
    chain_styles,
    numbered_style,
    text_on,
)
from deixis.vision.drawing.typesetting import draw_caption, font, printable, set_caption
from deixis.vision.reading import read_picture

if TYPE_CHECKING:
    from deixis.vision.proposals import Proposals

#: The longer side of a picture on a page of its own, and beside texts.
LONGER_SIDE, BESIDE_TEXTS = 900, 720
_MARGIN, _GAP, _GUTTER = 28, 14, 34
_TITLE, _LARGE, _TEXT, _SMALL = 20, 22, 18, 15
#: Least width of a caption under a picture; width of texts beside one.
_CAPTION, _BESIDE = 640, 520
#: Widths of the number before a text and of the figure after it.
_NUMBER, _FIGURE = 34, 64
#: Width of a column of a comparison, and the greatest height of a picture in it.
_COLUMN, _TALLEST = 560, 420
#: Size of a cell of a sheet of regions, and cells per row.
_CELL, _ACROSS = 170, 8
#: A chain with more boxes than this has one label, with their number.
_LABELLED = 3
_BLANK: Colour = (238, 239, 241)
_NOTE = (
    "solid: right (IoU with the ground-truth box at least 0.5)   ·   dashed box, dotted phrase: wrong   ·   "
    "in brackets: the region's score"
)


def resized(picture: Pillow.Image, scale: float) -> Pillow.Image:
    """The picture in another size, each side at least one pixel."""
    width, height = (max(1, round(side * scale)) for side in picture.size)
    return picture.convert("RGB").resize((width, height), Pillow.Resampling.LANCZOS)


def scales(picture: Pillow.Image, original: tuple[float, float]) -> tuple[float, float]:
    """What coordinates of the original are multiplied by, across and down."""
    return picture.width / original[0], picture.height / original[1]


def draw_annotations(corpus: Corpus, image_id: str, *, caption: int | None = None) -> Pillow.Image:
    """Draw the annotations of an image: boxes and phrases of a chain share a colour.

    A phrase without a box is underlined with dots, a non-visual one is grey. If the picture is missing, the boxes are
    drawn on a blank page of its size.

    Args:
        caption: show only this caption and the boxes it mentions.
    """
    image = corpus[image_id]
    if caption is not None and not 0 <= caption < len(image.captions):
        raise DeixisError(f"image {image_id} has {len(image.captions)} captions; there is no number {caption}")
    captions = image.captions if caption is None else (image.captions[caption],)
    chains = image.chains
    if caption is not None:
        mentioned = {phrase.chain for phrase in captions[0].phrases}
        chains = tuple(chain for chain in chains if chain.id in mentioned)
    styles = chain_styles(image)

    background = _background(corpus, image)
    if not image.width or not image.height:
        # Without a recorded size, boxes are in the pixels of the file.
        image = msgspec.structs.replace(image, width=background.width, height=background.height)
    picture = resized(background, LONGER_SIDE / max(background.size))
    if not _at_hand(corpus, image):
        middle = (picture.width / 2, picture.height / 2)
        ImageDraw.Draw(picture).text(middle, "picture is missing", font=font(_LARGE), fill=GREY, anchor="mm")
    draw_outlines(picture, _outlines(image, chains, styles, picture.size))

    column = max(picture.width, _CAPTION)
    settings = [set_caption(item, _LARGE, column - _GUTTER) for item in captions]
    notes = _notes(image, [phrase for item in captions for phrase in item.phrases])
    height = picture.height + sum(s.lines * s.line_height + 6 for s in settings) + 3 * _MARGIN + 2 * _SMALL
    page = Pillow.new("RGB", (column + 2 * _MARGIN, height), PAPER)
    page.paste(picture, (_MARGIN + (column - picture.width) // 2, _MARGIN))
    draw = ImageDraw.Draw(page)
    boxed = frozenset(chain.id for chain in image.chains if chain.boxes)
    y = picture.height + 2 * _MARGIN - 4
    for index, setting in enumerate(settings):
        shown = index if caption is None else caption
        draw.text((_MARGIN, y + _LARGE), str(shown), font=font(_SMALL), fill=GREY, anchor="ls")
        draw_caption(draw, setting, (_MARGIN + _GUTTER, y), _LARGE, styles, boxed)
        y += setting.lines * setting.line_height + 6
    draw.text((_MARGIN, height - _MARGIN + 4), printable(notes), font=font(_SMALL), fill=GREY, anchor="ls")
    return page


def _at_hand(corpus: Corpus, image: Image) -> bool:
    return corpus.pictures is not None and corpus.pictures.has(image)


def _background(corpus: Corpus, image: Image) -> Pillow.Image:
    if _at_hand(corpus, image):
        return read_picture(corpus, image)
    width = image.width or round(max((box.x2 for box in image.boxes), default=640)) or 1
    height = image.height or round(max((box.y2 for box in image.boxes), default=480)) or 1
    return Pillow.new("RGB", (width, height), _BLANK)


def _notes(image: Image, phrases: Sequence[Phrase]) -> str:
    """The small line at the bottom: the image's id, and the meaning of the marks that occur."""
    boxed = {chain.id for chain in image.chains if chain.boxes}
    notes = [f"image {image.id}"]
    if image.split:
        notes.append(image.split)
    if any(phrase.visual and phrase.chain not in boxed for phrase in phrases):
        notes.append("dotted: no box")
    if any(not phrase.visual for phrase in phrases):
        notes.append("grey: not visual")
    return "   ·   ".join(notes)


def _outlines(
    image: Image, chains: Iterable[Chain], styles: Mapping[str, ChainStyle], size: tuple[int, int]
) -> list[Outline]:
    boxes = image.scaled_boxes(*size)
    names = _chain_names(image)
    outlines = []
    for chain in chains:
        name, many = names[chain.id], len(chain.boxes) > _LABELLED
        # Of many boxes, the largest has the label.
        largest = max(chain.boxes, key=lambda index: _extent(image, index), default=None)
        for index in chain.boxes:
            label = name if not many else f"{name} ({len(chain.boxes)})" if index == largest else ""
            outlines.append(Outline(boxes[index], styles[chain.id], label))
    return outlines


def _extent(image: Image, index: int) -> float:
    box = image.boxes[index]
    return (box.x2 - box.x1) * (box.y2 - box.y1)


def _chain_names(image: Image) -> dict[str, str]:
    """The most frequent phrase of each chain; of equally frequent ones the shortest."""
    mentions: dict[str, Counter[str]] = {chain.id: Counter() for chain in image.chains}
    for caption in image.captions:
        for phrase in caption.phrases:
            if phrase.visual:
                mentions[phrase.chain][caption.phrase_text(phrase).lower()] += 1
    return {
        chain: min(names, key=lambda name: (-names[name], len(name), name)) if names else f"chain {chain}"
        for chain, names in mentions.items()
    }


def draw_proposals(picture: Pillow.Image, proposals: Proposals) -> Pillow.Image:
    """The picture with its best proposals, each labelled with its rank."""
    drawing = resized(picture, LONGER_SIDE / max(picture.size))
    factors = scales(drawing, picture.size)
    outlines = [
        Outline(Box(*box).scaled(*factors), numbered_style(index), str(index + 1))
        for index, box in enumerate(proposals.boxes.tolist())
    ]
    draw_outlines(drawing, outlines)
    return drawing


class Part(NamedTuple):
    """Tokens `start` to `end` (exclusive) of a sentence, their boxes in the picture's pixels, and a figure to show."""

    start: int
    end: int
    boxes: Sequence[Box]
    figure: str
    whole: bool


def draw_alignment(picture: Pillow.Image, tokens: Sequence[str], parts: Sequence[Part], note: str = "") -> Pillow.Image:
    """A picture with the boxes of a sentence's parts, and the sentence in their colours below it.

    Parts with the same boxes share a colour; those of the whole picture have a dotted line and no box.
    """
    shown = resized(picture, LONGER_SIDE / max(picture.size))
    factors = scales(shown, picture.size)
    regions = list(dict.fromkeys(tuple(part.boxes) for part in parts if not part.whole))
    names = {boxes: f"region {index}" for index, boxes in enumerate(regions)}
    styles = {name: numbered_style(index) for index, name in enumerate(names.values())}
    labels: dict[str, list[str]] = {name: [] for name in styles}
    for part in parts:
        if not part.whole:
            labels[names[tuple(part.boxes)]].append(f"{' '.join(tokens[part.start : part.end])} {part.figure}")
    draw_outlines(
        shown,
        [
            Outline(box.scaled(*factors), styles[name], "" if index else " | ".join(labels[name]))
            for boxes, name in names.items()
            for index, box in enumerate(boxes)
        ],
    )
    whole = "whole"
    phrases = [Phrase(part.start, part.end, whole if part.whole else names[tuple(part.boxes)]) for part in parts]
    column = max(shown.width, _CAPTION)
    setting = set_caption(make_caption(" ".join(tokens), list(tokens), phrases), _LARGE, column)
    height = shown.height + setting.lines * setting.line_height + 2 * _SMALL + 3 * _MARGIN
    page = Pillow.new("RGB", (column + 2 * _MARGIN, height), PAPER)
    page.paste(shown, (_MARGIN + (column - shown.width) // 2, _MARGIN))
    draw = ImageDraw.Draw(page)
    grey = ChainStyle(GREY, dashed=False)
    draw_caption(
        draw, setting, (_MARGIN, shown.height + 2 * _MARGIN), _LARGE, {**styles, whole: grey}, frozenset(styles)
    )
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
        for index, cut in enumerate(cuts):
            left = _MARGIN + index % _ACROSS * (_CELL + _GAP)
            top = y + _TITLE + _GAP + index // _ACROSS * line
            shown = _cut_out(cut)
            page.paste(shown, (left + (_CELL - shown.width) // 2, top + (_CELL - shown.height) // 2))
            middle = left + _CELL // 2, top + _CELL + _SMALL + 2
            draw.text(middle, printable(cut.figure), font=font(_SMALL), fill=GREY, anchor="ms")
        y += height
    return page


def _cut_out(cut: Cut) -> Pillow.Image:
    """The region, as large as a cell allows."""
    x1, y1 = max(0, int(cut.box.x1)), max(0, int(cut.box.y1))
    x2, y2 = min(cut.picture.width, round(cut.box.x2)), min(cut.picture.height, round(cut.box.y2))
    part = cut.picture.crop((x1, y1, max(x1 + 1, x2), max(y1 + 1, y2)))
    return resized(part, _CELL / max(part.size))


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
    """A picture with numbered boxes, and beside it the texts with the numbers and colours of their boxes."""
    shown = resized(picture, BESIDE_TEXTS / max(picture.size))
    factors = scales(shown, picture.size)
    boxed = [finding for finding in findings if finding.box is not None]
    numbers = {id(finding): index for index, finding in enumerate(boxed)}
    outlines = [
        Outline(finding.box.scaled(*factors), numbered_style(index), f"{index + 1} {finding.label}".strip())
        for index, finding in enumerate(boxed)
        if finding.box is not None
    ]
    draw_outlines(shown, outlines)
    texts = _texts(findings, [numbers.get(id(finding)) for finding in findings], title)
    page = Pillow.new(
        "RGB", (shown.width + _BESIDE + 3 * _MARGIN, max(shown.height, texts.height) + 2 * _MARGIN), PAPER
    )
    page.paste(shown, (_MARGIN, _MARGIN))
    page.paste(texts, (shown.width + 2 * _MARGIN, _MARGIN))
    return page


def _texts(findings: Sequence[Finding], numbers: Sequence[int | None], title: str) -> Pillow.Image:
    """The column of texts; `numbers` are the indices of their boxes."""
    width = _BESIDE - _NUMBER - _FIGURE
    settings = [[set_caption(make_caption(text), _TEXT, width) for text, _ in finding.lines] for finding in findings]
    heights = [sum(setting.lines * setting.line_height for setting in lines) + _GAP for lines in settings]
    heading = set_caption(make_caption(title), _TITLE, _BESIDE) if title else None
    above = heading.lines * heading.line_height + _GAP if heading else 0
    page = Pillow.new("RGB", (_BESIDE, sum(heights) + above), PAPER)
    draw = ImageDraw.Draw(page)
    if heading:
        draw_caption(draw, heading, (0, 0), _TITLE, {}, frozenset())
    y = above
    for finding, number, lines in zip(findings, numbers, settings, strict=True):
        if number is not None:
            _draw_number(draw, y, number + 1, numbered_style(number).colour)
        for (_, figure), setting in zip(finding.lines, lines, strict=True):
            draw_caption(draw, setting, (_NUMBER, y), _TEXT, {}, frozenset(), GREY if finding.missing else INK)
            draw.text((_BESIDE, y + _TEXT), printable(figure), font=font(_SMALL), fill=GREY, anchor="rs")
            y += setting.lines * setting.line_height
        y += _GAP
    return page


def _draw_number(draw: ImageDraw.ImageDraw, y: int, number: int, colour: Colour) -> None:
    draw.rectangle((0, y + 2, _NUMBER - 10, y + _TEXT + 5), fill=colour)
    middle = ((_NUMBER - 10) / 2, y + _TEXT)
    draw.text(middle, str(number), font=font(_SMALL), fill=text_on(colour), anchor="ms")


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
        phrases = [phrase for example in examples for phrase in example.found[row]]
        count = f"{sum(phrase.right for phrase in phrases)} of {len(phrases)} right"
        draw.text((_MARGIN, y + _TITLE), printable(name), font=font(_TITLE), fill=INK, anchor="ls")
        draw.text((width - _MARGIN, y + _TITLE), count, font=font(_SMALL), fill=GREY, anchor="rs")
        y += _TITLE + _GAP
        for index, column in enumerate(columns):
            page.paste(column[row], (_MARGIN + index * (_COLUMN + _MARGIN), y))
        y += height + _GAP
    draw.text((_MARGIN, page.height - _MARGIN + 6), printable(_NOTE), font=font(_SMALL), fill=GREY, anchor="ls")
    return page


def _cell(example: Example, row: int) -> Pillow.Image:
    """The result of one method on one picture, with the caption below it."""
    picture = resized(example.picture, min(_COLUMN / example.picture.width, _TALLEST / example.picture.height))
    original = (example.image.width or example.picture.width, example.image.height or example.picture.height)
    factors, phrases = scales(picture, original), example.found[row]
    # By phrase, not by chain: mentions of one chain may be localized differently.
    colours = [PALETTE[index % len(PALETTE)] for index in range(len(phrases))]
    outlines = [
        Outline(phrase.box.scaled(*factors), ChainStyle(colour, dashed=not phrase.right))
        for phrase, colour in zip(phrases, colours, strict=True)
    ]
    draw_outlines(picture, outlines)
    setting = set_caption(_with_scores(example.caption, phrases), _TEXT, _COLUMN)
    cell = Pillow.new("RGB", (_COLUMN, picture.height + _GAP + setting.lines * setting.line_height), PAPER)
    cell.paste(picture, ((_COLUMN - picture.width) // 2, 0))
    styles = {str(number): ChainStyle(colour, dashed=False) for number, colour in enumerate(colours, 1)}
    right = frozenset(str(number) for number, phrase in enumerate(phrases, 1) if phrase.right)
    draw_caption(ImageDraw.Draw(cell), setting, (0, picture.height + _GAP), _TEXT, styles, right)
    return cell


def _with_scores(caption: Caption, found_phrases: Sequence[FoundPhrase]) -> Caption:
    """The caption with each score as a word after its phrase; the chain of a phrase is its number."""
    # If several phrases end together, the score of the innermost, the last of them, comes first.
    order = sorted(range(len(found_phrases)), key=lambda index: (found_phrases[index].phrase.end, -index))
    words = list(caption.tokens)
    for inserted, index in enumerate(order):
        words.insert(found_phrases[index].phrase.end + inserted, f"({found_phrases[index].score:.2f})")
    phrases = [
        Phrase(
            phrase.start + sum(other.phrase.end <= phrase.start for other in found_phrases),
            phrase.end + order.index(index) + 1,
            str(index + 1),
        )
        for index, phrase in enumerate(found_phrase.phrase for found_phrase in found_phrases)
    ]
    return make_caption(" ".join(words), words, phrases)
