"""Order measured: a matcher that reads words in their order against one that counts them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deixis.corpus import open_corpus
from deixis.errors import DeixisError
from deixis.evaluation.matching import Pictures
from deixis.evaluation.order import order_accuracy
from deixis.matcher import ImageFeatures, Tokens
from deixis.text.twins import Twins
from tests.stores import make_store


class FirstWord:
    """Encodes a text by which of two words comes first, and every picture as the first of them."""

    def __init__(self, ordered: bool) -> None:
        self.ordered = ordered

    def encode_images(self, images: Sequence[ImageFeatures]) -> Any:
        return np.array([[1.0, 0.0]] * len(images))

    def encode_texts(self, texts: Sequence[Tokens]) -> Any:
        return np.array([np.eye(2)[min(1, tuple(text).index("dog"))] if self.ordered else [0.6, 0.8] for text in texts])


def test_accuracy_counts_true_captions_that_score_higher_and_no_ties(tmp_path: Path) -> None:
    whole = open_corpus("scenes")
    corpus = whole.with_images(list(whole)[:3])
    pictures = Pictures(corpus, None, make_store(tmp_path / "store", corpus), learned_from_boxes=False)
    ids = [image.id for image in corpus]
    right, wrong = "dog cat", "cat dog"
    twins = [
        Twins(ids[0], "bite", right, wrong),
        Twins(ids[0], "on", right, wrong),
        Twins(ids[1], "bite", wrong, right),
        Twins("x", "on", right, wrong),
    ]
    result = order_accuracy(FirstWord(True), pictures, twins)
    order: Any = result.metrics["order"]
    assert (order["accuracy"], order["pairs"], order["ties"]) == (pytest.approx(100 * 2 / 3), 3, 0)
    assert order["by_relation"] == {
        "bite": {"accuracy": 50.0, "pairs": 2, "ties": 0},
        "on": {"accuracy": 100.0, "pairs": 1, "ties": 0},
    }
    assert result.counts == {"images": 2, "pairs": 3}
    blind: Any = order_accuracy(FirstWord(False), pictures, twins).metrics["order"]
    assert (blind["accuracy"], blind["ties"]) == (0.0, 3)
    with pytest.raises(DeixisError, match="none"):
        order_accuracy(FirstWord(True), pictures, twins[-1:])
