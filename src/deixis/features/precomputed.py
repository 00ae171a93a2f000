"""Put features from a file into a store, instead of computing them from pictures.

One row per image becomes `image`. Several rows per image (such as 36 regions whose boxes are not known) become
`regions`, and `image` is their mean. `size` comes from the corpus, 0 × 0 if it is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deixis.corpus import Corpus, Image
from deixis.features.feature_recipe import FeatureRecipe, FileRecipe
from deixis.features.layout import ArraySpec
from deixis.features.store_writing import Features
from deixis.vision.feature_files import PrecomputedFeatures

#: Increase it when a change gives other features for the same file.
VERSION = 1


@dataclass(frozen=True)
class PreparedRow:
    """`values` are `(channels,)` or `(regions, channels)`."""

    values: NDArray[Any]
    size: tuple[int, int]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape


class PrecomputedMapper:
    """Build it with `precomputed`."""

    batch_size, threads, read_apart = 64, 1, False

    def __init__(self, recipe: FeatureRecipe, rows: PrecomputedFeatures) -> None:
        self._rows = rows
        self.arrays = {"image": ArraySpec((rows.channels,), recipe.dtype), "size": ArraySpec((2,), "float32")}
        if len(rows.row_shape) == 2:
            self.arrays["regions"] = ArraySpec((rows.channels,), recipe.dtype, ragged=True)
        self.provenance: dict[str, Any] = {
            "backbone": rows.name,
            "array": rows.array,
            "dtype": recipe.dtype,
            "version": VERSION,
            "weights_sha256": rows.weights_sha256,
        }

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def begin_thread(self) -> None:
        """Threads need no set-up."""

    def prepare(self, image: Image, data: bytes) -> PreparedRow:
        values = np.frombuffer(data, self._rows.dtype).reshape(self._rows.row_shape)
        return PreparedRow(values, (image.width or 0, image.height or 0))

    def __call__(self, batch: Sequence[PreparedRow]) -> list[Features]:
        return [self._features(row) for row in batch]

    def _features(self, row: PreparedRow) -> Features:
        size = np.array(row.size, np.float32)
        if row.values.ndim == 1:
            return {"image": row.values, "size": size}
        return {"image": row.values.mean(0, dtype=np.float32), "regions": row.values, "size": size}


def precomputed(recipe: FeatureRecipe, corpus: Corpus) -> tuple[PrecomputedMapper, Corpus]:
    """The mapper for a recipe whose backbone is a file of features, and the corpus with rows instead of pictures."""
    how = recipe.file or FileRecipe()
    rows = PrecomputedFeatures(recipe.backbone, corpus, ids=how.ids or None, array=how.array or None)
    return PrecomputedMapper(recipe, rows), Corpus(corpus, name=corpus.name, pictures=rows)
