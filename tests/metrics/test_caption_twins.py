"""Twins are balanced against a language model, and a model is right only if it looks at the picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from deixis.corpus import open_corpus
from deixis.errors import DeixisError
from deixis.metrics.caption_twins import CaptionTwins, accuracy_interval, caption_twins, equally_likely, twin_accuracy
from deixis.model import Model
from deixis.text.false_captions import KINDS
from deixis.vision.reading import read_picture

SCENES = open_corpus("scenes:400")


class TrueCaptions(Model):
    """Knows the captions of every picture."""

    def __init__(self, captions: dict[bytes, set[tuple[str, ...]]]) -> None:
        self.captions = captions

    def score(self, images: Sequence[Any], texts: Sequence[Any]) -> Any:
        return np.array([[float(tuple(text) in self.captions[image.tobytes()]) for text in texts] for image in images])


class Blind(Model):
    def score(self, images: Sequence[Any], texts: Sequence[Any]) -> Any:
        return np.tile([len("".join(text)) + len(set(text)) / 100 for text in texts], (len(images), 1))


def test_the_language_model_is_right_in_half_of_the_pairs_of_each_kind() -> None:
    twins = caption_twins(SCENES, "test")
    kinds = Counter(each.kind for each in twins)
    assert kinds
    for kind, count in kinds.items():
        assert sum(each.likelier > 0 for each in twins if each.kind == kind) == count / 2
    captions = {image.id: {" ".join(caption.tokens).lower() for caption in image.captions} for image in SCENES}
    assert all(" ".join(each.true) in captions[each.image] for each in twins)
    assert not any(" ".join(each.false) in captions[each.image] for each in twins)
    assert twins == caption_twins(SCENES, "test"), "the same seed makes the same twins"


def test_pairs_are_balanced_at_every_size_of_the_difference() -> None:
    random = np.random.default_rng(0)
    leads = np.concatenate([random.uniform(0, 10, 500), -random.uniform(0, 2, 200)])
    twins = [CaptionTwins(str(row), "role", ("a",), ("b",), float(lead)) for row, lead in enumerate(leads)]
    chosen = np.array([each.likelier for each in equally_likely(twins, random)])
    assert 100 < len(chosen) < 400
    assert (chosen > 0).sum() == (chosen < 0).sum()
    assert np.median(chosen[chosen > 0]) == pytest.approx(np.median(-chosen[chosen < 0]), abs=0.3)
    nothing = [each._replace(likelier=0.0) for each in twins]
    assert not equally_likely(nothing, random)


def test_a_model_that_knows_the_picture_is_right_and_one_that_does_not_look_is_no_better_elsewhere() -> None:
    captions = {
        read_picture(SCENES, image).tobytes(): {
            tuple(token.lower() for token in caption.tokens) for caption in image.captions
        }
        for image in SCENES.split("test")
    }
    result = twin_accuracy(TrueCaptions(captions), SCENES, "test")
    figures: Any = result.metrics["twins"]
    assert set(figures) <= set(KINDS)
    for own in figures.values():
        assert (own["accuracy"], own["ties"], own["language_model"]) == (100, 0, 50)
        assert (own["accuracy_low"], own["accuracy_high"]) == (100, 100)
        assert own["other_pictures"] < 20
    blind: Any = twin_accuracy(Blind(), SCENES, "test").metrics["twins"]
    for own in blind.values():
        assert own["by_picture"] == 0
        assert own["accuracy"] == pytest.approx(own["other_pictures"], abs=1e-9)
    assert result.counts["pairs"] == sum(own["pairs"] for own in figures.values())


def test_the_interval_of_an_accuracy_draws_pictures_not_pairs() -> None:
    right = np.arange(400) % 5 > 0
    low, high = accuracy_interval(right, [str(row) for row in range(400)])
    assert (low, high) == pytest.approx((76, 84), abs=0.5), "80 ± 1.96 √(80 · 20 / 400)"
    together = accuracy_interval(np.sort(right), [str(row // 10) for row in range(400)])
    assert together[1] - together[0] > 2 * (high - low), "pairs of one picture are right together"


def test_captions_without_anything_to_change_are_an_error() -> None:
    with pytest.raises(DeixisError, match="test"):
        twin_accuracy(Blind(), SCENES.with_images([image for image in SCENES if image.split == "train"][:1]), "test")
