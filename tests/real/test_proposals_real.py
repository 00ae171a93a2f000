"""Proposals on real photos: the learned ones reach what their result claims, on pictures they never saw."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from deixis.corpus import open_corpus
from deixis.corpus.combine import join
from deixis.metrics.proposal_recall import proposal_recall
from deixis.vision.proposals import load_method
from deixis.vision.reading import read_picture

DATA = Path(os.environ.get("DEIXIS_DATA", "no data"))
FLICKR8K, ENTITIES = DATA / "flickr8k", DATA / "flickr30k_entities" / "annotations.zip"
pytestmark = [
    pytest.mark.skipif(
        not (FLICKR8K.is_dir() and ENTITIES.exists()), reason="needs DEIXIS_DATA with flickr8k and flickr30k_entities"
    ),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def photos():
    """Forty validation pictures from all over the split, with their photos."""
    corpus = join(open_corpus(FLICKR8K), open_corpus(ENTITIES)).corpus
    return [(image, read_picture(corpus, image)) for image in corpus.split("val").images[::25]]


@pytest.mark.parametrize(
    ("name", "least", "fine"),
    [("learned", 92, 70), ("edge-boxes", 82, 40), ("selective-search", 80, 40), ("grid", 70, 35)],
)
def test_recall_at_100_boxes(photos, name, least, fine):
    if name in ("edge-boxes", "selective-search"):
        pytest.importorskip("cv2", reason="needs OpenCV: pip install 'deixis[proposals]'")
    method = load_method(name)
    pairs = []
    for image, picture in photos:
        scale = np.tile(np.divide((image.width, image.height), picture.size), 2)
        pairs.append((image, method.propose(picture, 100).boxes * scale))
    recall = proposal_recall(pairs)
    assert recall[0.5].overall.recall[100] > least
    assert recall[0.7].overall.recall[100] > fine
