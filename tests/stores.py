"""Small feature stores of any corpus, made of random numbers: what is tested is who is where."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from deixis.corpus import Corpus, Image
from deixis.corpus.boxes import box_array, merge
from deixis.features.layout import ArraySpec, SkippedImage, make_plan
from deixis.features.store import FeatureStore
from deixis.features.store_writing import StoreWriter, write_partition


def make_store(
    folder: Path,
    corpus: Corpus,
    boxes: Callable[[Image], Any] | None = None,
    *,
    channels: int = 8,
    seed: int = 0,
    broken: tuple[str, ...] = (),
    provenance: Mapping[str, Any] | None = None,
    features: Callable[[Image], Mapping[str, Any]] | None = None,
) -> FeatureStore:
    """A store with an `image` vector for each image and, with `boxes`, regions at these boxes `(boxes, 4)`.

    `features` gives arrays in place of random ones.
    """
    arrays = {"image": ArraySpec((channels,)), "size": ArraySpec((2,), "float32")}
    if boxes is not None:
        arrays["regions"] = ArraySpec((channels,), ragged=True)
        arrays["boxes"] = ArraySpec((4,), "float32", ragged=True)
    ids = [image.id for image in corpus]
    plan = make_plan(ids, arrays, {"regions": {"boxes": "random", "saw_boxes": False}, **(provenance or {})}, 7)
    random = np.random.default_rng(seed)
    with StoreWriter(folder, plan, ids) as writer:
        for number in writer.pending():
            written = {}
            for item in plan.items(number):
                image = corpus.images[item]
                if image.id in broken:
                    continue
                made = {"image": random.normal(size=channels), "size": np.array([image.width, image.height])}
                if boxes is not None:
                    own = np.asarray(boxes(image), np.float32).reshape(-1, 4)
                    made |= {"boxes": own, "regions": random.normal(size=(len(own), channels))}
                written[image.id] = made | dict(features(image) if features else {})
            skipped = [SkippedImage(ids[item], "broken") for item in plan.items(number) if ids[item] in broken]
            write_partition(folder, plan, number, ids, written, skipped)
        writer.finish()
    return FeatureStore(folder)


def random_boxes(count: int, seed: int = 0) -> Callable[[Image], Any]:
    """A random number of boxes inside each image, some of them near the drawn ones."""
    random = np.random.default_rng(seed)

    def boxes(image: Image) -> Any:
        corners = random.uniform(0, 1, (int(random.integers(0, count + 1)), 2, 2))
        corners.sort(axis=1)
        own = (corners * [image.width, image.height]).reshape(-1, 4)
        for row, box in zip(own, image.boxes, strict=False):
            row[:] = np.array([box.x1, box.y1, box.x2, box.y2]) + random.uniform(-3, 3, 4)
        return own

    return boxes


def drawn_store(corpus: Corpus, folder: Path) -> FeatureStore:
    """One region a chain, its merged boxes, as the feature recipe `chains` has them."""

    def merged(image: Image) -> list[list[float]]:
        return [merge(box_array(image.chain_boxes(chain.id))).tolist() for chain in image.chains if chain.boxes]

    return make_store(folder, corpus, merged, provenance={"regions": {"boxes": "chains"}})
