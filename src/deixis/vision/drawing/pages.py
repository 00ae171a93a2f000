"""Draw a picture with its boxes, and the captions below it, each chain in one colour (Entities, Figure 1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from PIL import Image as Pillow
from PIL import ImageDraw

from deixis.corpus import Chain, Corpus, Image, Phrase
from deixis.errors import DeixisError
from deixis.vision.drawing.outlines import Outline, draw_outlines
from deixis.vision.drawing.palette import GREY, PAPER, ChainStyle, Colour, chain_styles
from deixis.vision.drawing.typesetting import draw_caption, font, printable, set_caption
from deixis.vision.reading import MAX_PIXELS, read_picture

#: The default longer side of a picture on the page.
LONGER_SIDE = 900
_MARGIN, _GUTTER = 32, 34
_TEXT, _SMALL = 22, 15
#: The least width of captions, for narrow pictures.
_COLUMN = 640
_BLANK: Colour = (238, 239, 241)
#: A chain with more boxes than this has one label, with their number.
_LABELLED = 3


def draw_annotations(
    corpus: Corpus, image_id: str, *, caption: int | None = None, scale: float | None = None
) -> Pillow.Image:
    """Draw the annotations of an image: boxes and phrases of a chain share a colour.

    A phrase without a box is underlined with dots, a non-visual one is grey. If the picture is missing, the boxes are
    drawn on a blank page of its size.

    Args:
        caption: show only this caption and the boxes it mentions.
        scale: page pixels per pixel of the picture; by default the longer side becomes 900.
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
    picture = _enlarge(background, scale)
    if not _at_hand(corpus, image):
        middle = (picture.width / 2, picture.height / 2)
        ImageDraw.Draw(picture).text(middle, "picture is missing", font=font(_TEXT), fill=GREY, anchor="mm")
    draw_outlines(picture, _outlines(image, chains, styles, picture.size))

    column = max(picture.width, _COLUMN)
    settings = [set_caption(item, _TEXT, column - _GUTTER) for item in captions]
    notes = _notes(image, [phrase for item in captions for phrase in item.phrases])
    height = picture.height + sum(s.lines * s.line_height + 6 for s in settings) + 3 * _MARGIN + 2 * _SMALL
    page = Pillow.new("RGB", (column + 2 * _MARGIN, height), PAPER)
    page.paste(picture, (_MARGIN + (column - picture.width) // 2, _MARGIN))
    draw = ImageDraw.Draw(page)
    boxed = frozenset(chain.id for chain in image.chains if chain.boxes)
    y = picture.height + 2 * _MARGIN - 4
    for number, setting in enumerate(settings):
        shown = number if caption is None else caption
        draw.text((_MARGIN, y + _TEXT), str(shown), font=font(_SMALL), fill=GREY, anchor="ls")
        draw_caption(draw, setting, (_MARGIN + _GUTTER, y), _TEXT, styles, boxed)
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


def _enlarge(picture: Pillow.Image, scale: float | None) -> Pillow.Image:
    if scale is None:
        scale = LONGER_SIDE / max(picture.size)
    if not 0 < scale < 1e6 or picture.width * picture.height * scale**2 > MAX_PIXELS:
        raise DeixisError(f"a picture of {picture.width} × {picture.height} pixels cannot be drawn at scale {scale:g}")
    width, height = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    return picture.resize((width, height), Pillow.Resampling.LANCZOS)


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
