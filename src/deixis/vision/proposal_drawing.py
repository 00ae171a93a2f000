"""Draw the best proposals of a picture, numbered by rank."""

from __future__ import annotations

from PIL import Image as Pillow

from deixis.corpus import Box
from deixis.vision.drawing.outlines import Outline, draw_outlines
from deixis.vision.drawing.pages import LONGER_SIDE
from deixis.vision.drawing.palette import PALETTE, ChainStyle
from deixis.vision.proposals import Proposals


def draw_proposals(picture: Pillow.Image, proposals: Proposals) -> Pillow.Image:
    """The picture, resized to a longer side of 900 pixels, with the rank of each box as its label."""
    scale = LONGER_SIDE / max(picture.size)
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    drawing = picture.resize(size, Pillow.Resampling.LANCZOS)
    across, down = size[0] / picture.width, size[1] / picture.height
    outlines = [
        Outline(Box(*box).scaled(across, down), ChainStyle(PALETTE[rank % len(PALETTE)], dashed=False), str(rank + 1))
        for rank, box in enumerate(proposals.boxes.tolist())
    ]
    draw_outlines(drawing, outlines)
    return drawing
