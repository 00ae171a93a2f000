"""Colours of regions: what colour words ask for decides, other words add nothing, and the loss is the slow one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from deixis.base.grounding_model import empty_network
from deixis.base.grounding_network import Captions, GroundingRecipe, Regions
from deixis.base.region_colours import FIRST_COLOURS, SPREAD, WITHIN, RegionColours, colour_loss, thumbnail
from deixis.text.vocabulary import Vocabulary
from deixis.vision.proposer import normalize

WORDS = Vocabulary.of([("a", "red", "blue", "dog", "large")])


def painted(*colours: tuple[int, int, int]) -> Tensor:
    """A normalized picture of 64 × 64 pixels with upright stripes of these colours."""
    stripes = torch.tensor(colours, dtype=torch.uint8).T[:, None].repeat_interleave(64 // len(colours), 2)
    return normalize(stripes.expand(3, 64, 64)[None])


def test_pixels_are_first_assigned_by_their_distance_to_the_colours() -> None:
    colours = RegionColours(8, len(WORDS), 4)
    pixel = torch.tensor([200, 30, 40], dtype=torch.uint8)
    given = colours.pixels(normalize(pixel)[None, :, None, None]).softmax(1).flatten()
    distance = (pixel / 255 - torch.tensor(FIRST_COLOURS)).square().sum(1)
    torch.testing.assert_close(given, (-distance / SPREAD).softmax(0), atol=1e-4, rtol=1e-3)


def test_words_that_ask_for_no_colour_add_nothing() -> None:
    torch.manual_seed(0)
    colours = RegionColours(8, len(WORDS), 4)
    colours.set_words(WORDS)
    vectors = torch.randn(len(WORDS), 4)

    def ask(*words: str) -> Tensor:
        tokens = torch.tensor(WORDS.encode(words))
        return colours.ask(tokens, vectors[tokens]).sum(0)

    assert not ask("a", "large", "dog").any()
    assert not ask("a", "zyxwv").any()
    torch.testing.assert_close(ask("a", "red", "dog"), ask("red"))
    torch.testing.assert_close(ask("red", "blue"), ask("red") + ask("blue"))
    assert ask("red").any()


def test_it_learns_which_of_two_things_is_red() -> None:
    """With the loss alone; then in the network, which has learned nothing else, and only for colour words."""
    torch.manual_seed(0)
    recipe = GroundingRecipe(
        backbone="efficientnet-lite0", side=64, map_width=16, bins=3, width=32, hidden=16, regions=4, colours=8
    )
    network = empty_network(recipe, len(WORDS), proposer_width=32).eval()
    colours = network.colours
    assert colours is not None
    colours.set_words(WORDS)
    red, blue = (210, 20, 30), (20, 40, 200)
    thumbnails = thumbnail(torch.cat([painted(red, blue), painted(blue, red)]))
    boxes = torch.tensor([[0.0, 0.1, 0.45, 0.9], [0.55, 0.1, 1.0, 0.9]]).expand(2, 2, 4)
    tokens = torch.tensor([[WORDS.encode(("a", "red", "dog")), WORDS.encode(("a", "blue", "dog"))]] * 2)
    spans = (torch.tensor([[0, 1]] * 2), torch.zeros(2, 2, dtype=torch.long), torch.full((2, 2), 3))
    captions, objects = Captions(tokens, *spans), torch.tensor([[0, 1], [1, 0]])
    optimizer = torch.optim.Adam(colours.parameters(), 0.01)
    for _ in range(60):
        features = colours.read(colours.shares(thumbnails, boxes))
        loss = colour_loss(network.ask_colours(captions), features, objects, torch.ones(2, 2, 8, dtype=torch.bool))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    pyramid = [torch.rand(2, count, 64 // stride, 64 // stride) for count, stride in ((40, 8), (112, 16), (320, 32))]
    regions = Regions(boxes, torch.zeros(2, 2, 8), torch.ones(2, 2, dtype=torch.bool))
    with torch.no_grad():
        scores = network(pyramid, regions, captions, thumbnails).scores
        plain = Captions(torch.where(tokens == WORDS.encode(("red",))[0], WORDS.encode(("large",))[0], tokens), *spans)
        swapped = network(pyramid, regions, plain, thumbnails.flip(0)).scores
        same = network(pyramid, regions, plain, thumbnails).scores
    assert scores.argmax(-1).tolist() == objects.tolist()
    # "a large dog" does not depend on colours.
    torch.testing.assert_close(swapped[:, 0], same[:, 0])
    with pytest.raises(ValueError, match="thumbnails"):
        network(pyramid, regions, captions)


def test_the_loss_is_that_of_a_loop_over_phrases() -> None:
    generator = torch.Generator().manual_seed(0)
    asked, features = torch.randn(3, 4, 8, generator=generator), torch.randn(3, 5, 8, generator=generator)
    types = torch.rand(3, 5, 8, generator=generator) < 0.3
    types[:, :, 0] |= ~types.any(-1)
    # Padding.
    types[2, 3:] = False
    objects = torch.tensor([[0, 1, -1, 4], [2, -1, -1, 0], [1, 2, 0, -1]])
    everywhere, within = [], []
    for picture in range(3):
        for phrase, target in enumerate(objects[picture].tolist()):
            if target < 0:
                continue
            alike = [
                (other, index)
                for other in range(3)
                for index in range(5)
                if (types[other, index] & types[picture, target]).any()
            ]
            score = {place: float(asked[picture, phrase] @ features[place]) for place in alike}
            near = [place for place in alike if place[0] == picture]
            for losses, places in ((everywhere, alike), (within, near if len(near) > 1 else [])):
                if places:
                    total = math.log(sum(math.exp(score[place]) for place in places))
                    losses.append(total - score[picture, target])
    expected = sum(everywhere) / len(everywhere) + WITHIN * sum(within) / len(within)
    assert float(colour_loss(asked, features, objects, types)) == pytest.approx(expected, rel=1e-5)
