"""OpenCV's contrib modules, an optional dependency; `working_copy` prepares a picture for them."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from deixis.errors import DeixisError

#: Pictures are resized to this longer side in pixels, at which the parameters of the methods were chosen.
LONGER_SIDE = 320


def load_opencv() -> Any:
    """The module `cv2` with `ximgproc`, or an error that says how to install it."""
    try:
        cv2 = importlib.import_module("cv2")
    except ImportError:
        raise DeixisError("EdgeBoxes and selective search need OpenCV: pip install 'deixis[proposals]'") from None
    if not hasattr(cv2, "ximgproc"):
        raise DeixisError(
            "EdgeBoxes and selective search need OpenCV's contrib modules, and another OpenCV package hides them: "
            "pip uninstall opencv-python opencv-python-headless, then pip install --force-reinstall 'deixis[proposals]'"
        )
    return cv2


def working_copy(
    picture: Pillow.Image, longer_side: int = LONGER_SIDE
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """RGB `(height, width, 3)` at the working size, and the factors `(4,)` that scale boxes back."""
    scale = longer_side / max(picture.size)
    size = max(8, round(picture.width * scale)), max(8, round(picture.height * scale))
    copy = picture if picture.size == size else picture.resize(size, Pillow.Resampling.BILINEAR)
    return np.asarray(copy), np.divide(picture.size, size)[[0, 1, 0, 1]]
