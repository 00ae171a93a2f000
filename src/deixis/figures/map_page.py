"""The page of an embedding space's map, one file that opens from disk and fetches nothing; and a still of it."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from importlib.resources import files

import msgspec
from PIL import Image as Pillow
from PIL import ImageDraw

from deixis.figures.embedding_map import SpaceMap
from deixis.vision.drawing.palette import GREY, INK, PALETTE, PAPER
from deixis.vision.drawing.typesetting import font, printable

#: The longer side of a thumbnail, on the page and on the still.
THUMBNAIL, STAMP = 160, 44
_SIDE, _MARGIN, _TEXT = 1500, 60, 18
#: Scripts and styles are in the file itself, pictures in it as data; nothing may be fetched.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_NAMES = {"tsne": "t-SNE", "pca": "PCA"}


def map_page(
    space_map: SpaceMap, pictures: Sequence[Pillow.Image], sizes: Sequence[tuple[float, float]], title: str
) -> str:
    """The page.

    Args:
        space_map: what is drawn.
        pictures: of its images, in the same order.
        sizes: width and height of the originals, in whose pixels regions are.
        title: what it is a map of.
    """
    static = files("deixis.figures") / "static"
    style, script = ((static / name).read_text("utf-8") for name in ("map.css", "map.js"))
    data = {
        "points": space_map.points,
        "images": space_map.images,
        "pictures": [_data_address(picture) for picture in pictures],
        "sizes": [list(size) for size in sizes],
    }
    # Inside a script nothing but this sequence can end it.
    encoded = msgspec.json.encode(data).decode().replace("<", "\\u003c")
    kinds = {point.kind for point in space_map.points}
    layers = "".join(
        f'<label><input type="checkbox" data-layer="{name}"{" checked" if name == "whole" else ""}> {text}</label>'
        for name, text, shown in (
            ("whole", "pictures and captions", True),
            ("fine", "regions and phrases", "region" in kinds),
            ("lines", "lines", True),
        )
        if shown
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{style}</style></head>\n<body>\n<header><h1>{escape(title)}</h1>\n"
        f"<p>{_summary(space_map)}</p>\n<div class=controls>{layers}"
        f'<label class=search>Find <input type="search" id="find" placeholder="words of a caption or phrase"></label>'
        f'<button type="button" id="whole">Show all</button></div></header>\n'
        f'<main><canvas id="map" tabindex="0" role="img" aria-describedby="help"></canvas>\n'
        f'<aside id="card" aria-live="polite"><p id="help">Point at a dot to see what it is. Drag to move, turn the '
        f"wheel to come closer; with the keyboard: arrows move, + and − zoom, n and p go from picture to picture.</p>"
        f'</aside></main>\n<script type="application/json" id="data">{encoded}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def _summary(space_map: SpaceMap) -> str:
    counts = [
        (kind, sum(point.kind == kind for point in space_map.points))
        for kind in ("image", "caption", "region", "phrase")
    ]
    summary = ", ".join(f"{count:,} {kind}{'s' if count != 1 else ''}" for kind, count in counts if count)
    return escape(f"{summary}, laid out by {_NAMES[space_map.method]}: neighbours match well.")


def _data_address(picture: Pillow.Image) -> str:
    small = picture.convert("RGB")
    small.thumbnail((THUMBNAIL, THUMBNAIL), Pillow.Resampling.LANCZOS)
    data = io.BytesIO()
    small.save(data, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()


def _spread(space_map: SpaceMap) -> list[tuple[float, float]]:
    """Positions on the page, so that pictures and captions, the only ones drawn, fill it."""
    drawn = [(point.x, point.y) for point in space_map.points if point.kind in ("image", "caption")]
    low, high = (tuple(map(end, zip(*drawn, strict=True))) for end in (min, max))
    span = max(high[0] - low[0], high[1] - low[1]) or 1.0
    before = [(_SIDE - _SIDE * (high[axis] - low[axis]) / span) / 2 + _MARGIN for axis in (0, 1)]
    return [
        (before[0] + _SIDE * (point.x - low[0]) / span, before[1] + _TEXT + _SIDE * (point.y - low[1]) / span)
        for point in space_map.points
    ]


def map_still(space_map: SpaceMap, pictures: Sequence[Pillow.Image], title: str) -> Pillow.Image:
    """Pictures as stamps, captions as dots, and the lines between them."""
    page = Pillow.new("RGB", (_SIDE + 2 * _MARGIN, _SIDE + 2 * _MARGIN + _TEXT), PAPER)
    draw = ImageDraw.Draw(page)
    places = _spread(space_map)
    shown = [(spot, point) for spot, point in zip(places, space_map.points, strict=True)]
    for position, point in shown:
        if point.kind == "caption" and point.to is not None:
            colour = PALETTE[point.picture % len(PALETTE)]
            pale = tuple((3 * 255 + part) // 4 for part in colour)
            draw.line((position, places[point.to]), fill=pale, width=2)
    for (x, y), point in shown:
        if point.kind == "caption":
            colour = PALETTE[point.picture % len(PALETTE)]
            draw.ellipse((x - 4, y - 4, x + 4, y + 4), fill=colour, outline=PAPER)
    for (x, y), point in shown:
        if point.kind == "image":
            stamp = pictures[point.picture].convert("RGB")
            stamp.thumbnail((STAMP, STAMP), Pillow.Resampling.LANCZOS)
            left, top = round(x - stamp.width / 2), round(y - stamp.height / 2)
            frame = (left - 2, top - 2, left + stamp.width + 1, top + stamp.height + 1)
            draw.rectangle(frame, fill=PALETTE[point.picture % len(PALETTE)])
            page.paste(stamp, (left, top))
    draw.text((_MARGIN, _MARGIN - 14), printable(title), font=font(_TEXT), fill=INK, anchor="ls")
    note = f"{_NAMES[space_map.method]}; pictures, dots are their captions"
    draw.text((page.width - _MARGIN, _MARGIN - 14), note, font=font(_TEXT), fill=GREY, anchor="rs")
    return page
