"""Eq. 8: image-sentence distance and region-phrase distance combined."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from deixis.training.combining import Combination

Floats = NDArray[np.floating[Any]]


def combined_distances(global_distances: Floats, region_phrase: Floats, *, region_weight: float = 0.2) -> Floats:
    """Eq. 8: (1 − α) d + α d_rp, of plain distances; α = `region_weight`.

    d_rp is the mean distance of a sentence's phrases to their nearest regions. A sentence without phrases (NaN) has d
    alone.
    """
    mixed = (1 - region_weight) * global_distances + region_weight * region_phrase
    return np.where(np.isnan(region_phrase), global_distances, mixed)


class CombinedDistance(Combination):
    """Table 5, "weighted distance"."""

    def mix(self, whole: Floats, region_phrase: Floats) -> Floats:
        return combined_distances(whole, region_phrase, region_weight=self.region_weight)


COMBINATION = CombinedDistance(
    "two-branch/table5/weighted-distance",
    "two-branch/sentences-constraints",
    "two-branch/phrases-constraints",
    region_weight=0.2,
    gamma=1.0,
    squared=False,
)
