"""The demo's aligner and captioner (DVSA): trained and scored on the embedded corpus, and at work on a scene."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image as Pillow

from deixis.cli.demo_walk.networks import CPU, Trained, train
from deixis.corpus import Box, Corpus, training_set
from deixis.corpus.scenes import scenes_corpus
from deixis.features.store import FeatureStore
from deixis.metrics.captioning_protocol import captioning
from deixis.metrics.protocols import Pictures
from deixis.model import AlignedSnippet, store_images
from deixis.text.tokens import tokens_of, tokens_of_captions
from deixis.training.evaluating import evaluate_run
from deixis.training.inputs import find_store
from deixis.training.threads import one_thread
from deixis.vision.drawing.pages import Part, draw_alignment
from deixis.vision.drawing.typesetting import as_written
from deixis.vision.reading import read_picture


class Shown(NamedTuple):
    """A generated caption of a scene, and a drawing of its first caption aligned with it."""

    caption: str
    drawing: Pillow.Image
    snippets: tuple[AlignedSnippet, ...]


@one_thread()
def train_aligner(corpus: Corpus, stores: Sequence[FeatureStore], out: Path) -> Trained:
    """Train the aligner of words and regions, and score it on the split `test`."""
    name, regions = "dvsa/demo-alignment", [find_store(stores, "proposals")]
    model, _ = train(name, corpus, regions, out)
    return Trained("aligner", model, tuple(evaluate_run(out / "runs" / name, corpus, regions, CPU)))


def image_store(out: Path) -> Path:
    """The folder of the features of whole pictures."""
    return out / "features" / "image"


@one_thread()
def train_captioner(scenes: int, out: Path) -> Trained:
    """Train the captioner of whole pictures, and score it on the split `test`.

    It opens corpus and features itself: those that another process uses might change while they are sent.
    """
    corpus, store = scenes_corpus(scenes), FeatureStore(image_store(out))
    model, provenance = train("dvsa/demo-captions", corpus, [store], out)
    pictures = Pictures(corpus, "test", store, learned_from_boxes=False)
    return Trained(
        "captioner", model, (captioning(model, pictures, tokens_of_captions(training_set(corpus)), **provenance),)
    )


def show(
    corpus: Corpus, stores: Sequence[FeatureStore], pictures: FeatureStore, aligner: Trained, captioner: Trained
) -> Shown:
    """Caption the first test scene, and align its first caption with it."""
    image = corpus.split("test").images[0]
    caption = captioner.model.describe(next(store_images(pictures, [image.id])), 1)[0].tokens
    features = next(store_images(find_store(stores, "proposals"), [image.id]))
    tokens = tokens_of(image.captions[0])
    snippets = aligner.model.align(features, tokens).snippets
    parts = [
        Part(snippet.start, snippet.end, [Box(*box) for box in snippet.boxes], "", snippet.whole)
        for snippet in snippets
    ]
    drawing = draw_alignment(read_picture(corpus, image), image.captions[0].tokens, parts)
    return Shown(as_written(caption), drawing, snippets)
