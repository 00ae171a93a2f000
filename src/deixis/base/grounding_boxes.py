"""Boxes of `deixis.base.grounding_network`: encoded as numbers, moved by offsets, ranked so that a hit comes early.

Boxes are `(…, 4)` as x1, y1, x2, y2 in [0, 1].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Numbers that encode a box: corners, sizes, their logarithms, the area.
PLACE = 9


def place(boxes: Tensor) -> Tensor:
    """`(…, 4)` → `(…, 9)`: corners, width and height, their logarithms, area."""
    size = (boxes[..., 2:] - boxes[..., :2]).clamp(min=1e-3)
    return torch.cat([boxes, size, size.log(), size.prod(-1, keepdim=True)], -1)


def moved(boxes: Tensor, offsets: Tensor) -> Tensor:
    """Boxes whose centre is moved in units of their size, and whose size is scaled by an exponential."""
    size = (boxes[..., 2:] - boxes[..., :2]).clamp(min=1e-3)
    centre = (boxes[..., :2] + boxes[..., 2:]) / 2 + offsets[..., :2] * size
    half = size * offsets[..., 2:].clamp(-2, 2).exp() / 2
    return torch.cat([centre - half, centre + half], -1)


def offsets_to(boxes: Tensor, wanted: Tensor) -> Tensor:
    """What `moved` needs to make `boxes` the `wanted`."""
    size, wanted_size = ((corners[..., 2:] - corners[..., :2]).clamp(min=1e-3) for corners in (boxes, wanted))
    centre, wanted_centre = ((corners[..., :2] + corners[..., 2:]) / 2 for corners in (boxes, wanted))
    return torch.cat([(wanted_centre - centre) / size, (wanted_size / size).log()], -1)


#: The first box is the one that overlaps the right one most, as an expectation over probabilities of this sharpness.
FIRST_SHARPNESS = 1.5
#: The score of a first box that covers nothing, so that others can be below it.
LEAST = 1e-6


def by_coverage(boxes: Tensor, scores: Tensor, sharpness: float, *, threshold: float = 0.5, count: int = 10) -> Tensor:
    """Rank boxes so that a hit is likely among the first few, since neighbours share the probability of one thing.

    The softmax of the scores is the chance that a region is the right one. The first box is the one with the largest
    expected overlap with the right one, not that of the best score: several boxes of middling scores on one thing count
    for more than a lone one. The next covers as much as it can (by overlapping others by the threshold of a hit) of the
    chance that is left, and so on: the greedy solution of "the K boxes most likely to have a hit among them", with the
    first given.

    Args:
        boxes: `(…, regions, 4)`.
        scores: `(…, regions)` logits.
        sharpness: what logits are multiplied by for all boxes after the first; more trusts single regions more.
        threshold: intersection over union that makes a hit.
        count: after so many the rest are ranked by their own probability.

    Returns:
        New scores `(…, regions)`: the probability newly covered by each of the first boxes, or where one would pass the
        box before it just less than that one's; below 0 for the rest.
    """
    chance = (sharpness * scores).softmax(-1)
    low = torch.maximum(boxes[..., :, None, :2], boxes[..., None, :, :2])
    high = torch.minimum(boxes[..., :, None, 2:], boxes[..., None, :, 2:])
    inner = (high - low).clamp(min=0).prod(-1)
    area = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)
    outer = area[..., :, None] + area[..., None, :] - inner
    covers = (inner >= threshold * outer).to(chance.dtype)
    overlap = (inner / outer.clamp(min=1e-9)).to(chance.dtype)
    expected = (overlap @ (FIRST_SHARPNESS * scores).softmax(-1)[..., None]).squeeze(-1)
    left, ranked, absent = chance, chance - 2, scores == -math.inf
    least = torch.full_like(scores[..., :1], math.inf)
    for turn in range(min(count, scores.shape[-1])):
        # The box's own chance decides between boxes that cover the same.
        gain = ((covers @ left[..., None]).squeeze(-1) + 1e-4 * chance).clamp(min=0 if turn else LEAST)
        best_score, best = (
            (gain if turn else expected).masked_fill((ranked >= 0) | absent, -math.inf).max(-1, keepdim=True)
        )
        least = torch.minimum(gain.gather(-1, best), torch.nextafter(least, torch.zeros_like(least)))
        # Where all boxes are ranked, the one found is ranked already.
        ranked = ranked.scatter(-1, best, torch.where(best_score > -math.inf, least, ranked.gather(-1, best)))
        left = left * (1 - covers.gather(-2, best[..., None].expand(*best.shape, covers.shape[-1])).squeeze(-2))
    return ranked.masked_fill(absent, -math.inf)
