"""Crops: where they are cut, and that ten of them are the corners, the centre and their mirror images."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image as Pillow

from deixis.vision.crops import centre_crop, fit, squash, ten_crops


def coordinates(width: int, height: int) -> Pillow.Image:
    """Red tells how far across a pixel is, green how far down, 0–255 over the picture."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.rint((np.arange(width) + 0.5) / width * 255)
    pixels[..., 1] = np.rint((np.arange(height) + 0.5) / height * 255)[:, None]
    return Pillow.fromarray(pixels)


def extent(crop: Pillow.Image, picture: Pillow.Image) -> tuple[float, float, float, float]:
    """Which part of the picture of coordinates a crop shows, in the picture's pixels, from its middle lines."""
    values = np.asarray(crop, float)
    low, high = crop.width // 4, crop.width * 3 // 4
    across, down = (
        values[crop.height // 2, :, 0] / 255 * picture.width,
        values[:, crop.width // 2, 1] / 255 * picture.height,
    )
    edges = []
    for line in (across, down):
        slope = (line[high] - line[low]) / (high - low)
        edges.append((line[low] - slope * (low + 0.5), line[high] + slope * (len(line) - high - 0.5)))
    (x1, x2), (y1, y2) = edges
    return x1, y1, x2, y2


@pytest.mark.parametrize(("width", "height"), [(400, 300), (300, 400), (256, 256)])
def test_the_centre_crop_is_shorter_side_to_256_then_224(width: int, height: int) -> None:
    picture = coordinates(width, height)
    crop = centre_crop(picture, 224, 224 / 256)
    assert crop.size == (224, 224)
    side = min(width, height) * 224 / 256
    expected = ((width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2)
    np.testing.assert_allclose(extent(crop, picture), expected, atol=2.5)
    # The usual two steps give the same picture, up to rounding.
    scale = 256 / min(width, height)
    resized = picture.resize((round(width * scale), round(height * scale)), Pillow.Resampling.BICUBIC)
    left, top = (resized.width - 224) / 2, (resized.height - 224) / 2
    two_steps = resized.crop((round(left), round(top), round(left) + 224, round(top) + 224))
    assert np.abs(np.asarray(crop, float) - np.asarray(two_steps, float)).mean() < 1


def test_ten_crops_are_corners_centre_and_mirrors() -> None:
    picture = coordinates(400, 300)
    crops = ten_crops(picture, 224, 0.8)
    assert len(crops) == 10
    corners = [extent(crop, picture)[:2] for crop in crops[:5]]
    np.testing.assert_allclose(corners, [(0, 0), (160, 0), (0, 60), (160, 60), (80, 30)], atol=2.5)
    for crop, mirror in zip(crops[:5], crops[5:], strict=True):
        np.testing.assert_array_equal(np.asarray(mirror), np.asarray(crop)[:, ::-1])
    np.testing.assert_array_equal(np.asarray(crops[4]), np.asarray(centre_crop(picture, 224, 0.8)))


def test_squash_shows_all() -> None:
    picture = coordinates(400, 300)
    np.testing.assert_allclose(extent(squash(picture, 100), picture), (0, 0, 400, 300), atol=3)


def test_fit_keeps_aspect_and_cost() -> None:
    for width, height in ((500, 333), (333, 500), (320, 240), (3000, 2000), (400, 400)):
        fitted = fit(coordinates(width, height), 384, 32)
        assert fitted.width % 32 == fitted.height % 32 == 0
        assert abs(np.log(fitted.width / fitted.height * height / width)) < 0.12
        assert abs(np.log(fitted.width * fitted.height / 384**2)) < 0.12
    assert fit(Pillow.new("RGB", (5000, 3)), 128, 32).size == (256, 64)
    assert fit(Pillow.new("RGB", (1, 4000)), 16, 32).size == (32, 32)


def test_a_larger_picture_is_squashed_to_a_jpeg_file_whose_colours_have_half_the_resolution() -> None:
    stripes = np.zeros((80, 80, 3), np.uint8)
    # Red and a grey that is as bright, in turns: of two columns one colour is left, and their brightness.
    stripes[:, ::2], stripes[:, 1::2] = (200, 0, 0), (60, 60, 60)
    picture = Pillow.fromarray(stripes)
    squashed = np.asarray(squash(picture, 79, jpeg=90), int)
    assert np.abs(squashed[..., 1] - squashed[..., 2]).max() < 30
    reds = squashed[10:60, 10:60, 0] - squashed[10:60, 10:60, 1]
    assert np.ptp(reds) < 40
    assert np.ptp(np.asarray(squash(picture, 79), int)[10:60, 10:60, 0]) > 90
    # A picture that is no larger is a small file already.
    assert np.array_equal(np.asarray(squash(picture, 80, jpeg=90)), stripes)
