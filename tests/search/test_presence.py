"""How likely a picture shows a phrase, and how that is fitted and shown."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs
from PIL import Image as Pillow

from deixis.adapters.bundles import Presence
from deixis.adapters.phrase_presence import presence
from deixis.adapters.search_model import whole_pictures
from deixis.figures.grounding_drawing import draw_grounded
from deixis.model import Grounding
from deixis.search.presence_calibration import PhraseQuestion, fit_presence, phrase_questions
from tests.search.fakes import COLOURS, ColourModel, unit
from tests.search.test_relevance import WORDS, WordModel, collection


def test_presence_grows_with_the_score_and_is_unknown_for_words_never_read() -> None:
    model = ColourModel()
    model.relevance = structs.replace(model.relevance, presence=Presence(-8.0, 10.0))
    red = whole_pictures(unit([COLOURS["red"]]))
    there, absent, unknown = presence(model, red, ["red", "blue", "mauve"])
    assert there == pytest.approx(1 / (1 + np.exp(-2)), abs=1e-3)
    assert absent is not None
    assert absent < 0.01
    assert unknown is None
    model.relevance = structs.replace(model.relevance, presence=None)
    assert presence(model, red, ["red"]) == [None]


def test_fitted_presence_is_right_about_what_pictures_show() -> None:
    random, model = np.random.default_rng(0), WordModel()
    images, rows = collection(random, 0.5)
    model.relevance = structs.replace(
        model.relevance, presence=fit_presence(model, model.known_words, [whole_pictures(rows)], [images], random)
    )
    for image, row in zip(images[:50], rows, strict=False):
        said = presence(model, whole_pictures(row[None]), [f"a {word}" for word in WORDS[:80]])
        shown = {word for caption in image.captions for word in caption.text.split() if word in WORDS}
        right = [(chance >= 0.5) == (word in shown) for word, chance in zip(WORDS, said, strict=False) if chance]
        assert np.mean(right) > 0.95


def test_questions_are_of_own_captions_and_of_words_that_none_of_them_has() -> None:
    random, model = np.random.default_rng(0), WordModel()
    images, _ = collection(random, 0.5)
    questions = phrase_questions(model.known_words, images, random)
    for question in questions:
        captions = " ".join(caption.text for caption in images[question.image].captions)
        assert (question.phrase.split()[-1] in captions) == (question.kind == "shown")
    kinds = [question.kind for question in questions]
    assert 0.8 < kinds.count("any") / kinds.count("shown") <= 1
    assert isinstance(questions[0], PhraseQuestion)


def test_what_is_probably_not_there_is_not_drawn() -> None:
    picture = Pillow.new("RGB", (200, 100), "white")
    there = Grounding("a dog", 0, 5, (10, 10, 90, 90), 0.9, 0.97)
    absent = Grounding("a cat", 10, 15, (110, 10, 190, 90), 0.9, 0.03)
    assert there.is_there
    assert not absent.is_there
    assert structs.replace(absent, presence=None).is_there
    one, both = (draw_grounded(picture, "a dog and a cat", own) for own in ([there], [there, absent]))
    better = draw_grounded(picture, "a dog and a cat", [there], ["a dog and a cow"])
    # The same boxes; the note under the picture says what is not there, or what fits better.
    for other in (both, better):
        pixels = np.asarray(other), np.asarray(one)
        assert pixels[0].shape == pixels[1].shape
        differing = np.flatnonzero((pixels[0] != pixels[1]).any((1, 2)))
        assert len(differing)
        assert differing.min() > 0.8 * one.height
