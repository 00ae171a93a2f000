"""What is said of pictures and regions: exact words score full marks, and what is new is counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deixis.corpus import Corpus, Image, open_corpus
from deixis.corpus.boxes import box_array, merge
from deixis.errors import DeixisError
from deixis.metrics.captioning_protocol import captioning, region_captioning, sentence_baseline, word_neighbours
from deixis.metrics.protocols import Pictures
from deixis.model import Description, Model
from deixis.text.tokens import tokens_of
from tests.stores import make_store


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    whole = open_corpus("scenes")
    return whole.with_images(whole.split("val").images[:6])


def drawn(image: Image) -> list[list[float]]:
    return [merge(box_array(image.chain_boxes(chain.id))).tolist() for chain in image.chains if chain.boxes]


@pytest.fixture
def pictures(corpus: Corpus, tmp_path: Path) -> Pictures:
    return Pictures(corpus, "val", make_store(tmp_path / "chains", corpus, drawn), learned_from_boxes=False)


def said(tokens: Sequence[str]) -> Description:
    return Description(" ".join(tokens), 0.0, "generation")


class Knows(Model):
    """Says of each picture its first caption, and of each region the first phrase of its chain."""

    def __init__(self, pictures: Pictures) -> None:
        self.images = {pictures.features(image).image.tobytes(): image for image in pictures.images}

    def describe(self, image: Any, count: int) -> Any:
        return [said(tokens_of(self.images[image.image.tobytes()].captions[0]))]

    def describe_regions(self, image: Any, count: int) -> Any:
        own = self.images[image.image.tobytes()]
        described = []
        for chain in (chain for chain in own.chains if chain.boxes):
            phrases = [
                tokens_of(caption)[phrase.start : phrase.end]
                for caption in own.captions
                for phrase in caption.phrases
                if phrase.chain == chain.id
            ]
            described.append([said(phrases[0] if phrases else ("nothing",))])
        return described

    def score(self, images: Any, texts: Any) -> Any:
        own = [[tokens_of(caption) for caption in self.images[each.image.tobytes()].captions] for each in images]
        return np.array([[float(tuple(text) == captions[1]) for text in texts] for captions in own])


def test_a_picture_s_own_words_score_full_marks(pictures: Pictures) -> None:
    matcher = Knows(pictures)
    first = [tokens_of(image.captions[0]) for image in pictures.images]
    found: Any = captioning(matcher, pictures, first[:2]).metrics
    assert found["captions"]["bleu_4"] == pytest.approx(100)
    assert found["novel"] == pytest.approx(100 * np.mean([text not in first[:2] for text in first]))


def test_one_sentence_for_all_pictures_is_seen_as_such(pictures: Pictures) -> None:
    """BLEU may be fair; but there is one sentence, and it finds no picture."""

    class Same(Knows):
        def describe(self, image: Any, count: int) -> Any:
            return [said(tokens_of(pictures.images[0].captions[1]))]

    class Own(Knows):
        def describe(self, image: Any, count: int) -> Any:
            return [said(tokens_of(self.images[image.image.tobytes()].captions[1]))]

    count = len(pictures.images)
    same: Any = captioning(Same(pictures), pictures, []).metrics
    # The first picture is the only one that the sentence scores high with, so that it is found by its own description.
    assert same["different"] == pytest.approx(100 / count)
    assert same["picture_by_description"]["r@1"] == pytest.approx(100 / count)
    own: Any = captioning(Own(pictures), pictures, []).metrics
    assert own["different"] == own["picture_by_description"]["r@1"] == 100


def test_the_baseline_says_the_best_training_sentence(pictures: Pictures) -> None:
    known = [tokens_of(image.captions[1]) for image in pictures.images]
    result = sentence_baseline(Knows(pictures), pictures, known)
    found: Any = result.metrics
    assert result.protocol.name == "best training sentence"
    assert found["novel"] == 0
    assert found["captions"]["bleu_1"] == pytest.approx(100)


def test_regions_are_held_against_the_phrases_of_their_chains(
    pictures: Pictures, corpus: Corpus, tmp_path: Path
) -> None:
    result = region_captioning(Knows(pictures), pictures)
    found: Any = result.metrics
    assert found["region_captions"]["bleu_1"] == pytest.approx(100)
    assert 0 < result.counts["regions"] <= sum(len(drawn(image)) for image in corpus)
    other = Pictures(corpus, "val", make_store(tmp_path / "none", corpus), learned_from_boxes=False)
    with pytest.raises(DeixisError, match="chains"):
        region_captioning(Knows(other), other)


def test_neighbours_of_colours_are_counted_and_reported(pictures: Pictures) -> None:
    class Words:
        def neighbours(self, word: str, count: int) -> list[tuple[str, float]]:
            near = {"red": ["blue", "'s", "green", "bus", "car", "van"], "blue": ["sky", "sea", "car", "hat", "red"]}
            if word not in near:
                raise DeixisError("unknown")
            return [(each, 1.0 - place / 10) for place, each in enumerate(near[word])]

    result = word_neighbours(Words(), pictures)
    assert result is not None
    found: Any = result.metrics
    assert found["colours_among_neighbours"] == pytest.approx(30)
    assert list(found["neighbours"]["red"]) == ["blue", "green", "bus"]
    assert result.counts == {"colours": 2}

    class Deaf:
        def neighbours(self, word: str, count: int) -> list[tuple[str, float]]:
            raise DeixisError("unknown")

    assert word_neighbours(Deaf(), pictures) is None
