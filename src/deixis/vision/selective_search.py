"""Selective search (Uijlings et al. 2013) through OpenCV: boxes of the regions that a hierarchical grouping passes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from PIL import Image as Pillow

from deixis.vision.opencv import LONGER_SIDE, load_opencv, working_copy
from deixis.vision.proposals import Proposals, diversified


class SelectiveSearch:
    """`quality` uses more colour spaces and segmentations than the default "fast", and takes many times as long."""

    saw_boxes = False
    overlap = 0.6

    def __init__(self, *, quality: bool = False) -> None:
        self._cv2 = load_opencv()
        self._quality = quality
        self.name = "selective-search-quality" if quality else "selective-search"
        self.settings: Mapping[str, str | int | float] = {
            "overlap": self.overlap,
            "longer_side": LONGER_SIDE,
            "opencv": str(self._cv2.__version__),
        }

    def propose(self, picture: Pillow.Image, count: int) -> Proposals:
        pixels, scale = working_copy(picture)
        search = self._cv2.ximgproc.segmentation.createSelectiveSearchSegmentation()
        search.setBaseImage(np.ascontiguousarray(pixels[..., ::-1]))
        if self._quality:
            search.switchToSelectiveSearchQuality()
        else:
            search.switchToSelectiveSearchFast()
        rectangles = np.asarray(search.process(), np.float64).reshape(-1, 4)
        # OpenCV's order uses C's `rand` and begins with the smallest segments. Large boxes first, the order of the
        # hierarchy from its root, have better recall and are reproducible.
        boxes = np.unique(np.concatenate([rectangles[:, :2], rectangles[:, :2] + rectangles[:, 2:]], 1), axis=0)
        share = (boxes[:, 2:] - boxes[:, :2]).prod(1) / (pixels.shape[0] * pixels.shape[1])
        return diversified(boxes * scale, share, self.overlap, count)
