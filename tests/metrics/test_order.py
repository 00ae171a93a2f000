"""Order measured: a matcher that reads words in their order against one that counts them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deixis.corpus import open_corpus
from deixis.errors import DeixisError
from deixis.metrics.protocols import Pictures
from deixis.metrics.word_order import order_accuracy
from deixis.model import ImageFeatures, Tokens
from deixis.text.twins import Twins
from tests.stores import make_store


class FirstWord:
    """Encodes a text by which of two words comes first, and every picture as the first of them."""

    def __init__(self, ordered: bool) -> None:
        self.ordered = ordered

    def embed_images(self, images: Sequence[ImageFeatures]) -> Any:
        return np.array([[1.0, 0.0]] * len(images))

    def embed_texts(self, texts: Sequence[Tokens]) -> Any:
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
    assert "reversible" not in order, "nothing stands between the two"
    either = [
        *twins,
        Twins(ids[1], "bite", "dog bites cat", "cat bites dog"),
        Twins(ids[2], "on", "dog on ice", "ice on dog"),
    ]
    mixed: Any = order_accuracy(FirstWord(True), pictures, either).metrics["order"]
    assert (mixed["pairs"], mixed["reversible"]["pairs"], mixed["reversible"]["accuracy"]) == (5, 1, 100.0)
    assert result.counts == {"images": 2, "pairs": 3}
    assert (order["other_pictures"], order["by_picture"]) == (pytest.approx(100 * 2 / 3), 0), "it looks at no picture"
    blind: Any = order_accuracy(FirstWord(False), pictures, twins).metrics["order"]
    assert (blind["accuracy"], blind["ties"]) == (0.0, 3)
    with pytest.raises(DeixisError, match="none"):
        order_accuracy(FirstWord(True), pictures, twins[-1:])


class Seeing:
    """Likes "dog cat" with pictures of odd number and "cat dog" with even ones, by its match or its likelihood."""

    def __init__(self, numbers: dict[float, int]) -> None:
        self.numbers = numbers

    def sign(self, images: Sequence[ImageFeatures]) -> Any:
        return np.array([1.0 if self.numbers[float(image.image[0])] % 2 else -1.0 for image in images])

    def embed_images(self, images: Sequence[ImageFeatures]) -> Any:
        return np.stack([self.sign(images), np.zeros(len(images))], 1)

    def embed_texts(self, texts: Sequence[Tokens]) -> Any:
        return np.array([[1.0 if text[0] == "dog" else -1.0, 0.0] for text in texts])

    def log_likelihood(self, images: Sequence[ImageFeatures], texts: Sequence[Tokens]) -> Any:
        # "dog cat" is likelier in any case, and a little more so where it is right.
        common = np.array([-10.0 if text[0] == "dog" else -20.0 for text in texts])
        return common + 0.5 * self.embed_images(images) @ self.embed_texts(texts).T


def test_likelihood_is_held_apart_from_what_words_alone_give(tmp_path: Path) -> None:
    whole = open_corpus("scenes")
    corpus = whole.with_images(list(whole)[:4])
    pictures = Pictures(corpus, None, make_store(tmp_path / "store", corpus), learned_from_boxes=False)
    matcher = Seeing({float(pictures.features(image).image[0]): number for number, image in enumerate(corpus)})
    twins = [
        Twins(image.id, "bite", *(("dog cat", "cat dog") if number % 2 else ("cat dog", "dog cat")))
        for number, image in enumerate(corpus)
    ]
    order: Any = order_accuracy(matcher, pictures, twins).metrics["order"]
    # Of the three other pictures one is of the same kind: there the true caption is ahead, and as far.
    expected = {"accuracy": 100, "pairs": 4, "ties": 0, "other_pictures": 100 / 3, "by_picture": 200 / 3}
    assert {name: order[name] for name in expected} == pytest.approx(expected)
    # Half of the true captions are the common one; which picture it is tells in all cases.
    expected = {"accuracy": 50, "pairs": 4, "ties": 0, "other_pictures": 50, "by_picture": 200 / 3}
    assert order["likelihood"] == pytest.approx(expected)
    # Less how likely a caption is over the other pictures, order is all that is left.
    assert order["likelihood_ratio"]["accuracy"] == 100
    # By matching every true caption is ahead by 2: its spread is 0, and 1 is taken for its unit.
    assert order["match_and_likelihood"]["by_picture"] == pytest.approx(200 / 3)
