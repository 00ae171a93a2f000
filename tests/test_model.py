"""The interface of all models: abilities, the one error, and what follows from few methods."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from deixis import CannotError, DeixisError, Model
from deixis.model import Grounding, Localized, Mention, Tokens, abilities_of, asked_phrases, has_own_score


class Embeds(Model):
    name = "runs/bi"

    def embed_images(self, images: Sequence[Any]) -> Any:
        return np.array([[1.0, 0.0]] * len(images))

    def embed_texts(self, texts: Sequence[Any]) -> Any:
        return np.array([[0.6, 0.8] if text == "a dog" else [0.0, 1.0] for text in texts])


class Localizes(Model):
    def __init__(self, boxes: Any) -> None:
        self.boxes = np.asarray(boxes, float).reshape(-1, 4)

    def localize(self, image: Any, phrases: Sequence[Tokens]) -> Localized:
        """The first phrase is in the first box, the next in the next."""
        return Localized(self.boxes, np.eye(len(phrases), len(self.boxes)))


def test_a_model_can_do_what_its_class_implements_and_what_follows() -> None:
    assert Model().abilities == frozenset()
    assert Embeds().abilities == {"embed_images", "embed_texts", "score"}
    assert Localizes([]).abilities == {"localize", "ground"}
    assert Embeds().score(["a.jpg"], ["a dog", "snow"]).tolist() == [[0.6, 0.0]]


def test_everything_else_raises_one_error() -> None:
    model = Embeds()
    asked = {
        "ground": lambda: model.ground("a.jpg", "a dog"),
        "localize": lambda: model.localize("a.jpg", [("a", "dog")]),
        "describe": lambda: model.describe("a.jpg"),
        "describe_regions": lambda: model.describe_regions("a.jpg"),
        "align": lambda: model.align("a.jpg", "a dog"),
        "list concepts": lambda: model.concepts("a.jpg"),
        "compute log_likelihood": lambda: model.log_likelihood(["a.jpg"], ["a dog"]),
    }
    for ability, ask in asked.items():
        with pytest.raises(CannotError, match=f"^runs/bi cannot {ability}; it can: embed_images, embed_texts, score$"):
            ask()
    with pytest.raises(CannotError, match=r"^Model cannot score; it can: nothing$"):
        Model().score(["a.jpg"], ["a dog"])


def test_an_instance_may_lack_what_its_class_has() -> None:
    model = Embeds()
    model.lacks = frozenset({"embed_images"})
    assert model.abilities == {"embed_texts"}
    with pytest.raises(CannotError, match="cannot score; it can: embed_texts"):
        model.score(["a.jpg"], ["a dog"])


def test_a_score_of_its_own_is_reported_from_the_cosine_of_embeddings() -> None:
    class Pairs(Embeds):
        def score(self, images: Sequence[Any], texts: Sequence[Any]) -> Any:
            return np.zeros((len(images), len(texts)))

    class Foreign:
        def embed_images(self, images: Any) -> Any: ...
        def embed_texts(self, texts: Any) -> Any: ...

    assert [has_own_score(each) for each in (Embeds(), Pairs(), Foreign(), Model())] == [False, True, False, False]
    assert abilities_of(Foreign()) == {"embed_images", "embed_texts"}
    assert abilities_of(Pairs()) == {"embed_images", "embed_texts", "score"}


def test_grounding_takes_the_best_box_of_each_phrase() -> None:
    model = Localizes([[0, 0, 5, 5], [5, 5, 9, 9]])
    found = model.ground("a.jpg", "A man in a red shirt.")
    assert [(each.phrase, each.start, each.end, each.box) for each in found] == [
        ("A man", 0, 5, (0, 0, 5, 5)),
        ("a red shirt", 9, 20, (5, 5, 9, 9)),
    ]
    assert [each.phrase for each in model.ground("a.jpg", ["a man in a red shirt"])] == ["a man in a red shirt"]
    with pytest.raises(DeixisError, match="no regions"):
        Localizes([]).ground("a.jpg", "a man")


def test_a_mention_is_the_tokens_of_its_phrase_and_knows_its_sentence() -> None:
    mention = Mention(("a", "red", "car", "stops"), 1, 3)
    assert mention == ("red", "car")
    assert {mention: 1}["red", "car"] == 1
    again = copy.copy(mention)
    assert (again, again.sentence, again.start, again.end) == (mention, mention.sentence, 1, 3)
    assert Mention.of(mention) is mention
    assert Mention.of(["a", "car"]).sentence == ("a", "car")
    (asked,) = asked_phrases([mention])
    assert (asked.text, asked.start, asked.end) == ("red car", 2, 9)


def test_presence_is_rounded_down_for_people() -> None:
    """What is not there is not shown with 50%."""
    shown = [Grounding("a", 0, 1, (0, 0, 1, 1), 0.9, presence).presence_percent for presence in (0.499, 0.5, 1.0, None)]
    assert shown == ["49%", "50%", "100%", ""]
