"""Cues beside the similarity of region and phrase: size, position, colour, detector (rows beyond the paper).

The authors' later paper (Plummer et al., "Flickr30k Entities", IJCV 2017) combines such cues for phrase localization
and learns their weights on validation pictures. A cue scores each box of a picture for a phrase:

- similarity: the score of a trained model,
- size: the share of the picture that the box covers,
- position: the log-likelihood of the box among the training boxes of the phrase's type (a Gaussian mixture over
  centre, width and height),
- colour: how close the box's mean colour is to the colour that the phrase names,
- detector: the probability of the class that the phrase names.

A cue that does not apply (no colour word, no class name) is 0 for every box. The score is the weighted sum. Weights
maximize the probability of a right box under a softmax over the boxes of a picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.mixture import GaussianMixture

from deixis.corpus import Image
from deixis.corpus.boxes import box_array, iou_matrix, merge
from deixis.metrics.localization import Localizer, PhraseQuery, gold_queries
from deixis.model import Localized

Floats = NDArray[np.float64]
CUES: Final = ("similarity", "size", "position", "colour", "detector")
#: Basic colours in sRGB, by the words that name them.
COLOURS: Final[Mapping[str, tuple[int, int, int]]] = {
    "black": (30, 30, 30),
    "white": (230, 230, 230),
    "gray": (128, 128, 128),
    "grey": (128, 128, 128),
    "red": (180, 40, 40),
    "green": (60, 120, 60),
    "blue": (50, 80, 160),
    "yellow": (210, 190, 60),
    "orange": (220, 130, 50),
    "brown": (110, 80, 55),
    "pink": (220, 140, 170),
    "purple": (110, 60, 130),
}
#: Distance in CIELAB at which the colour cue has fallen to 1 / e.
COLOUR_SCALE: Final = 30.0
#: Gaussians per type, and the fewest boxes that a type's mixture is fitted to.
GAUSSIANS, FEWEST_BOXES = 6, 50
#: IoU from which on a box is right.
RIGHT: Final = 0.5


def shape_features(boxes: Floats, size: tuple[float, float]) -> Floats:
    """Centre and logarithm of the sides of boxes `(n, 4)`, as shares of the picture: `(n, 4)`."""
    relative = boxes / np.tile(size, 2)
    sides = np.maximum(relative[:, 2:] - relative[:, :2], 1e-3)
    return np.concatenate([(relative[:, :2] + relative[:, 2:]) / 2, np.log(sides)], axis=1)


class PositionModel:
    """Where things of a type are, and how large: a mixture per type, fitted to annotated boxes of training pictures."""

    def __init__(self, images: Iterable[Image], seed: int = 0) -> None:
        rows: dict[str, list[Floats]] = {}
        for image in images:
            types = image.chain_types()
            for chain in image.chains:
                if chain.boxes and image.width and image.height:
                    boxes = np.asarray(merge(box_array(image.chain_boxes(chain.id)))[None], np.float64)
                    for name in types[chain.id]:
                        rows.setdefault(name, []).append(shape_features(boxes, (image.width, image.height)))
        self._mixtures = {
            name: GaussianMixture(GAUSSIANS, random_state=seed).fit(np.concatenate(vectors))
            for name, vectors in rows.items()
            if len(vectors) >= FEWEST_BOXES
        }

    def score(self, types: Sequence[str], boxes: Floats, size: tuple[float, float]) -> Floats:
        """The mean log-likelihood `(n,)` of boxes under the phrase's types; zeros if none is known."""
        known = [self._mixtures[name] for name in types if name in self._mixtures]
        if not known or not len(boxes):
            return np.zeros(len(boxes))
        features = shape_features(boxes, size)
        return np.asarray(np.mean([mixture.score_samples(features) for mixture in known], axis=0))


def mean_colours(picture: Pillow.Image, boxes: Floats) -> Floats:
    """The mean colour of boxes `(n, 4)`, in the picture's pixels, in CIELAB `(n, 3)`."""
    pixels = lab_colours(np.asarray(picture.convert("RGB"), np.float64) / 255)
    sums = np.zeros((pixels.shape[0] + 1, pixels.shape[1] + 1, 3))
    sums[1:, 1:] = pixels.cumsum(0).cumsum(1)
    limit = np.array([pixels.shape[1], pixels.shape[0]] * 2)
    corners = np.clip(np.round(boxes), 0, limit).astype(int)
    x1, y1 = np.minimum(corners[:, 0], limit[0] - 1), np.minimum(corners[:, 1], limit[1] - 1)
    x2, y2 = np.maximum(corners[:, 2], x1 + 1), np.maximum(corners[:, 3], y1 + 1)
    total = sums[y2, x2] - sums[y1, x2] - sums[y2, x1] + sums[y1, x1]
    return np.asarray(total / ((x2 - x1) * (y2 - y1))[:, None])


def lab_colours(rgb: Floats) -> Floats:
    """CIELAB (D65) of sRGB values in [0, 1], `(…, 3)`."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = linear @ np.array([[0.4124, 0.2126, 0.0193], [0.3576, 0.7152, 0.1192], [0.1805, 0.0722, 0.9505]])
    scaled = xyz / np.array([0.9505, 1.0, 1.089])
    root = np.where(scaled > 0.008856, np.cbrt(scaled), 7.787 * scaled + 16 / 116)
    x, y, z = np.moveaxis(root, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def colour_cue(words: Sequence[str], colours: Floats) -> Floats:
    """How close mean colours `(n, 3)` are to the colour that a phrase names, 0 to 1; zeros if it names none."""
    named = [COLOURS[word] for word in words if word in COLOURS]
    if not named:
        return np.zeros(len(colours))
    target = lab_colours(np.array(named[0], np.float64) / 255)
    return np.asarray(np.exp(-np.linalg.norm(colours - target, axis=1) / COLOUR_SCALE))


def named_class(words: Sequence[str], classes: Mapping[str, int]) -> int | None:
    """The class that a phrase names last: "a man on a red bike" is a person unless "bike" is a class, too.

    `classes` has words or two-word names and their numbers.
    """
    for end in range(len(words), 0, -1):
        for length in (2, 1):
            name = " ".join(words[max(0, end - length) : end])
            class_index = classes.get(name, classes.get(name.removesuffix("s")))
            if class_index is not None:
                return class_index
    return None


class CueLocalizer:
    """A localizer that adds cues to the scores of another.

    Args:
        base: gives boxes, the same for all phrases of a picture, and similarities.
        positions: fitted to training pictures.
        pictures: the picture of an image, in the pixels of its boxes; None: no colours.
        classes: names of a detector's classes and their columns.
        chances: the detector's class probabilities `(boxes, columns)` of an image's boxes; None: no detector.
    """

    def __init__(
        self,
        base: Localizer,
        positions: PositionModel,
        *,
        pictures: Callable[[Image], Pillow.Image] | None = None,
        classes: Mapping[str, int] | None = None,
        chances: Callable[[Image], Floats] | None = None,
    ) -> None:
        self._base, self._positions, self._pictures = base, positions, pictures
        self._classes, self._chances = classes or {}, chances
        self.weights = np.array([1.0, *(0.0 for _ in CUES[1:])])

    def __call__(self, image: Image, queries: Sequence[PhraseQuery]) -> Localized:
        boxes, cues = self.cues(image, queries)
        return Localized(boxes, cues @ self.weights)

    def cues(self, image: Image, queries: Sequence[PhraseQuery]) -> tuple[Floats, Floats]:
        """Boxes `(n, 4)` and the cues `(queries, n, len(CUES))`."""
        answer = self._base(image, queries)
        boxes, similarities = np.asarray(answer.boxes, np.float64), np.asarray(answer.scores, np.float64)
        size = (image.width, image.height)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(1) / np.prod(size)
        colours = None if self._pictures is None else mean_colours(self._pictures(image), boxes)
        chances = None if self._chances is None else self._chances(image)
        cues = np.zeros((len(queries), len(boxes), len(CUES)))
        for row, query in enumerate(queries):
            words = query.text.lower().split()
            cues[row, :, 0], cues[row, :, 1] = similarities[row], area
            cues[row, :, 2] = self._positions.score(query.phrase.types, boxes, size)
            if colours is not None:
                cues[row, :, 3] = colour_cue(words, colours)
            class_index = named_class(words, self._classes)
            if chances is not None and class_index is not None:
                cues[row, :, 4] = chances[:, class_index]
        return boxes, cues

    def fit(self, images: Iterable[Image], use: Sequence[str] = CUES) -> None:
        """Learn the weights of some cues on images, such as those of the validation split; the others get 0."""
        examples: list[tuple[Floats, NDArray[np.bool_]]] = []
        for image in images:
            queries, gold = gold_queries(image)
            if not queries:
                continue
            boxes, cues = self.cues(image, queries)
            for row, phrase_boxes in enumerate(gold):
                right = iou_matrix(boxes, merge(phrase_boxes)[None])[:, 0] >= RIGHT
                if right.any():
                    examples.append((cues[row], right))
        self.weights = learned_weights(examples, [CUES.index(name) for name in use])


def learned_weights(examples: Sequence[tuple[Floats, NDArray[np.bool_]]], use: Sequence[int]) -> Floats:
    """Weights `(cues,)` that maximize the mean log-probability of a right box; cues not in `use` have weight 0.

    Args:
        examples: for each phrase, the cues `(boxes, cues)` and which boxes are right, at least one.
        use: indices of the cues.
    """
    spread = np.concatenate([cues[:, use] - cues[:, use].mean(0) for cues, _ in examples]).std(0)
    # Cues differ in scale by orders of magnitude; scaled ones converge in a few steps.
    scale = np.where(spread > 0, spread, 1.0)
    scaled = [(cues[:, use] / scale, right) for cues, right in examples]

    def loss(weights: Floats) -> tuple[float, Floats]:
        value, gradient = 0.0, np.zeros_like(weights)
        for cues, right in scaled:
            scores = cues @ weights
            everything, correct = logsumexp(scores), logsumexp(scores[right])
            value += float(everything - correct)
            gradient += np.exp(scores - everything) @ cues - np.exp(scores[right] - correct) @ cues[right]
        return value / len(scaled), gradient / len(scaled)

    solution = minimize(loss, np.ones(len(use)), jac=True, method="L-BFGS-B", options={"maxiter": 50})
    weights = np.zeros(examples[0][0].shape[1])
    weights[list(use)] = solution.x / scale
    return weights
