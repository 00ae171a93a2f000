"""Whether regions that are cut out tell concepts better than those pooled from a picture's map (paper 3, section 3.2).

    python benchmarks/concept_regions.py CORPUS [--images 400] [--out results/choices/concept-regions.json]

CORPUS is Flickr8k with its pictures. The concept network that comes with the package learned from whole pictures; here
it looks at the first validation pictures and at the same 50 diverse boxes of each: as they are pooled from one map, and
each cut out, squashed to a square and sent through the backbone by itself, as the paper does. mAP over the concepts.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from telling import tell
from two_branch import machine

from deixis.corpus import open_corpus
from deixis.features.feature_recipe import BUILT_IN
from deixis.features.mapper import make_mapper
from deixis.metrics.concept_prediction import concept_precision
from deixis.papers.concepts_order.concepts import BUNDLED, diverse_regions
from deixis.papers.concepts_order.concepts_task import load_matcher
from deixis.text.tokens import tokens_of
from deixis.training.run_models import read_recipe
from deixis.vision.backbones import as_bytes, load_backbone
from deixis.vision.reading import decode_picture
from deixis.vision.regions import box_crops


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    recipe: Any = read_recipe(BUNDLED)
    matcher = load_matcher(BUNDLED, recipe, torch.device("cpu"))
    corpus = open_corpus(options.corpus).split("val")
    assert corpus.pictures is not None, "a corpus with its pictures"
    features = BUILT_IN["regions"]
    mapper, backbone = make_mapper(features), load_backbone(features.backbone)
    seen: dict[str, list[Any]] = {"whole": [], "pooled": [], "cut out": []}
    labels = []
    for number, image in enumerate(corpus.images[: options.images], 1):
        data = corpus.pictures.read(image)
        found: Any = mapper([mapper.prepare(image, data)])[0]
        chosen = diverse_regions(found["boxes"], matcher.regions)
        picture = decode_picture(data, name=image.id)
        crops = box_crops(picture, torch.from_numpy(found["boxes"][chosen]), backbone.side)
        with torch.inference_mode():
            cut_out = backbone.vectors(torch.stack([as_bytes(crop) for crop in crops]))
            rows = torch.from_numpy(found["image"][None]).float()
            whole = torch.sigmoid(matcher.network(rows))[0]
            pooled = torch.sigmoid(matcher.network(torch.from_numpy(found["regions"][chosen]).float())).amax(0)
            apart = torch.sigmoid(matcher.network(cut_out)).amax(0)
        for name, value in (("whole", whole), ("pooled", whole.maximum(pooled)), ("cut out", whole.maximum(apart))):
            seen[name].append(value.numpy())
        labels.append(matcher.vocabulary.labels([tokens_of(caption) for caption in image.captions]))
        if number % 50 == 0:
            sys.stderr.write(f"{number} of {options.images}\n")
    found = {name: np.stack(values) for name, values in seen.items()}
    found |= {f"mean of whole and {name}": (found["whole"] + found[name]) / 2 for name in ("pooled", "cut out")}
    truth = np.stack(labels)
    record = {
        "benchmark": "concept_regions",
        "command": f"python benchmarks/concept_regions.py CORPUS --images {options.images}",
        **machine(),
        "run": recipe.name,
        "images": len(truth),
        "concepts": int(truth.any(0).sum()),
        "map": {name: round(float(np.nanmean(concept_precision(values, truth))), 2) for name, values in found.items()},
    }
    tell(record, options.out)


if __name__ == "__main__":
    main()
