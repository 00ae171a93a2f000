"""`calibrate`: fit everything about a bundle that says which pictures match a query, and write it to its manifest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

from deixis.adapters.bundles import Manifest, read_bundle, write_manifest
from deixis.adapters.onnx_model import OnnxModel
from deixis.adapters.search_model import Bytes, Pictures
from deixis.corpus import Corpus, Image, training_set
from deixis.errors import DeixisError, InputError
from deixis.search.calibration import fitted, known_queries
from deixis.search.example_calibration import fit_end_with_example
from deixis.search.presence_calibration import fit_presence
from deixis.vision.reading import read_picture

#: Validation pictures of a corpus at most, and how many are encoded at a time.
PICTURES, BATCH = 1000, 16
#: Training images whose phrases are looked through.
IMAGES = 3000


def calibrate(folder: Path, corpora: Sequence[Corpus]) -> Manifest:
    """Fit and keep the relevance of a bundle; corpora that have too few pictures or words are a `DeixisError`.

    The validation pictures of each corpus are a collection. Phrases that they do not show come from the other corpora
    and from training captions.
    """
    model, random = OnnxModel(read_bundle(folder)), np.random.default_rng(0)
    images = [[image for image in corpus.split("val") if image.captions][:PICTURES] for corpus in corpora]
    training = [image for corpus in corpora for image in training_set(corpus).corpus]
    others = [training[place] for place in random.permutation(len(training))[:IMAGES]]
    queries = known_queries(model, model.vocabulary, [*images, others], random)
    pictures = []
    for corpus, own in zip(corpora, images, strict=True):
        found = embedded(model, corpus, own)
        if len(found.embeddings) != len(own):
            raise DeixisError(f"of {len(own)} validation pictures of {corpus.name} {len(found.embeddings)} can be read")
        pictures.append(found)
    relevance = fitted(model, pictures, images, queries, random)
    beside = fit_end_with_example(model, model.vocabulary, pictures, images, relevance.end, random)
    presence = fit_presence(model, model.vocabulary, pictures, images, random)
    relevance = msgspec.structs.replace(relevance, end_with_example=beside, presence=presence)
    manifest = msgspec.structs.replace(model.bundle.manifest, thresholds=relevance, relevance=msgspec.UNSET)
    write_manifest(folder, manifest)
    return manifest


def embedded(model: OnnxModel, corpus: Corpus, images: Sequence[Image]) -> Pictures:
    """The pictures that can be read."""
    identity = model.identity
    none = Pictures(np.empty((0, identity.dim), np.float32), np.empty((0, identity.cells, identity.cell_dim), np.int8))
    parts = [none, *_embedded(model, corpus, images)]
    return Pictures(*map(np.concatenate, zip(*parts, strict=True)))


def _embedded(model: OnnxModel, corpus: Corpus, images: Sequence[Image]) -> Iterator[Pictures]:
    def prepared(image: Image) -> Bytes | None:
        try:
            return model.prepare(read_picture(corpus, image))
        except InputError:
            return None

    with ThreadPoolExecutor() as pool:
        for start in range(0, len(images), BATCH):
            read = [each for each in pool.map(prepared, images[start : start + BATCH]) if each is not None]
            if read:
                yield model.embed_prepared(read)
