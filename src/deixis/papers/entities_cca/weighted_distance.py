"""Eq. 2: image-sentence distance and region-phrase distance (eq. 1) combined."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from deixis.training.combining import Combination

Floats = NDArray[np.floating[Any]]


def weighted_distances(global_distances: Floats, region_phrase: Floats, *, global_weight: float = 0.7) -> Floats:
    """Eq. 2: α D_IS + (1 − α) D_RP, of squared distances; α = `global_weight`.

    A sentence without phrases (NaN) has the global distance alone.
    """
    mixed = global_weight * global_distances + (1 - global_weight) * region_phrase
    return np.where(np.isnan(region_phrase), global_distances, mixed)


class WeightedDistance(Combination):
    """Table 5, "weighted distance"."""

    def mix(self, whole: Floats, region_phrase: Floats) -> Floats:
        return weighted_distances(whole, region_phrase, global_weight=1 - self.region_weight)


COMBINATION = WeightedDistance(
    "entities-cca/table5/weighted-distance",
    "entities-cca/sentences",
    "entities-cca/phrases-n10",
    region_weight=0.3,
    gamma=1.5,
    squared=True,
)
