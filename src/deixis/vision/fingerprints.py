"""Fingerprints of pictures: 256 bits that hardly change when a picture is resized, compressed or slightly edited.

A perceptual hash: the 16 × 16 lowest frequencies of the picture in grey, each above or below their median.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

#: Frequencies in each direction, and pixels that they are computed from.
FREQUENCIES, SIDE = 16, 64
#: Grey levels that a picture's frequencies must reach; below that, its bits would be chance.
FLAT = 0.5
BYTES = FREQUENCIES**2 // 8


def fingerprint(picture: Picture) -> bytes:
    """The fingerprint of a picture, `BYTES` long; nothing (`b""`) for a plain surface."""
    from PIL.Image import Resampling

    grey = np.asarray(picture.resize((SIDE, SIDE), Resampling.BOX).convert("L"), np.float64)
    spectrum = (_cosines() @ grey @ _cosines().T).ravel()
    if np.abs(spectrum[1:]).max() < FLAT * SIDE**2:
        return b""
    # The first is the mean brightness, which edits change.
    bits = spectrum > np.median(spectrum[1:])
    bits[0] = False
    return np.packbits(bits).tobytes()


def signs(fingerprints: list[bytes]) -> NDArray[np.float32]:
    """Bits as -1 and 1, `(fingerprints, bits)`: a dot product counts equal bits less different ones."""
    packed = np.frombuffer(b"".join(fingerprints), np.uint8).reshape(-1, BYTES)
    return np.unpackbits(packed, axis=1).astype(np.float32) * 2 - 1


@cache
def _cosines() -> NDArray[np.float64]:
    """The first rows of a discrete cosine transform."""
    places = 2 * np.arange(SIDE) + 1
    angles = np.pi / (2 * SIDE) * np.arange(FREQUENCIES)[:, None] * places
    return np.asarray(np.cos(angles), np.float64)
