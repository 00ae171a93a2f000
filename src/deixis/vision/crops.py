"""Inputs for networks: a centre crop, ten crops, the picture resized to a square, or with its aspect ratio.

Each is resampled once from the picture's pixels.
"""

from __future__ import annotations

from io import BytesIO

from PIL import Image as Pillow

BICUBIC, BILINEAR = Pillow.Resampling.BICUBIC, Pillow.Resampling.BILINEAR


def centre_crop(
    picture: Pillow.Image, side: int, share: float, resampling: Pillow.Resampling = BICUBIC
) -> Pillow.Image:
    """The central square, `share` of the shorter side wide, as `side` × `side` pixels.

    With `share` 224/256 this is "shorter side to 256, crop 224".
    """
    return _square(picture, 0.5, 0.5, side, share, resampling)


def ten_crops(
    picture: Pillow.Image, side: int, share: float, resampling: Pillow.Resampling = BICUBIC
) -> list[Pillow.Image]:
    """The four corners, the centre, and the mirror image of each."""
    places = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 0.5))
    crops = [_square(picture, across, down, side, share, resampling) for across, down in places]
    return crops + [crop.transpose(Pillow.Transpose.FLIP_LEFT_RIGHT) for crop in crops]


def squash(picture: Pillow.Image, side: int, resampling: Pillow.Resampling = BICUBIC, jpeg: int = 0) -> Pillow.Image:
    """The whole picture resized to a square, whatever its aspect ratio.

    Args:
        jpeg: a larger picture is turned into a JPEG file of this quality, of the square's size; 0: it is not. A
            network that has learned from small JPEG files expects their colours, which have half the resolution.
    """
    square = picture.resize((side, side), resampling)
    if not jpeg or max(picture.size) <= side:
        return square
    file = BytesIO()
    square.save(file, "JPEG", quality=jpeg, subsampling="4:2:0")
    return Pillow.open(file, formats=["JPEG"]).convert("RGB")


def fit(picture: Pillow.Image, side: int, multiple: int, resampling: Pillow.Resampling = BICUBIC) -> Pillow.Image:
    """The whole picture with nearly its aspect ratio, about `side` × `side` pixels, in multiples of `multiple`.

    So all pictures cost a network the same, and a corpus has few shapes. Aspect ratios are limited to 4 : 1.
    """
    aspect = min(max(picture.width / picture.height, 0.25), 4.0)
    width = max(1, round(side * aspect**0.5 / multiple)) * multiple
    height = max(1, round(side / aspect**0.5 / multiple)) * multiple
    return picture.resize((width, height), resampling)


def _square(
    picture: Pillow.Image, across: float, down: float, side: int, share: float, resampling: Pillow.Resampling
) -> Pillow.Image:
    """A square of the picture; `across` and `down` are its position between upper left and lower right corner."""
    extent = min(picture.size) * share
    left, top = (picture.width - extent) * across, (picture.height - extent) * down
    return picture.resize((side, side), resampling, box=(left, top, left + extent, top + extent))
