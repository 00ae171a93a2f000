"""Text features on the real captions: tokens as the release has them, words with vectors, features with a meaning."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from deixis.corpus import Corpus, make_caption, open_corpus
from deixis.corpus.leak_guard import training_set
from deixis.text.fisher import FisherVectors
from deixis.text.tokens import tokenize, tokens_of, tokens_of_captions
from deixis.text.vector_features import MeanVectors
from deixis.text.word_vectors import SPACY_PACKAGES, WordVectors, spacy_vectors

DATA = Path(os.environ.get("DEIXIS_DATA", "no data"))
pytestmark = [
    pytest.mark.skipif(not (DATA / "flickr8k").is_dir(), reason="needs DEIXIS_DATA, a folder that holds flickr8k"),
]
needs_vectors = pytest.mark.skipif(
    not any(map(find_spec, SPACY_PACKAGES)), reason="needs a spaCy model with vectors (extra `text`)"
)


@pytest.fixture(scope="module")
def flickr8k() -> Corpus:
    return open_corpus(DATA / "flickr8k")


@pytest.fixture(scope="module")
def vectors() -> WordVectors:
    return spacy_vectors()


def test_text_is_split_as_the_release_splits_it(flickr8k: Corpus) -> None:
    captions = [caption for image in flickr8k for caption in image.captions]
    same = sum(tokenize(caption.text) == tuple(caption.text.split()) for caption in captions)
    assert same / len(captions) > 0.999
    # Joined as people write, the tokens are found again.
    found = 0
    for caption in captions[:5000]:
        written = caption.text.replace(" ,", ",").replace(" .", ".").replace(" 's", "'s").replace(" n't", "n't")
        found += tokens_of(make_caption(written)) == tuple(caption.text.lower().split())
    assert found / 5000 > 0.99


@needs_vectors
def test_nearly_every_running_word_has_a_vector(flickr8k: Corpus, vectors: WordVectors) -> None:
    lists = tokens_of_captions(flickr8k)
    assert sum(vectors.missing(lists).values()) / sum(map(len, lists)) < 0.002


def _recall_at_10(features: NDArray[np.float32], captions_per_image: int) -> float:
    """How often another caption of the same image is among the ten nearest."""
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-9)
    similarity = unit @ unit.T
    np.fill_diagonal(similarity, -2)
    nearest = similarity.argpartition(-10, axis=1)[:, -10:]
    images = np.arange(len(features)) // captions_per_image
    return float((images[nearest] == images[:, None]).any(axis=1).mean())


@needs_vectors
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_fisher_vectors_bring_captions_of_one_picture_together(flickr8k: Corpus, vectors: WordVectors) -> None:
    training = tokens_of_captions(training_set(flickr8k))
    validation = [tokens_of(caption) for image in flickr8k.split("val") for caption in image.captions]
    fisher = FisherVectors(vectors, ica_iterations=15, random_state=0).fit(training)
    of_fisher = _recall_at_10(fisher.transform(validation), 5)
    of_means = _recall_at_10(MeanVectors(vectors).transform(validation), 5)
    # By chance, 10 · 4 / 4,999.
    assert of_means > 0.3
    assert of_fisher > of_means + 0.1
