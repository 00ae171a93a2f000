"""What is behind the figures: sky, ground and decoration of each setting, with small variations by chance."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from deixis.corpus.scenes.catalog import FAIR, NIGHT, RAIN, SETTINGS, Conditions
from deixis.corpus.scenes.chance import Chance
from deixis.corpus.scenes.scene_colours import Colour, shade
from deixis.corpus.scenes.sketch import Point, curve

if TYPE_CHECKING:
    from PIL import Image

WHITE: Colour = (255, 255, 255)


class Canvas:
    """A picture painted in the stage's coordinates."""

    def __init__(self, picture: Image.Image, zoom: float) -> None:
        from PIL import ImageDraw

        self.picture, self.zoom = picture, zoom
        self.draw = ImageDraw.Draw(picture)

    def fade(self, top: float, bottom: float, upper: Colour, lower: Colour) -> None:
        """Fill from one height to another with a vertical change of colour."""
        from PIL import Image

        steps = 24
        strip = Image.new("RGB", (1, steps))
        for step in range(steps):
            share = step / (steps - 1)
            red, green, blue = (
                round(above + (below - above) * share) for above, below in zip(upper, lower, strict=True)
            )
            strip.putpixel((0, step), (red, green, blue))
        height = round(bottom * self.zoom) - round(top * self.zoom)
        filled = strip.resize((1, height), Image.Resampling.BILINEAR).resize((self.picture.width, height))
        self.picture.paste(filled, (0, round(top * self.zoom)))

    def polygon(self, points: list[Point], colour: Colour) -> None:
        self.draw.polygon([(round(x * self.zoom), round(y * self.zoom)) for x, y in points], fill=colour)

    def box(self, x1: float, y1: float, x2: float, y2: float, colour: Colour) -> None:
        self.draw.rectangle([round(edge * self.zoom) for edge in (x1, y1, x2, y2)], fill=colour)

    def oval(self, x: float, y: float, across: float, down: float, colour: Colour) -> None:
        corners = (x - across, y - down, x + across, y + down)
        self.draw.ellipse([round(edge * self.zoom) for edge in corners], fill=colour)

    def line(self, points: list[Point], width: float, colour: Colour) -> None:
        pixels = [(round(x * self.zoom), round(y * self.zoom)) for x, y in points]
        self.draw.line(pixels, fill=colour, width=max(1, round(width * self.zoom)))


def _clouds(canvas: Canvas, chance: Chance, colour: Colour = WHITE, lowest: float = 60) -> None:
    for _ in range(2 + int(chance.random() * 2)):
        x, y, size = chance.between(0, 320), chance.between(14, lowest), chance.between(0.7, 1.3)
        for dx, dy, radius in ((-16, 2, 9), (-5, -4, 12), (9, -2, 11), (20, 3, 8)):
            canvas.oval(x + dx * size, y + dy * size, radius * size * 1.15, radius * size * 0.8, colour)


def _sun(canvas: Canvas, chance: Chance) -> None:
    x = chance.between(30, 290)
    canvas.oval(x, 32, 21, 21, (255, 242, 190))
    canvas.oval(x, 32, 15, 15, (255, 222, 96))


def _heavens(
    canvas: Canvas, chance: Chance, conditions: Conditions, horizon: float, upper: Colour, lower: Colour, lowest: float
) -> None:
    """The sky by day: sun and white clouds where it is fair, low gray clouds where it rains."""
    if conditions == RAIN:
        canvas.fade(0, horizon, (126, 136, 150), (186, 192, 200))
        _clouds(canvas, chance, (104, 112, 126), lowest * 0.6)
        _clouds(canvas, chance, (148, 156, 168), lowest * 0.8)
        return
    canvas.fade(0, horizon, upper, lower)
    _sun(canvas, chance)
    _clouds(canvas, chance, lowest=lowest)


def _rain(canvas: Canvas, chance: Chance, area: tuple[float, float, float, float], drops: int) -> None:
    x1, y1, x2, y2 = area
    for _ in range(drops):
        x, y = chance.between(x1 + 4, x2), chance.between(y1, y2 - 11)
        canvas.line([(x, y), (x - 3.5, y + 11)], 0.9, (206, 218, 232))


def _hills(canvas: Canvas, chance: Chance, horizon: float, height: float, colour: Colour) -> None:
    for base in (-20, 90, 200):
        x, wide, high = base + chance.between(-20, 20), chance.between(150, 190), height * chance.between(0.6, 1)
        canvas.polygon(curve((x, horizon + 2), (x + wide / 2, horizon - 2 * high), (x + wide, horizon + 2), 16), colour)
        colour = shade(colour, 0.95)


def _tufts(canvas: Canvas, chance: Chance, top: float, colour: Colour, count: int = 26) -> None:
    for _ in range(count):
        x, y = chance.between(0, 320), chance.between(top, 238)
        size = 2 + (y - top) / 30
        canvas.line([(x - size, y - size), (x, y), (x + size * 0.6, y - size * 1.4)], 0.7, colour)


def _park(canvas: Canvas, chance: Chance, conditions: Conditions) -> None:
    _heavens(canvas, chance, conditions, 132, (120, 190, 240), (214, 238, 250), 60)
    _hills(canvas, chance, 132, 30, (150, 204, 136))
    for x in range(-6, 330, 15):
        radius = chance.between(9, 15)
        canvas.oval(x, 130, radius, radius * 0.9, shade((92, 164, 92), chance.between(0.92, 1.08)))
    canvas.fade(132, 240, (142, 202, 96), (104, 176, 74))
    bend = chance.between(90, 230)
    path = [*curve((bend - 14, 132), (bend - 90, 180), (bend - 60, 240), 12),
            *curve((bend + 20, 240), (bend - 20, 180), (bend + 2, 132), 12)]  # fmt: skip
    canvas.polygon(path, (226, 206, 160))
    _tufts(canvas, chance, 142, (78, 148, 62))


def _beach(canvas: Canvas, chance: Chance, conditions: Conditions) -> None:
    _heavens(canvas, chance, conditions, 96, (104, 186, 242), (206, 236, 252), 45)
    canvas.fade(96, 150, (38, 128, 196), (86, 186, 214))
    for _ in range(12):
        x, y = chance.between(0, 310), chance.between(102, 140)
        canvas.line([(x, y), (x + 5, y - 1.2), (x + 10, y)], 0.8, (170, 222, 240))
    shore = [(x, 147 + 3 * ((x // 40) % 2)) for x in range(0, 361, 40)]
    canvas.polygon([(0, 151), *shore, (360, 160), (0, 160)], (250, 252, 252))
    canvas.fade(152, 240, (246, 226, 170), (236, 206, 140))
    canvas.polygon([(0, 153), *[(x, y + 4) for x, y in shore], (360, 160), (0, 160)], (240, 218, 158))
    for _ in range(40):
        x, y = chance.between(0, 320), chance.between(160, 238)
        canvas.oval(x, y, 0.9, 0.6, (206, 174, 112))


def _buildings(
    canvas: Canvas, chance: Chance, ground: float, tints: tuple[Colour, ...], window: Colour, lit: float
) -> None:
    x = -10.0
    while x < 320:
        wide, top = chance.between(38, 62), chance.between(16, 62)
        tint = chance.pick(tints)
        canvas.box(x, top, x + wide, ground, tint)
        canvas.box(x, top, x + wide, top + 3, shade(tint, 0.8))
        columns = int(wide // 14)
        for row in range(int((ground - top - 22) // 16)):
            for column in range(columns):
                left = x + 6 + column * (wide - 6) / columns
                glow = window if chance.maybe(lit) else shade(tint, 0.72)
                canvas.box(left, top + 9 + row * 16, left + 7, top + 19 + row * 16, glow)
        x += wide + 1


def _street(canvas: Canvas, chance: Chance, conditions: Conditions) -> None:
    _heavens(canvas, chance, conditions, 140, (150, 204, 242), (226, 240, 248), 30)
    tints = ((214, 150, 120), (222, 196, 150), (170, 178, 192), (196, 134, 134), (160, 188, 178))
    _buildings(canvas, chance, 140, tints, (224, 240, 250), 0.85)
    canvas.box(0, 140, 320, 166, (206, 204, 200))
    for x in range(-20, 340, 28):
        canvas.line([(x + 6, 140), (x, 166)], 0.7, (178, 176, 172))
    canvas.box(0, 164, 320, 168, (164, 162, 160))
    canvas.fade(168, 240, (112, 114, 122), (96, 98, 106))
    for x in range(-10, 330, 56):
        canvas.polygon([(x, 200), (x + 30, 200), (x + 28, 204), (x - 3, 204)], (240, 240, 232))


def _snow(canvas: Canvas, chance: Chance, conditions: Conditions) -> None:
    canvas.fade(0, 136, (166, 198, 226), (226, 236, 244))
    for base, high in ((-30, 74), (80, 96), (190, 80)):
        x, top = base + chance.between(-15, 15), 136 - high * chance.between(0.75, 1)
        canvas.polygon([(x, 138), (x + 85, top), (x + 170, 138)], (150, 170, 196))
        canvas.polygon([(x + 55, top + (136 - top) * 0.36), (x + 85, top), (x + 115, top + (136 - top) * 0.36),
                        (x + 98, top + (136 - top) * 0.28), (x + 85, top + (136 - top) * 0.4),
                        (x + 70, top + (136 - top) * 0.28)], (246, 250, 255))  # fmt: skip
    canvas.fade(136, 240, (238, 244, 250), (216, 228, 242))
    for _ in range(6):
        x, y = chance.between(0, 320), chance.between(150, 230)
        canvas.oval(x, y, chance.between(20, 46), 3, (204, 218, 236))
    for _ in range(60):
        canvas.oval(chance.between(0, 320), chance.between(0, 150), 1.2, 1.2, WHITE)


def _room(canvas: Canvas, chance: Chance, conditions: Conditions) -> None:
    wall = chance.pick(((246, 222, 186), (204, 222, 226), (226, 212, 232), (214, 228, 200)))
    canvas.fade(0, 152, shade(wall, 0.97), wall)
    for stripe in range(0, 320, 32):
        canvas.box(stripe, 0, stripe + 15, 146, shade(wall, 1.12))
    canvas.box(0, 146, 320, 153, (250, 246, 240))
    canvas.fade(153, 240, (196, 148, 100), (178, 128, 82))
    for y in (165, 180, 198, 219):
        canvas.line([(0, y), (320, y)], 0.7, (160, 112, 70))
    x = chance.between(30, 90)
    canvas.box(x - 4, 18, x + 66, 92, (250, 250, 246))
    sky, bush = WINDOWS[conditions]
    canvas.box(x, 22, x + 62, 88, sky)
    canvas.polygon(curve((x + 2, 88), (x + 26, 48), (x + 50, 88), 12), bush)
    if conditions == FAIR:
        canvas.oval(x + 50, 34, 8, 8, (255, 222, 96))
    elif conditions == RAIN:
        _rain(canvas, chance, (x, 22, x + 62, 88), 26)
    else:
        canvas.oval(x + 48, 36, 7, 7, (250, 242, 204))
        canvas.oval(x + 51, 34, 6, 6, sky)
    canvas.box(x, 88, x + 62, 92, (236, 236, 230))
    canvas.box(x + 29.5, 22, x + 32.5, 88, (250, 250, 246))
    canvas.box(x, 53, x + 62, 56, (250, 250, 246))
    for left, right in ((x - 14, x + 4), (x + 58, x + 76)):
        canvas.polygon([(left, 12), (right, 12), (right - 3, 98), (left - 2 + 4, 98)], (206, 92, 84))
    frame = chance.between(200, 250)
    canvas.box(frame, 30, frame + 46, 66, (150, 104, 62))
    canvas.box(frame + 4, 34, frame + 42, 62, (244, 234, 208))
    canvas.polygon(
        [(frame + 4, 62), (frame + 18, 44), (frame + 28, 54), (frame + 36, 47), (frame + 42, 62)], (110, 160, 150)
    )
    canvas.oval(160, 206, 130, 24, (196, 82, 84))
    canvas.oval(160, 206, 118, 20, (224, 186, 140))
    canvas.oval(160, 206, 108, 17, (190, 96, 96))


def _pitch(canvas: Canvas, chance: Chance, conditions: Conditions) -> None:
    _heavens(canvas, chance, conditions, 112, (128, 196, 242), (216, 238, 250), 44)
    canvas.box(0, 92, 320, 116, (126, 132, 150))
    for row in range(3):
        for x in range(3, 320, 8):
            tint = chance.pick(((226, 96, 86), (90, 130, 210), (244, 214, 90), (236, 236, 236), (110, 112, 126)))
            canvas.oval(x + row * 3, 97 + row * 6, 2.2, 2.2, tint)
    canvas.box(0, 112, 320, 124, chance.pick(((44, 84, 150), (150, 54, 54), (60, 110, 80))))
    for stripe in range(8):
        top, bottom, edge = 124.0, 240.0, 40.0
        tint = (96, 176, 82) if stripe % 2 else (84, 162, 72)
        left, right = stripe * edge, (stripe + 1) * edge
        canvas.polygon(
            [(left, top), (right, top), (160 + (right - 160) * 2.2, bottom), (160 + (left - 160) * 2.2, bottom)], tint
        )
    canvas.line([(0, 134), (320, 134)], 1.6, WHITE)
    canvas.line([(0, 232), (320, 232)], 2.2, WHITE)
    middle = chance.between(110, 210)
    canvas.line([(middle, 134), (160 + (middle - 160) * 1.7, 232)], 1.8, WHITE)


def _farm(canvas: Canvas, chance: Chance, conditions: Conditions) -> None:
    _heavens(canvas, chance, conditions, 128, (138, 200, 240), (242, 240, 220), 60)
    _hills(canvas, chance, 128, 34, (196, 208, 120))
    canvas.fade(128, 152, (232, 206, 110), (222, 190, 92))
    for x in range(0, 320, 10):
        canvas.line([(x, 152), (x + chance.between(-2, 2), 140)], 0.8, (206, 170, 76))
    canvas.fade(150, 240, (150, 198, 90), (120, 178, 74))
    for x in range(4, 330, 34):
        canvas.box(x, 134, x + 4, 158, (184, 140, 96))
    for y in (138, 147):
        canvas.box(0, y, 320, y + 3, (198, 154, 108))
    _tufts(canvas, chance, 164, (92, 152, 60))


def _night(canvas: Canvas, chance: Chance, conditions: Conditions) -> None:
    canvas.fade(0, 142, (18, 24, 62), (64, 62, 112))
    for _ in range(40):
        canvas.oval(chance.between(0, 320), chance.between(0, 70), 0.8, 0.8, (250, 246, 214))
    moon = chance.between(40, 280)
    canvas.oval(moon, 26, 13, 13, (250, 242, 204))
    canvas.oval(moon + 6, 23, 11, 11, (26, 32, 72))
    _buildings(canvas, chance, 142, ((46, 48, 86), (58, 54, 96), (38, 44, 76), (66, 60, 98)), (255, 222, 120), 0.5)
    canvas.box(0, 142, 320, 166, (104, 100, 128))
    canvas.box(0, 164, 320, 168, (78, 76, 102))
    canvas.fade(168, 240, (82, 80, 106), (70, 68, 94))
    lamp = chance.pick((34.0, 286.0))
    canvas.oval(lamp, 190, 60, 16, (112, 106, 112))
    canvas.box(lamp - 1.5, 60, lamp + 1.5, 164, (34, 34, 50))
    canvas.oval(lamp, 58, 13, 13, (120, 106, 108))
    canvas.oval(lamp, 58, 6, 6, (255, 236, 160))
    for x in range(-10, 330, 56):
        canvas.polygon([(x, 200), (x + 30, 200), (x + 28, 204), (x - 3, 204)], (190, 188, 198))


def _savanna(canvas: Canvas, chance: Chance, conditions: Conditions) -> None:
    canvas.fade(0, 134, (250, 186, 106), (255, 234, 186))
    canvas.oval(chance.between(50, 270), 90, 26, 26, (255, 214, 120))
    _hills(canvas, chance, 134, 18, (214, 160, 110))
    for _ in range(2):
        x = chance.between(10, 310)
        canvas.box(x - 1.5, 112, x + 1.5, 136, (120, 90, 60))
        canvas.oval(x, 110, 22, 6, (140, 140, 70))
    canvas.fade(134, 240, (226, 190, 104), (202, 160, 78))
    _tufts(canvas, chance, 142, (170, 128, 56), 40)


#: What one sees through the window of a room: the sky, a bush.
WINDOWS: dict[Conditions, tuple[Colour, Colour]] = {
    FAIR: ((168, 214, 244), (136, 192, 118)),
    RAIN: ((134, 144, 158), (92, 124, 92)),
    NIGHT: ((26, 32, 72), (30, 52, 54)),
}
BACKDROPS: dict[str, Callable[[Canvas, Chance, Conditions], None]] = {
    "park": _park,
    "beach": _beach,
    "street": _street,
    "snow": _snow,
    "room": _room,
    "pitch": _pitch,
    "farm": _farm,
    "night": _night,
    "savanna": _savanna,
}


def paint_backdrop(canvas: Canvas, chance: Chance, setting: str, conditions: Conditions) -> None:
    BACKDROPS[setting](canvas, chance, conditions)
    if conditions == RAIN and SETTINGS[setting].outdoors:
        _rain(canvas, chance, (0, 0, 320, 240), 170)


#: The colour of a figure's shadow on the ground of each setting.
SHADOWS: dict[str, Colour] = {
    "park": (88, 150, 66),
    "beach": (206, 176, 116),
    "street": (80, 82, 90),
    "snow": (190, 206, 228),
    "room": (150, 92, 70),
    "pitch": (66, 138, 60),
    "farm": (98, 152, 62),
    "night": (52, 50, 76),
    "savanna": (172, 132, 62),
}
