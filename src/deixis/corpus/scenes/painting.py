"""Figures to pixels, with Pillow: each mark first as a dark silhouette a little larger, then in its colour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from deixis.corpus.scenes.backdrops import SHADOWS, Canvas, paint_backdrop
from deixis.corpus.scenes.chance import Chance
from deixis.corpus.scenes.drawn_figures import OUTLINE, OVERSAMPLING, STAGE, Figure, colour_of, extent_of, sketch_of
from deixis.corpus.scenes.scene_colours import shade
from deixis.corpus.scenes.sketch import Mark, Point, tidy
from deixis.corpus.scenes.staging import Scene

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

#: How dark an outline is, as a factor on the colour it surrounds.
OUTLINE_LIGHT = 0.55


def paint_figures(draw: ImageDraw.ImageDraw, figures: Sequence[Figure], zoom: float) -> None:
    """Paint all figures in their order; what a figure holds comes with it, before its near arm."""
    held = {index for figure in figures for index in figure.held}
    for index, figure in enumerate(figures):
        if index not in held:
            paint_figure(draw, figure, [figures[index] for index in figure.held], zoom)


def paint_figure(draw: ImageDraw.ImageDraw, figure: Figure, held: Iterable[Figure], zoom: float) -> None:
    marks = sketch_of(figure.look, figure.pose, figure.run, figure.drop).marks
    for mark in marks:
        if not mark.front:
            _paint_mark(draw, figure, mark, zoom)
    for thing in held:
        paint_figure(draw, thing, (), zoom)
    for mark in marks:
        if mark.front:
            _paint_mark(draw, figure, mark, zoom)


def _paint_mark(draw: ImageDraw.ImageDraw, figure: Figure, mark: Mark, zoom: float) -> None:
    colour = shade(colour_of(figure.look, mark.colour), mark.light)
    shapes = [place(shape, figure, zoom) for shape in mark.shapes]
    if mark.outlined:
        dark = shade(colour, OUTLINE_LIGHT)
        for points in shapes:
            if len(points) == 2:
                (x1, y1), (x2, y2) = points
                draw.ellipse((x1 - OUTLINE, y1 - OUTLINE, x2 + OUTLINE, y2 + OUTLINE), fill=dark)
            else:
                draw.line([*points, points[0]], fill=dark, width=2 * OUTLINE + 1)
    for points in shapes:
        if len(points) == 2:
            draw.ellipse((*points[0], *points[1]), fill=colour)
        else:
            draw.polygon(points, fill=colour)


def place(shape: Sequence[Point], figure: Figure, zoom: float) -> list[tuple[int, int]]:
    """A shape's points as oversampled pixels; the corners of an oval come in ascending order."""
    across, down = figure.scale * zoom * figure.facing, figure.scale * zoom
    left, top = figure.x * zoom, figure.y * zoom
    points = [(round(left + tidy(x) * across), round(top + tidy(y) * down)) for x, y in shape]
    if len(points) == 2 and figure.facing < 0:
        (x1, y1), (x2, y2) = points
        return [(x2, y1), (x1, y2)]
    return points


def render(scene: Scene, seed: int, size: tuple[int, int]) -> Image.Image:
    """A scene's picture."""
    from PIL import Image

    zoom = OVERSAMPLING * size[0] / STAGE[0]
    canvas = Canvas(Image.new("RGB", (size[0] * OVERSAMPLING, size[1] * OVERSAMPLING)), zoom)
    paint_surroundings(canvas, scene, seed)
    paint_figures(canvas.draw, scene.figures, zoom)
    return canvas.picture.reduce(OVERSAMPLING)


def paint_surroundings(canvas: Canvas, scene: Scene, seed: int) -> None:
    """The backdrop, the figures' shadows and the lines that fast ones leave behind."""
    setting = scene.plan.setting
    paint_backdrop(canvas, Chance(seed, "backdrop", scene.family), setting, scene.plan.conditions)
    for index in scene.grounded:
        figure = scene.figures[index]
        x1, _, x2, _ = extent_of(figure)
        half = (x2 - x1) / 2
        canvas.oval((x1 + x2) / 2, figure.y, half * 1.05, 2 + half * 0.09, SHADOWS[setting])
    for index in scene.speeding:
        figure = scene.figures[index]
        x1, y1, x2, y2 = extent_of(figure)
        for part, length in ((0.3, 12), (0.5, 17), (0.7, 12)):
            y = y1 + (y2 - y1) * part
            tail = x1 - 4 if figure.facing > 0 else x2 + 4
            canvas.line([(tail, y), (tail - length * figure.facing, y)], 1.3, shade(SHADOWS[setting], 1.5))
