"""Regions are compared with the objects that a phrase chooses, and the losses ask for the right choices."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from deixis.base.expression_images import expression_image
from deixis.base.grounding_data import as_tensors
from deixis.base.grounding_network import Regions
from deixis.base.grounding_task import apart_loss
from deixis.base.region_comparison import ALIKE, CHOICES, LANDMARK, RELATIONS, Comparison, choice_loss
from deixis.corpus import TYPES, Box, Chain, Image, Phrase, make_caption, make_image
from deixis.text.vocabulary import Vocabulary
from deixis.training.augmentation import SquashedPictures

#: Two dogs, the right one larger and next to the bench.
DOGS_AND_BENCH = torch.tensor([[[0.0, 0.4, 0.2, 0.6], [0.5, 0.3, 0.8, 0.7], [0.8, 0.4, 1.0, 0.6]]])
REAL = torch.ones(1, 3, dtype=torch.bool)
#: The mask of these regions.
MASK = REAL[:, None]


def choosing(wanted: list[list[int]]) -> tuple[Comparison, torch.Tensor, torch.Tensor]:
    """A comparison whose phrase chooses the given regions, with the phrase and the regions as it sees them."""
    torch.manual_seed(0)
    comparison = Comparison(8)
    seen = 50 * torch.eye(8)[None, :3]
    with torch.no_grad():
        comparison.key.weight.copy_(torch.eye(8))
        comparison.key.bias.zero_()
        comparison.query.weight.zero_()
        query = torch.zeros(CHOICES, 8)
        for choice, regions in enumerate(wanted):
            query[choice, regions] = 1.0
        comparison.query.bias.copy_(query.flatten())
    return comparison, torch.zeros(1, 1, 8), seen


def test_a_region_is_compared_with_the_things_of_its_name() -> None:
    comparison, phrase, seen = choosing([[0, 1], [2]])
    values, chosen = comparison(phrase, seen, DOGS_AND_BENCH, MASK)
    torch.testing.assert_close(chosen[0, 0, ALIKE].exp(), torch.tensor([0.5, 0.5, 0.0]), atol=1e-4, rtol=0)
    torch.testing.assert_close(chosen[0, 0, LANDMARK].exp(), torch.tensor([0.0, 0.0, 1.0]), atol=1e-4, rtol=0)
    side, larger, nearer = values[0, 0, :2, 0], values[0, 0, :2, 4], values[0, 0, :2, -1]
    # Half of what it is compared with is the region itself.
    assert side.tolist() == pytest.approx([-0.5, 0.5], abs=0.02)
    assert larger.tolist() == pytest.approx([-0.5, 0.5], abs=0.02)
    assert nearer[1] > 0.45
    assert nearer[0] < -0.45
    distance = values[0, 0, :2, RELATIONS + RELATIONS - 2]
    assert distance.tolist() == pytest.approx([0.8, 0.25], abs=0.01)


def test_padding_is_compared_with_nothing() -> None:
    comparison, phrase, seen = choosing([[0, 1], [2]])
    values, _ = comparison(phrase, seen, DOGS_AND_BENCH, MASK)
    more = torch.cat([DOGS_AND_BENCH, torch.rand(1, 2, 4).sort(-1).values], 1)
    real = torch.tensor([[True, True, True, False, False]])
    padded, chosen = comparison(phrase, torch.cat([seen, seen[:, :2]], 1), more, real[:, None])
    torch.testing.assert_close(padded[:, :, :3], values)
    assert (chosen[..., 3:] == -math.inf).all()


def test_a_new_comparison_adds_nothing() -> None:
    comparison = Comparison(8)
    phrases, values = torch.randn(1, 2, 8), torch.randn(1, 2, 3, CHOICES * RELATIONS + 1)
    assert not comparison.scores(phrases, values).any()
    assert not comparison.features(phrases, values).any()


def test_the_choice_loss_asks_for_a_share_on_every_object() -> None:
    on = torch.tensor([[[[True, False, False], [False, True, False], [False, False, False]]]])
    even, uneven = (torch.tensor([[share]]).log() for share in ([0.5, 0.5, 0.0], [0.9, 0.1, 0.0]))
    assert choice_loss(even, on) == pytest.approx(math.log(2))
    assert choice_loss(uneven, on) > choice_loss(even, on)
    chosen = torch.zeros(1, 1, 3).log_softmax(-1).requires_grad_()
    loss = choice_loss(chosen, torch.zeros(1, 1, 2, 3, dtype=torch.bool))
    loss.backward()
    assert loss == 0
    assert torch.isfinite(chosen.grad).all()


def test_objects_of_one_name_are_distinguished_by_their_share_alone() -> None:
    regions = Regions(DOGS_AND_BENCH, torch.zeros(1, 3, 8), REAL)
    gold, alike = DOGS_AND_BENCH[:, :1], torch.zeros(1, 1, 5, 4)
    alike[0, 0, :2] = DOGS_AND_BENCH[0, :2]
    scores = torch.tensor([[[1.0, 1.0, 9.0]]], requires_grad=True)
    loss = apart_loss(scores, regions, gold, alike)
    # The bench has the best score, but is not a dog.
    assert loss.item() == pytest.approx(math.log(2))
    loss.backward()
    assert scores.grad[0, 0].tolist() == pytest.approx([-0.5, 0.5, 0.0])
    alone = torch.tensor([[[1.0, 1.0, 9.0]]], requires_grad=True)
    loss = apart_loss(alone, regions, gold, gold[:, :, None])
    loss.backward()
    assert loss == 0
    assert not alone.grad.any()


def park() -> Image:
    boxes = [Box(0, 40, 20, 60), Box(50, 30, 80, 70), Box(80, 40, 100, 60)]
    labels = ("dog", "dog", "bench")
    chains = [Chain(str(index + 1), (index,), label=label) for index, label in enumerate(labels)]
    return make_image("a", file="a.jpg", width=100, height=100, split="train", boxes=boxes, chains=chains)


def test_expressions_bring_their_alternatives_and_landmarks() -> None:
    expressed = expression_image(park(), 40, np.random.default_rng(0))
    assert expressed is not None
    image, landmarks = expressed
    assert [chain.label for chain in image.chains if len(chain.boxes) == 1] == ["dog", "dog", "bench"]
    assert {image.captions[caption].text.split()[-1] for caption in landmarks} == {"bench"}
    words = Vocabulary.of([tuple(caption.text.split()) for caption in image.captions])
    read = SquashedPictures((image,), ((100, 100),), torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    data = as_tensors(read, words, torch.device("cpu"), {image.id: landmarks})
    dogs, bench = DOGS_AND_BENCH[0, :2], DOGS_AND_BENCH[0, 2]
    for number, caption in enumerate(image.captions):
        about_dogs = "dog" in caption.text
        alike = data.alike[0, number]
        torch.testing.assert_close(alike[: 1 + about_dogs], dogs if about_dogs else bench[None])
        assert not alike[1 + about_dogs :].any()
        torch.testing.assert_close(data.landmark[0, number], bench if number in landmarks else torch.zeros(4))
    known = {name for name, whole in zip(TYPES, data.background[0].tolist(), strict=True) if whole}
    assert known == {"people", "animals", "vehicles"}
    types = {
        tuple(round(x, 2) for x in box.tolist()): TYPES[int(own.int().argmax())]
        for box, own in zip(data.boxes[0], data.types[0], strict=True)
    }
    assert types[0.0, 0.4, 0.2, 0.6] == "animals"
    assert types[0.8, 0.4, 1.0, 0.6] == "other"


def test_phrases_of_captions_that_share_a_noun_are_alternatives() -> None:
    boxes = [Box(0, 0, 20, 20), Box(40, 0, 60, 20), Box(70, 70, 90, 90)]
    texts = (("a young boy", "1"), ("an older boy", "2"), ("a ball", "3"))
    image = make_image(
        "a",
        width=100,
        height=100,
        boxes=boxes,
        chains=[Chain(str(number + 1), (number,)) for number in range(3)],
        captions=[make_caption(text, phrases=[Phrase(0, len(text.split()), chain)]) for text, chain in texts],
    )
    words = Vocabulary.of([tuple(caption.text.split()) for caption in image.captions])
    read = SquashedPictures((image,), ((100, 100),), torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    alike = as_tensors(read, words, torch.device("cpu")).alike[0]
    boys = torch.tensor([[0, 0, 0.2, 0.2], [0.4, 0, 0.6, 0.2]])
    torch.testing.assert_close(alike[:2, :2], boys.expand(2, 2, 4))
    torch.testing.assert_close(alike[2, 0], torch.tensor([0.7, 0.7, 0.9, 0.9]))
    assert not alike[:2, 2:].any()
    assert not alike[2, 1:].any()
