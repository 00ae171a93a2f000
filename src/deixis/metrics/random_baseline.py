"""Results of a random order, in closed form (`random_figures`), to compare models with."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from deixis.corpus.records import Corpus, Image
from deixis.errors import DeixisError
from deixis.metrics.ranking import TIES, Figures, mean_figures, random_figures
from deixis.metrics.region_phrase_ranking import region_phrases
from deixis.metrics.results import BoxSupervision, Protocol, Result, corpus_reference, make_result

MODEL = "random, in closed form"


def random_retrieval(corpus: Corpus, split: str, *, folds: int = 1, rows: Sequence[str] = ()) -> Result:
    """Images for captions and captions for images: `image_to_text`, `text_to_image`."""
    start = time.monotonic()
    images = corpus.split(split).images
    if len(images) < folds:
        raise DeixisError(f"the split {split!r} has {len(images)} images, which cannot be put into {folds} folds")
    bounds = np.linspace(0, len(images), folds + 1).astype(int)
    parts = [_both_ways(images[first:last]) for first, last in pairwise(bounds.tolist())]
    metrics = {way: mean_figures([part[way] for part in parts]).as_dict() for way in parts[0]}
    recalls = [value for figures in metrics.values() for name, value in figures.items() if name.startswith("r@")]
    counts = {"images": len(images), "captions": sum(len(image.captions) for image in images)}
    return make_result(
        Protocol("image-text ranking", TIES, {"folds": folds, "model": MODEL}),
        {**metrics, "mean_recall": float(np.mean(recalls))},
        duration=time.monotonic() - start,
        corpus=corpus_reference(corpus, split),
        counts=counts,
        rows=rows,
    )


def _both_ways(images: Sequence[Image]) -> dict[str, Figures]:
    captions = [len(image.captions) for image in images]
    return {
        "image_to_text": random_figures(captions, sum(captions)),
        "text_to_image": random_figures([1] * sum(captions), len(images)),
    }


def random_region_phrases(corpus: Corpus, split: str, *, rows: Sequence[str] = ()) -> Result:
    """Unique phrase strings for annotated regions, and regions for strings (HM-LSTM, Table 4): `strings`."""
    start = time.monotonic()
    items = region_phrases(corpus.split(split).images)
    pairs = {(string, region) for string, region in items.mentions.tolist() if region >= 0}
    ways = {
        "region_to_phrase": random_figures(Counter(region for _, region in pairs).values(), len(items.strings)),
        "phrase_to_region": random_figures(Counter(string for string, _ in pairs).values(), len(items.regions)),
    }
    return make_result(
        Protocol("region-phrase ranking", TIES, {"boxes": "merged", "model": MODEL}),
        {"strings": {way: ranking.as_dict() for way, ranking in ways.items()}},
        duration=time.monotonic() - start,
        corpus=corpus_reference(corpus, split),
        counts={"regions": len(items.regions), "strings": len(items.strings)},
        box_supervision=BoxSupervision(False, False, "nothing was learned"),
        rows=rows,
    )
