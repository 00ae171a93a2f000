"""Validation figures of two-branch models, computed on the device and fast enough for every epoch.

Recalls of image-sentence retrieval and of phrase localization, equal to those of `deixis.metrics`, which evaluates
finished models. Ties count as errors in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from deixis.training.phrase_pairs import PhraseData

RECALL_AT = (1, 5, 10)
#: Phrases whose proposals are scored together: 200 proposals of 512 float32 take 0.4 MB per phrase.
PHRASES = 1024
#: The rank if no candidate is right.
NEVER = 1 << 30


def retrieval_figures(scores: Tensor, image_of: Tensor) -> dict[str, float]:
    """Recalls in both directions from scores `(images, captions)`, and `rsum`, the sum of all six.

    Args:
        image_of: `(captions,)`, the row of each caption's image.
    """
    match = image_of == torch.arange(len(scores), device=scores.device)[:, None]
    figures: dict[str, float] = {}
    for name, table, right in (("image_to_text", scores, match), ("text_to_image", scores.T, match.T)):
        best = table.masked_fill(~right, -torch.inf).amax(1)
        has_match = right.any(1)
        # Not `table >= best`: NaN scores must count as errors.
        ranks = 1 + (~(table < best[:, None]) & ~right).sum(1)[has_match]
        figures |= recalls(ranks, name)
    return figures | {"rsum": sum(figures.values())}


def recalls(ranks: Tensor, name: str) -> dict[str, float]:
    """Percentages of ranks up to each K, under `name.r@K`."""
    return {f"{name}.r@{k}": 100 * float((ranks <= k).float().mean()) for k in RECALL_AT}


class LocalizationCheck:
    """Recalls of phrase localization among the first `most` proposals of an image: IoU ≥ 0.5 with the merged box."""

    def __init__(self, data: PhraseData, most: int) -> None:
        self._data = data
        counts = (data.image_offsets.diff() - data.drawn).clamp(max=most)
        most = int(counts.max())
        first = data.image_offsets[:-1] + data.drawn
        self._rows = first[:, None] + torch.arange(most, device=first.device)  # (images, proposals)
        self._real = torch.arange(most, device=first.device) < counts[:, None]
        self._rows = torch.where(self._real, self._rows, first[:, None].clamp(max=len(data.regions) - 1))
        self._right = self._hits()

    def _hits(self) -> Tensor:
        """`(pairs, proposals)`: which proposals are right for a phrase."""
        data = self._data
        parts = []
        for pairs in torch.split(torch.arange(len(data.pair_image), device=self._rows.device), PHRASES):
            images = data.pair_image[pairs]
            proposed = data.region_boxes[self._rows[images]]
            drawn = data.region_boxes[data.pair_region[pairs]][:, None]
            low = torch.maximum(proposed[..., :2], drawn[..., :2])
            high = torch.minimum(proposed[..., 2:], drawn[..., 2:])
            inner = (high - low).clamp(min=0).prod(-1)
            union = _area(proposed) + _area(drawn) - inner
            parts.append((inner >= 0.5 * union) & (union > 0) & self._real[images])
        return torch.cat(parts)

    @property
    def upper_bound(self) -> float:
        return 100 * float(self._right.any(1).float().mean())

    @torch.no_grad()
    def figures(
        self,
        embed_regions: Callable[[Tensor], Tensor],
        strings: Tensor,
        compare: Callable[[Tensor, Tensor], Tensor] = lambda regions, phrases: (regions * phrases).sum(-1),
    ) -> dict[str, float]:
        """Recalls of `localization` and the proposals' upper bound.

        Args:
            embed_regions: region features `(n, channels)` to embeddings.
            strings: embedded phrase strings `(strings, dim)`.
            compare: scores of embedded regions `(…, dim)` and phrases `(…, dim)`, broadcast; higher is better.
        """
        data = self._data
        embedded = torch.cat([embed_regions(part.float()) for part in torch.split(data.regions, 1 << 15)])
        ranks = []
        for pairs in torch.split(torch.arange(len(data.pair_image), device=embedded.device), PHRASES):
            images = data.pair_image[pairs]
            scores = compare(embedded[self._rows[images]], strings[data.pair_string[pairs]][:, None])
            right = self._right[pairs]
            best = scores.masked_fill(~right, -torch.inf).amax(1, keepdim=True)
            # Not `scores >= best`: NaN scores must count as errors.
            wrong = ~(scores < best) & ~right & self._real[images]
            ranks.append(torch.where(right.any(1), 1 + wrong.sum(1), NEVER))
        return recalls(torch.cat(ranks), "localization") | {"upper_bound": self.upper_bound}


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)
