"""Grounding with the graphs of a bundle: phrases to boxes in a picture, without PyTorch.

It answers as `deixis.base.grounding_model`, which has the same networks in PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from deixis.adapters.bundles import BACKBONE, GROUNDING_BACKBONE, PHRASES, PROPOSALS, REGIONS
from deixis.adapters.graph_runner import ANY, Array, GraphRunner
from deixis.adapters.phrase_distance import Distances
from deixis.adapters.plural_boxes import plural_boxes
from deixis.adapters.search_model import squashed
from deixis.corpus.boxes import iou_matrix
from deixis.model import Grounding, Localized, Mention, Text, Tokens, as_box, asked_phrases
from deixis.text.vocabulary import PAD, Vocabulary

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

#: Intersection over union that makes a hit, and how many boxes are ranked by what they cover.
HIT, RANKED = 0.5, 10
#: As in `deixis.base.grounding_boxes`.
FIRST_SHARPNESS, LEAST = 1.5, 1e-6
#: Outputs of the backbone that grounding needs.
LEVELS = ("level_8", "level_16", "level_32")


class GroundingSettings(msgspec.Struct, frozen=True):
    """What is needed here of a `deixis.base.grounding_network.GroundingRecipe`."""

    side: Annotated[int, Meta(ge=1, le=1024)]
    width: Annotated[int, Meta(ge=1, le=65536)]
    sharpness: Annotated[float, Meta(gt=0)] = 2.0
    sentence_weight: Annotated[float, Meta(ge=0, le=100)] = 0.0
    colours: Annotated[int, Meta(ge=0, le=65536)] = 0


class SeenRegions(NamedTuple):
    """The proposals of a picture: every phrase that is asked for next takes milliseconds."""

    size: tuple[int, int]
    boxes: Array  # (1, regions, 4) in [0, 1]
    encoded: Array  # (1, regions, width + colours)


class OnnxGrounder:
    def __init__(self, run: GraphRunner, settings: GroundingSettings, vocabulary: Vocabulary) -> None:
        self._run, self._settings, self._vocabulary = run, settings, vocabulary
        has_backbone = GROUNDING_BACKBONE in run.bundle.manifest.files
        self._backbone = GROUNDING_BACKBONE if has_backbone else BACKBONE

    @property
    def shared_side(self) -> int:
        """The side of pictures whose pass through the bundle's one backbone serves grounding too; 0: none."""
        return self._settings.side if self._backbone == BACKBONE else 0

    def look(self, picture: Picture) -> SeenRegions:
        """Find and encode the regions of a picture."""
        side = self._settings.side
        shapes = dict.fromkeys(LEVELS, (1, ANY, ANY, ANY))
        pixels = squashed(picture, side, self._run.bundle.manifest.jpeg)
        pyramid = self._run(self._backbone, {"pictures": pixels[None]}, shapes, side=side)
        return self.look_at(picture.size, pixels, pyramid)

    def look_at(self, size: tuple[int, int], pixels: Array, pyramid: Sequence[Array]) -> SeenRegions:
        """The same from the `LEVELS` of the backbone for a picture of this size, which it saw as `pixels`."""
        levels = dict(zip(LEVELS, pyramid, strict=True))
        boxes, types = self._run(PROPOSALS, levels, {"region_boxes": (1, ANY, 4), "region_types": (1, ANY, ANY)})
        shape = {"encoded": (1, boxes.shape[1], self._settings.width + self._settings.colours)}
        pictures = {"pictures": pixels[None]} if self._settings.colours else {}
        (encoded,) = self._run(REGIONS, {**levels, "boxes": boxes, "types": types, **pictures}, shape)
        return SeenRegions(size, boxes, encoded)

    def ground(self, image: Picture | SeenRegions, phrases: str | Sequence[Text]) -> list[Grounding]:
        """The best box of each phrase, and several of a plural; scores are from 0 to 1."""
        asked = asked_phrases(phrases)
        seen = image if isinstance(image, SeenRegions) else self.look(image)
        if not asked:
            return []
        mentions = [phrase.mention for phrase in asked]
        boxes, logits = self._answers(seen, mentions)
        several = plural_boxes(mentions, lambda singles: self._point(seen, singles))
        best = most_expected(boxes, logits)
        size = np.array([*seen.size, *seen.size], np.float32)
        return [
            Grounding(
                phrase.text,
                phrase.start,
                phrase.end,
                as_box(round(side, 1) for side in (phrase_boxes[region] * size).tolist()),
                round(min(_covered(phrase_boxes, scores, region), 1.0), 4),
                boxes=tuple(as_box(round(side, 1) for side in (box * size).tolist()) for box in others),
            )
            for phrase, phrase_boxes, scores, region, others in zip(
                asked, boxes, logits, best.tolist(), several, strict=True
            )
        ]

    def localize(self, picture: Picture, phrases: Sequence[Tokens]) -> Localized:
        """All boxes of each phrase in the picture's pixels, and the chance newly covered by each."""
        if not phrases:
            return Localized(np.zeros((0, 0, 4), np.float32), np.zeros((0, 0), np.float32))
        seen = self.look(picture)
        boxes, logits = self._answers(seen, phrases)
        size = np.array([*seen.size, *seen.size], np.float32)
        return Localized(boxes * size, rank_by_coverage(boxes, logits, self._settings.sharpness))

    def proposals(self, picture: Picture) -> Array:
        """The regions of a picture, in its pixels, before phrases move them."""
        seen = self.look(picture)
        boxes: Array = seen.boxes[0] * np.array([*seen.size, *seen.size], np.float32)
        return boxes

    def phrase_logits(self, seen: SeenRegions, phrases: Sequence[Tokens]) -> Array:
        """`(phrases, regions)`."""
        return self._point(seen, phrases)[1]

    def _answers(self, seen: SeenRegions, phrases: Sequence[Tokens]) -> tuple[Array, Array]:
        """`_point`, with the distances to other things that phrases speak of."""
        distances = Distances(phrases)
        return distances.applied(*self._point(seen, distances.asked))

    def _point(self, seen: SeenRegions, phrases: Sequence[Tokens]) -> tuple[Array, Array]:
        """Boxes `(phrases, regions, 4)` in [0, 1], moved for each phrase, and their logits `(phrases, regions)`."""
        mentions = [Mention.of(phrase) for phrase in phrases]
        # Phrases of one sentence are read together.
        sentences = {
            sentence: row for row, sentence in enumerate(dict.fromkeys(mention.sentence for mention in mentions))
        }
        tokens = np.full((1, len(sentences), max(map(len, sentences))), PAD, np.int64)
        for sentence, row in sentences.items():
            tokens[0, row, : len(sentence)] = self._vocabulary.encode(sentence)
        spans = np.array([(sentences[mention.sentence], mention.start, mention.end) for mention in mentions], np.int64)
        captions = dict(zip(("caption", "start", "end"), spans.T[:, None], strict=True))
        inputs: dict[str, Any] = {"encoded": seen.encoded, "boxes": seen.boxes, "tokens": tokens, **captions}
        shape = (1, len(mentions), seen.boxes.shape[1])
        scores, boxes = self._run(PHRASES, inputs, {"scores": shape, "moved": (*shape, 4)})
        return boxes[0].clip(0, 1), scores[0]


def _covered(boxes: Array, logits: Array, region: int) -> float:
    """The probability that the box of a region is a hit: that of all boxes that it overlaps enough.

    The network's own probabilities say how often it is right; sharper ones rank better but promise too much.
    """
    powers = np.exp(logits - logits.max())
    return float(powers[iou_matrix(boxes[[region]], boxes)[0] >= HIT].sum() / powers.sum())


def most_expected(boxes: Array, logits: Array) -> Array:
    """Of each phrase the region whose box has the largest expected overlap with the right one."""
    regions: Array = _expected(*_overlaps(boxes), logits).argmax(-1)
    return regions


def _expected(inner: Array, outer: Array, logits: Array) -> Array:
    overlap = (inner / np.maximum(outer, 1e-9)).astype(logits.dtype)
    expected: Array = (overlap @ _chances(logits, FIRST_SHARPNESS)[..., None])[..., 0]
    return expected


def _overlaps(boxes: Array) -> tuple[Array, Array]:
    """Areas of the intersection and of the union of every two boxes of a phrase."""
    # Coordinate by coordinate: products along an axis of two are several times slower.
    left, top, right, bottom = np.moveaxis(boxes, -1, 0)
    width, height = (
        np.minimum(high[:, :, None], high[:, None]) - np.maximum(low[:, :, None], low[:, None])
        for low, high in ((left, right), (top, bottom))
    )
    inner = np.maximum(width, 0) * np.maximum(height, 0)
    area = np.maximum(right - left, 0) * np.maximum(bottom - top, 0)
    return inner, area[:, :, None] + area[:, None, :] - inner


def _chances(logits: Array, sharpness: float) -> Array:
    powers = np.exp(sharpness * (logits - logits.max(-1, keepdims=True)))
    chances: Array = powers / powers.sum(-1, keepdims=True)
    return chances


def rank_by_coverage(boxes: Array, logits: Array, sharpness: float) -> Array:
    """`deixis.base.grounding_boxes.by_coverage` in NumPy, for boxes all of which are real.

    Args:
        boxes: `(phrases, regions, 4)`.
        logits: `(phrases, regions)`.
        sharpness: what logits are multiplied by.

    Returns:
        `(phrases, regions)`: the probability newly covered by each of the first `RANKED` boxes; below 0 for the rest,
        which are ranked by their own probability.
    """
    chance = _chances(logits, sharpness)
    inner, outer = _overlaps(boxes)
    covers = (inner >= HIT * outer).astype(chance.dtype)
    first = _expected(inner, outer, logits)
    left = chance
    ranked: Array = chance - 2
    rows = np.arange(len(boxes))
    least = np.full(len(boxes), np.inf, chance.dtype)
    for turn in range(min(RANKED, logits.shape[1])):
        # The box's own chance decides between boxes that cover the same.
        gain = (covers @ left[..., None])[..., 0] + chance.dtype.type(1e-4) * chance
        gain = np.maximum(gain, 0 if turn else chance.dtype.type(LEAST))
        best = np.where(ranked >= 0, -np.inf, gain if turn else first).argmax(-1)
        least = np.minimum(gain[rows, best], np.nextafter(least, chance.dtype.type(0)))
        ranked[rows, best] = least
        left = left * (1 - covers[rows, best])
    return ranked
