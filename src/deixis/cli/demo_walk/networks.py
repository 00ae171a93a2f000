"""The demo's two-branch networks and CCA: trained, scored and drawn on the embedded corpus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from PIL import Image as Pillow

from deixis.corpus import Corpus
from deixis.features.extraction import extract
from deixis.features.mapper import make_mapper
from deixis.features.store import FeatureStore
from deixis.figures.localization_comparison import captions_with_boxes, found_phrases
from deixis.loading import load_model
from deixis.metrics.protocols import Pictures, localization, phrase_localizer, retrieval, sentence_retrieval
from deixis.metrics.results import Result
from deixis.training.inputs import find_store
from deixis.training.kinds import kind_of
from deixis.training.recipe import load_recipe
from deixis.training.recipe_reference import reference
from deixis.training.run_models import read_recipe
from deixis.training.running import run_recipe
from deixis.training.threads import one_thread
from deixis.vision.drawing.pages import Example, draw_comparison
from deixis.vision.reading import read_picture

CPU = torch.device("cpu")
#: How many scenes of each split get region features; all get features of the whole picture.
REGION_SCENES = {"train": 150, "val": 20, "test": 30}
DRAWN = 3


@dataclass(frozen=True)
class Trained:
    """A trained model, its name, and its results."""

    name: str
    model: Any
    results: tuple[Result, ...]


def with_regions(corpus: Corpus) -> Corpus:
    """The first scenes of each split, whose regions are extracted."""
    chosen = [
        image
        for split, count in REGION_SCENES.items()
        for image in islice((image for image in corpus if image.split == split), count)
    ]
    return corpus.with_images(chosen)


def region_stores(corpus: Corpus, out: Path, progress: Callable[[int, int], None]) -> list[FeatureStore]:
    """Extract features of proposals and of ground-truth boxes, which the phrase recipes need."""
    recipe = load_recipe("two-branch/demo-phrases").recipe
    stores = []
    for index, wanted in enumerate(kind_of(recipe.kind).features(recipe)):
        folder = out / "features" / ("chains" if index else "proposals")
        extract(corpus, make_mapper(wanted), folder, progress=progress)
        stores.append(FeatureStore(folder))
    return stores


@one_thread()
def train_sentences(corpus: Corpus, store: FeatureStore, out: Path) -> Trained:
    """Train the embedding network of pictures and sentences, and score it on the split `test`."""
    model, provenance = train("two-branch/demo-sentences", corpus, [store], out)
    pictures = Pictures(corpus, "test", store, learned_from_boxes=False)
    results = retrieval(model, pictures, **provenance), sentence_retrieval(model, pictures, **provenance)
    return Trained("embedding network", model, results)


@one_thread()
def train_phrases(corpus: Corpus, stores: Sequence[FeatureStore], out: Path) -> list[Trained]:
    """Train CCA and the embedding network of regions and phrases, and score them on the split `test`."""
    trained = []
    for recipe, name in (("entities-cca/demo-phrases", "CCA"), ("two-branch/demo-phrases", "embedding network")):
        model, provenance = train(recipe, corpus, stores, out)
        trained.append(Trained(name, model, (localization(model, _pictures(corpus, stores), **provenance),)))
    return trained


def draw_localizations(corpus: Corpus, stores: Sequence[FeatureStore], trained: Sequence[Trained]) -> Pillow.Image:
    """Draw the regions that each model chooses for the phrases of some test captions (two-branch networks, Fig. 2)."""
    pictures = _pictures(corpus, stores)
    rich = captions_with_boxes(corpus.split("test").images, phrases=3)
    examples = [
        Example(
            image,
            read_picture(corpus, image),
            image.captions[caption],
            tuple(found_phrases(image, caption, phrase_localizer(model.model, pictures)) for model in trained),
        )
        for image, caption in rich[:: max(1, len(rich) // DRAWN)][:DRAWN]
    ]
    return draw_comparison([model.name for model in trained], examples)


def train(name: str, corpus: Corpus, stores: Sequence[FeatureStore], out: Path) -> tuple[Any, dict[str, Any]]:
    """Train a recipe of the demo; returns its model, and how results identify it."""
    folder = out / "runs" / name
    run_recipe(load_recipe(name), corpus, stores, folder, CPU)
    recipe = read_recipe(folder)
    return load_model(folder, "cpu"), {"recipe": reference(recipe), "seed": recipe.seed}


def _pictures(corpus: Corpus, stores: Sequence[FeatureStore]) -> Pictures:
    return Pictures(corpus, "test", find_store(stores, "proposals"), learned_from_boxes=True)
