"""Cues beside similarity: each says what it promises, and weights are learned from the pictures they are fitted to."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image as Pillow

from deixis.corpus.scenes import scenes_corpus
from deixis.metrics.localization import evaluate_localization
from deixis.model import Localized
from deixis.papers.entities_cca.cues import (
    CUES,
    CueLocalizer,
    PositionModel,
    colour_cue,
    lab_colours,
    learned_weights,
    mean_colours,
    named_class,
)


def test_white_has_full_lightness_and_no_hue() -> None:
    np.testing.assert_allclose(lab_colours(np.ones((1, 3))), [[100, 0, 0]], atol=0.1)
    np.testing.assert_allclose(lab_colours(np.zeros((1, 3))), [[0, 0, 0]], atol=0.1)


def test_the_box_in_the_named_colour_is_preferred() -> None:
    picture = Pillow.new("RGB", (40, 20), (180, 40, 40))
    picture.paste((50, 80, 160), (20, 0, 40, 20))
    boxes = np.array([[0, 0, 20, 20], [20, 0, 40, 20], [0, 0, 40, 20], [39.9, 19.9, 40, 20]])
    colours = mean_colours(picture, boxes)
    np.testing.assert_allclose(colours[2], (colours[0] + colours[1]) / 2)
    np.testing.assert_allclose(colours[3], colours[1])
    red, blue = colour_cue(("a", "red", "car"), colours), colour_cue(("blue",), colours)
    assert red.argmax() == 0
    assert blue[1] == pytest.approx(1)
    assert not colour_cue(("a", "car"), colours).any()


def test_a_phrase_names_the_last_class_in_it() -> None:
    classes = {"person": 0, "man": 0, "hot dog": 1, "dog": 2}
    assert named_class(["a", "man", "with", "a", "hot", "dog"], classes) == 1
    assert named_class(["two", "dogs"], classes) == 2
    assert named_class(["a", "man", "in", "snow"], classes) == 0
    assert named_class(["the", "snow"], classes) is None


def test_learned_weights_follow_the_cue_that_finds_the_box() -> None:
    random = np.random.default_rng(0)
    examples = []
    for _ in range(60):
        cues = random.normal(size=(20, 2)) * [1.0, 100.0]
        examples.append((cues, np.arange(20) == (cues[:, 1] + 30 * random.normal(size=20)).argmax()))
    weights = learned_weights(examples, [0, 1])
    assert abs(weights[0]) < 0.5
    assert weights[1] * 100 > 2
    assert learned_weights(examples, [1])[0] == 0


def test_size_and_position_help_a_model_that_knows_nothing() -> None:
    scenes = scenes_corpus(60, size=(160, 120))
    training, test = scenes.split("train"), scenes.split("test")
    random = np.random.default_rng(0)

    def base(image, queries):
        corner = random.uniform(0, 0.7, size=(40, 2))
        boxes = np.concatenate([corner, np.minimum(corner + random.uniform(0.1, 0.6, size=(40, 2)), 1)], 1)
        truth = [(box.x1, box.y1, box.x2, box.y2) for box in image.boxes]
        boxes = np.concatenate([boxes * [160, 120, 160, 120], truth])
        return Localized(boxes, random.normal(size=(len(queries), len(boxes))))

    localizer = CueLocalizer(base, PositionModel(training))
    blind = evaluate_localization(test.images, localizer).overall.recall[10]
    localizer.fit(training.images, ["similarity", "size", "position"])
    assert dict(zip(CUES, localizer.weights, strict=True))["detector"] == 0
    assert evaluate_localization(test.images, localizer).overall.recall[10] > blind + 5
