"""Proposals through OpenCV: EdgeBoxes (Zitnick and Dollár 2014) and selective search (Uijlings et al. 2013).

EdgeBoxes finds boxes that wholly contain many contours. It needs the edges of a structured forest, whose trained model
cannot be bundled. You can give the file; without it, edges are computed here: colour gradients at several scales,
relative to their surroundings, thinned.
`results/benchmarks/edges.json` has the recall on validation pictures of Flickr8k with each part removed: contrast
with the surroundings and kappa matter most, several scales give tighter boxes (IoU 0.7), colour
makes no clear difference.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from deixis.errors import DeixisError, InputError
from deixis.vision import EdgeBoxesSettings
from deixis.vision.proposals import Proposals, diversified
from deixis.vision.weights import file_sha256

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


Floats = NDArray[np.float32]

#: Pixels of Gaussian blur before each gradient, and of the window in which gradients are pooled into an orientation.
_SCALES, _POOL = (1, 2, 4, 8), 1
#: Weights of lightness and of the two colour axes, in units of 100.
_LAB = (1, 2, 2)
#: The share of pixels that count as full edges.
_FULL = 0.01
#: Pixels of blur that give an edge's surroundings, and what is added to their strength before it divides the edge's.
_AROUND, _FLOOR = 16, 0.3


class EdgeBoxes:
    """`edge_model` is the file of the structured forest (`model.yml.gz`), if you have it."""

    name = "edge-boxes"
    saw_boxes = False
    overlap = 0.55
    #: Boxes smaller than this share of the picture, or with a larger aspect ratio, are ignored.
    least_share, longest_shape = 0.01, 6.0
    #: OpenCV's own suppression, looser than ours, and its least number of boxes.
    candidate_overlap, candidates = 0.7, 1000
    #: How fast the score decreases with a box's size; OpenCV's default is 1.5.
    kappa = 1.3

    def __init__(self, edge_model: str | Path | None = None, parameters: EdgeBoxesSettings | None = None) -> None:
        self._cv2 = load_opencv()
        self._forest = None if edge_model is None else _load_forest(self._cv2, Path(edge_model))
        self._parameters = parameters
        self.settings: Mapping[str, str | int | float] = {
            "edges": "gradients" if edge_model is None else f"structured forest {file_sha256(Path(edge_model))}",
            **(
                {"overlap": self.overlap, "longer_side": LONGER_SIDE}
                if parameters is None
                else {"overlap": parameters.beta, "gamma": parameters.gamma, "longer_side": parameters.longer_side}
            ),
            "opencv": str(self._cv2.__version__),
        }

    def propose(self, picture: Pillow.Image, count: int) -> Proposals:
        parameters = self._parameters
        longer_side = LONGER_SIDE if parameters is None else parameters.longer_side or max(picture.size)
        pixels, scale = working_copy(picture, longer_side)
        edges, orientation = self.edges(pixels)
        if parameters is None:
            options = {"beta": self.candidate_overlap, "maxBoxes": max(self.candidates, 5 * count)}
        else:
            options = {"beta": parameters.beta, "gamma": parameters.gamma, "maxBoxes": count}
        search = self._cv2.ximgproc.createEdgeBoxes(
            **options,
            kappa=self.kappa,
            minScore=1e-4,
            maxAspectRatio=self.longest_shape,
            minBoxArea=self.least_share * edges.size,
        )
        windows, scores = search.getBoundingBoxes(edges, orientation)
        # Without results, the boxes are an empty tuple and the scores None.
        rectangles = np.asarray(windows, np.float64).reshape(-1, 4)
        boxes = np.concatenate([rectangles[:, :2], rectangles[:, :2] + rectangles[:, 2:]], 1) * scale
        # With given parameters, OpenCV has suppressed at β already.
        overlap = self.overlap if parameters is None else 1.0
        return diversified(boxes, np.asarray(scores, np.float64).reshape(-1)[: len(boxes)], overlap, count)

    def edges(self, pixels: NDArray[np.uint8]) -> tuple[Floats, Floats]:
        """Thin edges in [0, 1] and the direction across them in [0, π), each `(height, width)`."""
        if self._forest is None:
            strength, orientation = gradient_edges(self._cv2, pixels)
            return thinned(self._cv2, strength, orientation), orientation
        strength = self._forest.detectEdges(pixels.astype(np.float32) / 255)
        orientation = self._forest.computeOrientation(strength)
        return self._forest.edgesNms(strength, orientation), orientation


def gradient_edges(cv2: Any, pixels: NDArray[np.uint8]) -> tuple[Floats, Floats]:
    """Edge strength in [0, 1], and the direction in [0, π) across the edge, from an RGB picture.

    Gradients of the three Lab channels at all scales are pooled in one structure tensor, whose larger eigenvalue is the
    strength: a change of colour alone is an edge, and texture, which has no single direction and vanishes at coarse
    scales, counts less. Divided by their surroundings, weak edges on smooth ground count more than those in clutter.
    """
    lab = cv2.cvtColor(pixels.astype(np.float32) / 255, cv2.COLOR_RGB2Lab) * (np.array(_LAB, np.float32) / 100)
    tensor = np.zeros((3, *pixels.shape[:2]), np.float32)
    for scale in _SCALES:
        # Blur flattens an edge as it widens it; the factor compensates for that.
        blurred = cv2.GaussianBlur(lab, (0, 0), scale) * scale
        x, y = cv2.Sobel(blurred, cv2.CV_32F, 1, 0), cv2.Sobel(blurred, cv2.CV_32F, 0, 1)
        tensor += [(x * x).sum(2), (x * y).sum(2), (y * y).sum(2)]
    xx, xy, yy = (cv2.GaussianBlur(part, (0, 0), _POOL) for part in tensor)
    strength = _capped(np.sqrt(np.maximum(xx + yy + np.hypot(xx - yy, 2 * xy), 0) / 2))
    strength = _capped(strength / (cv2.GaussianBlur(strength, (0, 0), _AROUND) + _FLOOR))
    orientation = np.mod(np.arctan2(2 * xy, xx - yy) / 2, np.pi).astype(np.float32)
    # The remainder of a tiny negative angle rounds to π, which is 0.
    orientation[orientation >= np.float32(np.pi)] = 0
    return strength, orientation


def _capped(strength: Floats) -> Floats:
    """Scaled so that the strongest pixels, `_FULL` of them, are 1; a picture without edges stays at 0."""
    full = max(float(np.quantile(strength, 1 - _FULL)), 1e-6)
    return np.asarray(np.minimum(strength / full, 1), np.float32)


def thinned(cv2: Any, strength: Floats, orientation: Floats) -> Floats:
    """Edges one pixel wide: a pixel weaker than a neighbour across the edge is removed."""
    rows, columns = np.indices(strength.shape, np.float32)
    across, down = np.cos(orientation), np.sin(orientation)
    highest = np.zeros_like(strength)
    for sign in (-1, 1):
        neighbour = cv2.remap(
            strength, columns + sign * across, rows + sign * down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
        )
        highest = np.maximum(highest, neighbour)
    return np.where(strength >= highest, strength, np.float32(0))


#: Required in the file of a structured forest: numbers under `options`, and lists with one entry per tree.
_OPTIONS = ("stride", "shrinkNumber", "patchSize", "patchInnerSize", "numberOfGradientOrientations", "numberOfTrees",
            "selfsimilarityGridSize", "numberOfTreesToEvaluate")  # fmt: skip
_LISTS = ("childs", "featureIds", "thresholds", "edgeBoundaries", "edgeBins")


def _load_forest(cv2: Any, path: Path) -> Any:
    """OpenCV's edge detector. The file is checked, since OpenCV ends the process if parts are missing."""
    if not path.is_file():
        raise InputError(path, "no such edge model; it should be model.yml.gz of OpenCV's structured forests")
    try:
        storage = cv2.FileStorage(str(path), cv2.FILE_STORAGE_READ)
        options = storage.getNode("options")
        numbers = {name: 0 if options.getNode(name).empty() else options.getNode(name).real() for name in _OPTIONS}
        trees = [storage.getNode(name).size() for name in _LISTS if storage.getNode(name).isSeq()]
        if min(numbers.values()) >= 1 and trees == [numbers["numberOfTrees"]] * len(_LISTS):
            return cv2.ximgproc.createStructuredEdgeDetection(str(path))
    except (cv2.error, SystemError):
        pass
    raise InputError(path, "is not an edge model of OpenCV's structured forests")


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
