"""What each part of our edge map brings EdgeBoxes: recall of proposals with one part at a time taken away.

    python benchmarks/edges.py FLICKR8K ENTITIES [--pictures 100] [--json results/benchmarks/edges.json]

FLICKR8K and ENTITIES are corpora to join: pictures, and their phrases and boxes. Pictures are taken from all over the
validation split. A phrase's boxes are merged into one, as everywhere. Thinning stays: without it OpenCV's search takes
thirty times as long (5.9 s of a processor a picture instead of 0.19).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np
from telling import tell

from deixis.corpus import Corpus, open_corpus
from deixis.corpus.boxes import Boxes
from deixis.corpus.combine import join
from deixis.corpus.records import Image
from deixis.metrics.proposal_recall import proposal_recall
from deixis.vision import edge_boxes
from deixis.vision.edge_boxes import EdgeBoxes
from deixis.vision.reading import read_picture

#: Surroundings so strong that no edge stands out against them: as if they were not looked at.
_NO_SURROUNDINGS = 1000.0


VARIANTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "as it is": nullcontext,
    "one scale": lambda: patch.multiple(edge_boxes, _SCALES=(1,)),
    "lightness without colour": lambda: patch.multiple(edge_boxes, _LAB=(1, 0, 0)),
    "not against surroundings": lambda: patch.multiple(edge_boxes, _FLOOR=_NO_SURROUNDINGS),
    "OpenCV's kappa, 1.5": lambda: patch.multiple(EdgeBoxes, kappa=1.5),
    "lightness at one scale, thinned": lambda: patch.multiple(
        edge_boxes, _SCALES=(1,), _LAB=(1, 0, 0), _FLOOR=_NO_SURROUNDINGS
    ),
}


def proposals(corpus: Corpus, images: list[Image], count: int) -> Iterator[tuple[Image, Boxes]]:
    """Boxes in the original picture's pixels."""
    method = EdgeBoxes()
    for image in images:
        picture = read_picture(corpus, image)
        original = (image.width or picture.width, image.height or picture.height)
        yield image, method.propose(picture, count).boxes * np.tile(np.divide(original, picture.size), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flickr8k", type=Path)
    parser.add_argument("entities", type=Path)
    parser.add_argument("--pictures", type=int, default=100)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    corpus = join(open_corpus(options.flickr8k), open_corpus(options.entities)).corpus
    validation = corpus.split("val").images
    chosen = list(validation[:: max(1, len(validation) // options.pictures)])[: options.pictures]
    rows: dict[str, dict[str, float]] = {}
    for name, variant in VARIANTS.items():
        with variant():
            found = list(proposals(corpus, chosen, 200))
        recall = proposal_recall(found)
        rows[name] = {
            f"iou{100 * iou:.0f} r@{count}": round(one.overall.recall[count], 2)
            for iou, one in recall.items()
            for count in (100, 200)
        }
        print(f"{name:34}", rows[name], flush=True)
    record = {
        "benchmark": "edges",
        "command": f"python benchmarks/edges.py FLICKR8K ENTITIES --pictures {options.pictures}",
        "split": "val",
        "pictures": len(chosen),
        "phrases": recall[0.5].overall.instances,
        "recall": rows,
        "opencv": EdgeBoxes().settings["opencv"],
    }
    tell(record, options.json)


if __name__ == "__main__":
    main()
