"""`calibrate`: fit everything about a bundle that says which pictures match a query, and write it to its manifest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from deixis.adapters.bundles import Manifest, read_bundle, write_manifest
from deixis.adapters.onnx_model import OnnxModel
from deixis.adapters.phrasing import phrasing
from deixis.adapters.search_model import Bytes, Pictures
from deixis.corpus import Corpus, Image, training_set
from deixis.errors import DeixisError, InputError
from deixis.search.asked_collections import Labelled
from deixis.search.calibration import fitted
from deixis.search.caption_queries import known_queries, rare_words
from deixis.search.example_calibration import fit_end_with_example
from deixis.search.presence_calibration import fit_presence
from deixis.vision.reading import read_picture

#: Validation pictures of a corpus at most, pictures with training pictures besides, and how many are encoded at a time.
PICTURES, LARGER, BATCH = 1000, 2000, 16
#: Training images whose phrases are looked through.
IMAGES = 3000
#: Training pictures with labelled boxes, and how many of them should have a label, if there are so many.
LABELLED, LABEL_PICTURES = 2400, 40

#: The pictures of images of a corpus that can be read, embedded.
Embed = Callable[[Corpus, Sequence[Image]], Pictures]


def calibrate(
    folder: Path, corpora: Sequence[Corpus], embed: Embed | None = None, boxes: Corpus | None = None
) -> Manifest:
    """Fit and keep the relevance of a bundle; corpora that have too few pictures or words are a `DeixisError`.

    The validation pictures of each corpus are a collection, and with training pictures a larger one. Phrases that they
    do not show come from the other corpora and from training captions.

    Args:
        embed: embeds pictures of a corpus, if not by `embedded`; benchmarks keep what they embedded.
        boxes: a corpus whose training pictures have labelled boxes, for thresholds of the labels. Best are pictures
            whose captions the model has not read.
    """
    model, random = OnnxModel(read_bundle(folder)), np.random.default_rng(0)
    images = [validation_pictures(corpus) for corpus in corpora]
    training = [image for corpus in corpora for image in training_set(corpus).corpus]
    others = [training[index] for index in random.permutation(len(training))[:IMAGES]]
    queries = known_queries(model, model.vocabulary, [*images, others], random)
    counts, larger, pictures = list(map(len, images)), [], []
    for corpus, validation in zip(corpora, images, strict=True):
        drawn_images = fitted_on(corpus, validation)
        larger.append(drawn_images)
        pictures.append(_all_embedded(model, corpus, drawn_images, embed))
    labelled = None if boxes is None else labelled_pictures(model, boxes, embed)
    rare = rare_words(model.vocabulary, training)
    relevance = fitted(model, pictures, larger, queries, random, counts, labelled, rare)
    images = [group[:count] for group, count in zip(larger, counts, strict=True)]
    own_pictures = [
        Pictures(embedded_pictures.embeddings[:count], embedded_pictures.cells[:count])
        for embedded_pictures, count in zip(pictures, counts, strict=True)
    ]
    beside = fit_end_with_example(model, model.vocabulary, own_pictures, images, relevance.end, random)
    presence = fit_presence(model, model.vocabulary, own_pictures, images, random)
    relevance = msgspec.structs.replace(relevance, end_with_example=beside, presence=presence)
    manifest = msgspec.structs.replace(model.bundle.manifest, thresholds=relevance, relevance=msgspec.UNSET)
    write_manifest(folder, manifest)
    return manifest


def labelled_pictures(model: OnnxModel, corpus: Corpus, embed: Embed | None = None) -> Labelled:
    """Training pictures of a corpus: enough of every label whose words the model knows, and others at random."""
    random = np.random.default_rng(0)
    training = list(training_set(corpus).corpus)
    order = random.permutation(len(training)).tolist()
    having = defaultdict[str, list[int]](list)
    for place in order:
        for label in {chain.label for chain in training[place].chains if chain.label and chain.boxes}:
            having[label].append(place)
    labels = [label for label in sorted(having) if not phrasing(label, model).unknown]
    if not labels:
        raise DeixisError(f"{corpus.name} has no training pictures with boxes whose labels the model knows")
    chosen = dict[int, None]()
    for label in sorted(labels, key=lambda label: len(having[label])):
        missing = LABEL_PICTURES - sum(place in chosen for place in having[label])
        chosen |= dict.fromkeys([place for place in having[label] if place not in chosen][: max(0, missing)])
    others = [place for place in order if place not in chosen]
    chosen |= dict.fromkeys(others[: max(0, LABELLED - len(chosen))])
    images = [training[place] for place in chosen]
    shown = np.array([[place in places for place in chosen] for places in (set(having[label]) for label in labels)])
    return Labelled(_all_embedded(model, corpus, images, embed), labels, shown)


def _all_embedded(model: OnnxModel, corpus: Corpus, images: Sequence[Image], embed: Embed | None) -> Pictures:
    pictures = (embed or partial(embedded, model))(corpus, images)
    if len(pictures.embeddings) != len(images):
        raise DeixisError(f"of {len(images)} pictures of {corpus.name} {len(pictures.embeddings)} can be read")
    return pictures


def validation_pictures(corpus: Corpus) -> list[Image]:
    return [image for image in corpus.split("val") if image.captions][:PICTURES]


def fitted_on(corpus: Corpus, validation: Sequence[Image]) -> list[Image]:
    """The collection that thresholds are fitted on: validation pictures, then training pictures."""
    return drawn(corpus, validation, LARGER, np.random.default_rng(0))[0]


def drawn(
    corpus: Corpus,
    validation: Sequence[Image],
    size: int,
    random: np.random.Generator,
    apart_from: Container[str] = (),
) -> tuple[list[Image], int]:
    """So many pictures of a split, and if that has too few, training pictures besides; how many these are.

    `apart_from`: ids of training pictures that are not taken.
    """
    images = [validation[index] for index in random.permutation(len(validation))[:size]]
    training = [image for image in training_set(corpus).corpus if image.captions and image.id not in apart_from]
    more = [training[index] for index in random.permutation(len(training))[: size - len(images)]]
    return [*images, *more], len(more)


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
            read = [
                prepared_picture
                for prepared_picture in pool.map(prepared, images[start : start + BATCH])
                if prepared_picture is not None
            ]
            if read:
                yield model.embed_prepared(read)
