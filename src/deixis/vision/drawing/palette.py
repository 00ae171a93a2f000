"""One colour per chain, for its boxes and for the phrases that mention it (Figure 1 of the Entities paper)."""

from __future__ import annotations

from dataclasses import dataclass

from deixis.corpus import Image

Colour = tuple[int, int, int]

#: Twelve colours with pairwise ΔE of at least 19, also for red-, green- and blue-blind vision.
PALETTE: tuple[Colour, ...] = (
    (226, 0, 53),
    (0, 134, 255),
    (27, 144, 90),
    (255, 196, 59),
    (134, 0, 188),
    (255, 93, 47),
    (255, 118, 134),
    (0, 194, 253),
    (158, 6, 104),
    (0, 255, 195),
    (132, 0, 35),
    (242, 143, 193),
)
INK: Colour = (29, 31, 35)
GREY: Colour = (128, 130, 134)
PAPER: Colour = (255, 255, 255)


@dataclass(frozen=True)
class ChainStyle:
    """How a chain is drawn. After twelve chains, colours repeat, dashed."""

    colour: Colour
    dashed: bool


def numbered_style(index: int) -> ChainStyle:
    """The style of the chain or box with this index."""
    return ChainStyle(PALETTE[index % len(PALETTE)], dashed=index >= len(PALETTE))


def chain_styles(image: Image) -> dict[str, ChainStyle]:
    """A style for each chain: chains with boxes first, then in the order in which captions mention them."""
    mentioned = {p.chain: None for caption in image.captions for p in caption.phrases if p.visual}
    order = {chain: index for index, chain in enumerate(mentioned)}
    ranked = sorted(image.chains, key=lambda chain: (not chain.boxes, order.get(chain.id, len(order))))
    return {chain.id: numbered_style(index) for index, chain in enumerate(ranked)}


def luminance(colour: Colour) -> float:
    """Relative luminance, 0 for black to 1 for white (WCAG 2.1)."""
    red, green, blue = ((c / 255 / 12.92) if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: Colour, second: Colour) -> float:
    """Contrast ratio, 1 to 21 (WCAG 2.1)."""
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def readable(colour: Colour, background: Colour = PAPER, ratio: float = 4.5) -> Colour:
    """The colour, darkened until text is readable on a light background."""
    while contrast(colour, background) < ratio:
        red, green, blue = colour
        colour = (red * 19 // 20, green * 19 // 20, blue * 19 // 20)
    return colour


def text_on(background: Colour) -> Colour:
    """Black or white, whichever is more readable on a label of this colour."""
    return max((0, 0, 0), PAPER, key=lambda colour: contrast(colour, background))
