"""Retrieved sentences against a plain sort."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deixis.corpus import open_corpus
from deixis.errors import DeixisError
from deixis.figures.retrieved_sentences import retrieved_sentences
from deixis.metrics.protocols import Pictures
from deixis.model import Model, Tokens
from tests.stores import make_store


class Table(Model):
    """Scores every pair by a table, in coarse steps, so that there are ties."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def score(self, images: Sequence[Any], texts: Sequence[Tokens]) -> Any:
        made = np.random.default_rng(5).random((len(images), len(texts)))
        return np.floor(made * self.steps) / self.steps


@pytest.mark.parametrize("steps", [3, 10**6])
def test_the_best_sentences_and_the_rank_of_an_images_own(steps: int, tmp_path: Path) -> None:
    whole = open_corpus("scenes")
    corpus = whole.with_images(whole.images[:6])
    pictures = Pictures(corpus, None, make_store(tmp_path / "store", corpus), learned_from_boxes=False)
    captions = [(image.id, caption.text) for image in corpus for caption in image.captions]
    scores = Table(steps).score(corpus.images, [()] * len(captions))
    found = retrieved_sentences(Table(steps), pictures, corpus.images, 4)
    for image, row, (sentences, rank) in zip(corpus, scores, found, strict=True):
        # Of equal scores, wrong ones come first.
        order = sorted(range(len(captions)), key=lambda n: (-row[n], captions[n][0] == image.id, n))
        assert [item.text for item in sentences] == [captions[number][1] for number in order[:4]]
        assert [item.own for item in sentences] == [captions[number][0] == image.id for number in order[:4]]
        assert rank == 1 + next(place for place, number in enumerate(order) if captions[number][0] == image.id)
    with pytest.raises(DeixisError, match="cannot score"):
        retrieved_sentences(Model(), pictures, corpus.images, 4)
