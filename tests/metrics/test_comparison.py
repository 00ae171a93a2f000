"""What is drawn promises to be what is scored: the best region of each phrase, right where the protocol says so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from deixis.corpus import Corpus, Image, open_corpus
from deixis.corpus.boxes import box_array
from deixis.errors import DeixisError
from deixis.figures.localization_comparison import captions_with_boxes, found_phrases
from deixis.metrics.localization import PhraseQuery, evaluate_localization
from deixis.metrics.protocols import mention_localizer
from deixis.model import Localized, Mention


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    whole = open_corpus("scenes")
    return whole.with_images(whole.split("val").images[:12])


def localize(image: Image, queries: Sequence[PhraseQuery]) -> Localized:
    """Shaken drawn boxes, scored at random, but always the same for an image and a phrase."""
    random = np.random.default_rng(list(image.id.encode()))
    boxes = np.sort((box_array(image.boxes) + random.normal(0, 6, (len(image.boxes), 4))).reshape(-1, 2, 2), axis=1)
    scores = [np.random.default_rng(list(query.text.encode())).normal(size=len(boxes)) for query in queries]
    return Localized(boxes.reshape(-1, 4), np.array(scores))


@pytest.mark.parametrize("own_boxes", [False, True])
def test_right_is_what_recall_at_one_counts(corpus: Corpus, own_boxes: bool) -> None:
    def each(image: Image, queries: Sequence[PhraseQuery]) -> Localized:
        boxes, scores = localize(image, queries)
        return (
            Localized(np.repeat(boxes[None], len(queries), axis=0), scores) if own_boxes else Localized(boxes, scores)
        )

    found = [
        one for image, number in captions_with_boxes(corpus.images, 1) for one in found_phrases(image, number, each)
    ]
    scored = evaluate_localization(corpus.images, localize)
    assert len(found) == scored.phrases
    counted = [one.right for one in found for _ in one.phrase.types or ("",)]
    assert 0 < np.mean(counted) < 1
    assert 100 * np.mean(counted) == pytest.approx(scored.overall.recall[1])


def test_the_best_region_and_its_score_are_given(corpus: Corpus) -> None:
    image, number = captions_with_boxes(corpus.images, 2)[0]
    for one in found_phrases(image, number, localize):
        boxes, scores = localize(image, [PhraseQuery(image.captions[number], one.phrase)])
        best = scores[0].argmax()
        assert one.score == scores[0, best]
        assert [one.box.x1, one.box.y1, one.box.x2, one.box.y2] == boxes[best].tolist()


def test_captions_without_boxes_or_out_of_range_are_refused(corpus: Corpus) -> None:
    image = corpus.images[0]
    with pytest.raises(DeixisError, match="there is no number 9"):
        found_phrases(image, 9, localize)
    bare = [
        (image, number)
        for image in corpus
        for number, caption in enumerate(image.captions)
        if not any(image.chain_boxes(phrase.chain) for phrase in caption.phrases)
    ]
    for own, number in bare:
        assert (own, number) not in captions_with_boxes(corpus.images, 1)
        with pytest.raises(DeixisError, match="no phrase with an annotated box"):
            found_phrases(own, number, localize)
    with pytest.raises(DeixisError, match="no regions"):
        found_phrases(
            image,
            captions_with_boxes([image], 1)[0][1],
            lambda image, queries: Localized(np.zeros((0, 4)), np.zeros((len(queries), 0))),
        )


def test_a_matcher_that_looks_at_pictures_answers_in_the_original_pixels(corpus: Corpus) -> None:
    image, number = captions_with_boxes(corpus.images, 1)[0]

    class Whole:
        def localize(self, picture: object, mentions: Sequence[Mention]) -> Localized:
            width, height = picture.size  # type: ignore[attr-defined]
            seen.extend(mentions)
            return Localized(np.tile([0.0, 0, width / 2, height], (len(mentions), 1, 1)), np.ones((len(mentions), 1)))

    seen: list[Mention] = []
    one = found_phrases(image, number, mention_localizer(Whole(), corpus))[0]
    assert (one.box.x2, one.box.y2) == (image.width / 2, image.height)
    assert (
        " ".join(seen[0].sentence[seen[0].start : seen[0].end])
        == image.captions[number].phrase_text(one.phrase).lower()
    )
