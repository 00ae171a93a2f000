"""Where a region is relative to others that a phrase speaks of: "the dog on the left", "the one nearest to the bench".

A phrase chooses regions twice by attention: things of its own name (the dogs), and a landmark (the bench). Each region
is then compared with the chosen ones by centre, size and distance, and the phrase weighs the comparisons. Beyond the
papers; a part of `deixis.base.grounding_network`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

#: What a phrase chooses: things of its name, a landmark.
ALIKE, LANDMARK = 0, 1
CHOICES = 2
#: Comparisons of a region with one choice: sides and sizes as −1 to 1, differences, distance, overlap.
RELATIONS = 8
#: Comparisons of a region in all: with both choices, and whose distance to the landmark is smaller.
COMPARISONS = CHOICES * RELATIONS + 1
#: Differences of position, as a share of the picture, and of distances at which a comparison is nearly sure.
NEAR, NEARER = 0.1, 0.05


class Compared(NamedTuple):
    values: Tensor  # (batch, phrases, regions, COMPARISONS)
    #: Log probabilities of the choices, −inf where there is no region.
    chosen: Tensor  # (batch, phrases, CHOICES, regions)


class Comparison(nn.Module):
    """Scores and features of regions by comparison with regions that phrases choose."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, CHOICES * width), nn.Linear(width, width)
        self.weigh = nn.Linear(width, COMPARISONS)
        self.scale = nn.Linear(width, width)
        self.hidden = nn.Linear(COMPARISONS, width)
        # Nothing is added at first.
        for part in (self.weigh, self.scale):
            nn.init.zeros_(part.weight)
            nn.init.zeros_(part.bias)

    def forward(self, phrases: Tensor, seen: Tensor, boxes: Tensor, mask: Tensor | None) -> Compared:
        """`phrases` and `seen` `(batch, …, width)`, `boxes` `(batch, regions, 4)`, `mask` as in `Regions`."""
        batch, count, width = phrases.shape
        query = self.query(phrases).reshape(batch, count * CHOICES, width)
        logits = (query @ self.key(seen).transpose(1, 2)).float() / math.sqrt(width)
        if mask is not None:
            logits = logits.masked_fill(~mask, -math.inf)
        chosen = logits.log_softmax(-1)
        weights = chosen.exp()  # (batch, phrases × choices, regions)
        regions = boxes.shape[1]
        # relations[i, j] is about region i relative to j: a mean over j by the weights.
        relations = _relations(boxes.float()).flatten(1, 2)
        means = (relations @ weights.transpose(1, 2)).reshape(batch, RELATIONS, regions, count, CHOICES)
        means = means.permute(0, 3, 4, 2, 1)
        distance = means[:, :, LANDMARK, :, -2]
        alike = weights.reshape(batch, count, CHOICES, regions)[:, :, ALIKE]
        farther = torch.tanh((distance[:, :, None, :] - distance[..., None]) / NEARER)
        nearer = (farther * alike[:, :, None]).sum(-1, keepdim=True)
        values = torch.cat([*means.unbind(2), nearer], -1)
        return Compared(values, chosen.reshape(batch, count, CHOICES, regions))

    def scores(self, phrases: Tensor, values: Tensor) -> Tensor:
        """`(batch, phrases, regions)`: each comparison times what the phrase makes of it."""
        weighed: Tensor = (values.to(phrases.dtype) @ self.weigh(phrases)[..., None]).squeeze(-1)
        return weighed

    def features(self, phrases: Tensor, values: Tensor) -> Tensor:
        """`(batch, phrases, regions, width)`, for the network that looks at a phrase and a region together."""
        scaled: Tensor = self.scale(phrases)[:, :, None] * self.hidden(values.to(phrases.dtype))
        return scaled


def _relations(boxes: Tensor) -> Tensor:
    """`(batch, regions, 4)` → `(batch, RELATIONS, regions, regions)`; the distance is the last but one.

    Plane by plane, with the regions last: on a CPU, arithmetic on pairs of coordinates is many times slower.
    """
    left, top, right, bottom = boxes.unbind(-1)
    width, height = (right - left).clamp(min=1e-3), (bottom - top).clamp(min=1e-3)
    area = width * height
    across, down = (_differences((low + high) / 2) for low, high in ((left, right), (top, bottom)))
    larger = _differences(area.log())
    distance = (across.square() + down.square() + 1e-6).sqrt()
    inner_width, inner_height = (
        (torch.minimum(high[:, :, None], high[:, None]) - torch.maximum(low[:, :, None], low[:, None])).clamp(min=0)
        for low, high in ((left, right), (top, bottom))
    )
    inner = inner_width * inner_height
    overlap = inner / (area[:, :, None] + area[:, None] - inner)
    sides = [torch.tanh(across / NEAR), torch.tanh(down / NEAR), across, down]
    sizes = [torch.tanh(2 * larger), larger.clamp(-3, 3) / 3]
    return torch.stack([*sides, *sizes, distance, overlap], 1)


def _differences(values: Tensor) -> Tensor:
    """`(batch, regions)` → `(batch, regions, regions)`: of each region and every other."""
    return values[:, :, None] - values[:, None]


def choice_loss(chosen: Tensor, on_object: Tensor) -> Tensor:
    """−log of the probability chosen on each object, a mean over the objects that have a region, then over phrases.

    Args:
        chosen: log probabilities `(batch, phrases, regions)`.
        on_object: `(batch, phrases, objects, regions)`, true where a region is on an object to choose.
    """
    covered = on_object.any(-1)
    # Where no region is on an object, zeros keep the gradient finite.
    within = torch.where(on_object, chosen[:, :, None], -math.inf).masked_fill(~covered[..., None], 0.0)
    losses = -torch.where(covered, within.logsumexp(-1), 0.0).sum(-1) / covered.sum(-1).clamp(min=1)
    return losses.sum() / covered.any(-1).sum().clamp(min=1)
