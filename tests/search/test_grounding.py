"""Sentences are taken apart into phrases, whose places and boxes are those of the text and the picture as given."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image as Pillow
from torch import nn

from deixis.base.grounding_model import GroundingModel, empty_network
from deixis.base.grounding_network import GroundingRecipe
from deixis.corpus.boxes import iou_matrix
from deixis.errors import DeixisError
from deixis.loading import load_model
from deixis.model import Mention, Tokens
from deixis.text.phrase_finding import token_places
from deixis.text.tokens import tokenize
from deixis.text.vocabulary import Vocabulary
from deixis.vision.proposer import squashed

SMALL = GroundingRecipe(backbone="efficientnet-lite0", side=64, regions=12, map_width=16, bins=3, width=32, hidden=16)


def grounding_model() -> GroundingModel:
    torch.manual_seed(0)
    vocabulary = Vocabulary(dict.fromkeys(tokenize("a man in the red shirt dog chases ball"), 1))
    network = empty_network(SMALL, len(vocabulary), proposer_width=32).eval()
    # Weights that begin at zero would hide what depends on them.
    nn.init.normal_(network.pair.weight, std=0.2)
    return GroundingModel(network, vocabulary)


@pytest.fixture(scope="module")
def grounder() -> GroundingModel:
    return grounding_model()


@pytest.fixture(scope="module")
def picture() -> Pillow.Image:
    pixels = np.random.default_rng(0).integers(0, 255, (6, 9, 3), dtype=np.uint8)
    return Pillow.fromarray(pixels).resize((90, 60), Pillow.Resampling.BICUBIC)


def test_boxes_are_those_of_the_network_for_the_same_phrases(grounder: GroundingModel, picture: Pillow.Image) -> None:
    """And the score is the network's own probability of all regions that overlap the box by half."""
    found = grounder.ground(picture, "A man in the red shirt chases a dog.")
    assert [each.phrase for each in found] == ["A man", "the red shirt", "a dog"]
    words = [token.lower() for token in tokenize("A man in the red shirt chases a dog.")]
    mentions = [Mention(words, 0, 2), Mention(words, 3, 6), Mention(words, 7, 9)]
    asked = grounding_model()
    wanted = asked.localize(picture, mentions)
    answer, _ = asked.answer(squashed(picture, SMALL.side)[None], asked.captions(mentions), mirror=False)
    chances = answer.scores[0].softmax(-1).numpy()
    for each, boxes, scores, chance in zip(found, wanted.boxes, wanted.scores, chances, strict=True):
        assert each.box == pytest.approx(boxes[scores.argmax()].tolist(), abs=0.06)
        near = iou_matrix(boxes[[scores.argmax()]], boxes)[0] >= 0.5
        assert each.score == pytest.approx(chance[near].sum(), abs=1e-3)
        assert 0 <= each.box[0] <= each.box[2] <= 90
        assert 0 <= each.box[1] <= each.box[3] <= 60


def test_a_picture_that_was_looked_at_gives_the_same_answers(grounder: GroundingModel, picture: Pillow.Image) -> None:
    looked = grounder.look(picture)
    for sentence in ("a man", "the red shirt of a dog"):
        assert grounder.ground(looked, sentence) == grounder.ground(picture, sentence)


@pytest.mark.parametrize("phrase", ["dog", "red", "running fast", "Hund", "the background", "dog?!", "A-1"])
def test_a_query_that_is_one_phrase_is_answered(phrase: str, grounder: GroundingModel, picture: Pillow.Image) -> None:
    (found,) = grounder.ground(picture, phrase)
    assert found.phrase == phrase.strip("?!")


def test_what_cannot_be_seen_is_left_out_beside_what_can(grounder: GroundingModel, picture: Pillow.Image) -> None:
    found = grounder.ground(picture, "A dog and a man look at each other in the background.")
    assert [each.phrase for each in found] == ["A dog", "a man"]


@pytest.mark.parametrize("sentence", ["", " ... ", "a", "dog " * 300])
def test_sentences_without_words_and_endless_ones_are_refused(
    sentence: str, grounder: GroundingModel, picture: Pillow.Image
) -> None:
    with pytest.raises(DeixisError, match="words"):
        grounder.ground(picture, sentence)


@given(st.text(max_size=40))
@example("A man’s  cafe\u0301.")
@example("e\u0301e\u0301 \u1100\u1161 dog")
def test_tokens_stand_where_they_were_typed(sentence: str) -> None:
    tokens = tokenize(sentence)
    places = token_places(sentence, tokens)
    assert all(before[1] <= after[0] for before, after in pairwise(places))
    for token, (start, end) in zip(tokens, places, strict=True):
        assert "".join(tokenize(sentence[start:end])) == token


def test_phrases_of_a_list_are_taken_as_they_are(grounder: GroundingModel, picture: Pillow.Image) -> None:
    words = [token.lower() for token in tokenize("A man in the red shirt chases a dog.")]
    found = grounder.ground(picture, ["a man in the red shirt!", ("the", "dog"), Mention(words, 7, 9)])
    assert [(each.phrase, each.start, each.end) for each in found] == [
        ("a man in the red shirt", 0, 22),
        ("the dog", 0, 7),
        ("a dog", 30, 35),
    ]
    # Phrases that come with their sentence are read as in the sentence.
    mentions = [Mention(words, start, end) for start, end in ((0, 2), (3, 6), (7, 9))]
    asked = grounder.ground(picture, mentions)
    wanted = grounder.ground(picture, "A man in the red shirt chases a dog.")
    assert [(each.box, each.score) for each in asked] == [(each.box, each.score) for each in wanted]
    assert grounder.ground(picture, []) == []
    with pytest.raises(DeixisError, match="has no words"):
        grounder.ground(picture, ["a dog", "?!"])


def test_unknown_models_are_refused() -> None:
    with pytest.raises(DeixisError, match="unknown model"):
        load_model("nothing")


def test_of_a_plural_the_network_is_asked_for_one_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its boxes are then in pixels of the picture."""
    model = grounding_model()
    asked: list[Sequence[Tokens]] = []
    halves = np.array([[(0.0, 0.0, 0.4, 1.0), (0.6, 0.0, 1.0, 1.0)]], np.float32)
    plain = GroundingModel._point

    def point(self: GroundingModel, seen: object, phrases: Sequence[Tokens]) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(phrases)
        if phrases[0] == ("a", "dog"):
            return torch.from_numpy(halves), torch.zeros(1, 2)
        return plain(self, seen, phrases)  # type: ignore[arg-type]

    monkeypatch.setattr(GroundingModel, "_point", point)
    (found,) = model.ground(Pillow.new("RGB", (200, 100)), ["two dogs"])
    assert [list(map(tuple, phrases)) for phrases in asked] == [[("two", "dogs")], [("a", "dog")]]
    assert found.boxes == ((0, 0, 80, 100), (120, 0, 200, 100))
    (one,) = model.ground(Pillow.new("RGB", (200, 100)), ["a dog with a hat"])
    assert one.boxes == (one.box,)
