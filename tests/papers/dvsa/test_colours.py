"""Batches of coloured things, and captions with other colours."""

from __future__ import annotations

import numpy as np
import torch

from deixis.papers.dvsa.colours import colour_ids, coloured_things, grouped, recoloured
from deixis.papers.dvsa.loss import recolouring_hinge
from deixis.text.vocabulary import Vocabulary

WORDS = Vocabulary({"red": 3, "grey": 3, "gray": 2, "yellow": 2, "bus": 4, "a": 9}, minimum_count=1)


def test_things_are_the_words_after_colours() -> None:
    captions = ["a red bus", "a bus", "red and white shirt", "the red yellow bus", "a red", "blue shirt , red bus"]
    assert coloured_things([tuple(text.split()) for text in captions]).tolist() == [0, -1, 1, 0, -1, 1]


def test_every_caption_comes_once_and_captions_of_a_thing_in_runs() -> None:
    things = np.repeat([0, 1, -1], [50, 30, 100])
    order = grouped(things, 10, np.random.default_rng(0))
    assert sorted(order.tolist()) == list(range(180))
    runs = things[order].reshape(-1, 10)
    assert (runs == runs[:, :1]).all()
    assert (np.diff(runs[:, 0]) != 0).any(), "runs of one thing are spread over the epoch"
    assert order.tolist() != grouped(things, 10, np.random.default_rng(1)).tolist()


def test_a_run_may_be_shorter_than_asked_for() -> None:
    order = grouped(np.array([0, 0, 0, 1, -1]), 2, np.random.default_rng(0))
    assert sorted(order.tolist()) == [0, 1, 2, 3, 4]


def test_all_colours_become_others_and_nothing_else_changes() -> None:
    colours = torch.from_numpy(colour_ids(WORDS))
    assert len(colours) == 3, "grey is gray"
    words = torch.tensor([WORDS.encode(("a", "red", "yellow", "bus")), WORDS.encode(("a", "a", "bus", "bus"))])
    for shift in (1, 2):
        found = recoloured(words[..., None], colours, torch.full((2,), shift))[..., 0]
        assert torch.equal(found[1], words[1])
        assert torch.equal(found[0, [0, 3]], words[0, [0, 3]])
        assert (found[0, 1:3] != words[0, 1:3]).all()
        assert set(found[0, 1:3].tolist()) <= set(colours.tolist())


def test_relations_of_edges_are_no_colours() -> None:
    colours = torch.from_numpy(colour_ids(WORDS))
    edges = colours[0].expand(1, 1, 3)
    found = recoloured(edges, colours, torch.ones(1, dtype=torch.int64))[0, 0].tolist()
    assert found == [int(colours[1]), int(colours[1]), int(colours[0])]


def test_recoloured_captions_must_score_less_by_the_margin() -> None:
    matching, others = torch.tensor([3.0, 1.0, 5.0]), torch.tensor([1.0, 1.5, 9.0])
    has_colour = torch.tensor([True, True, False])
    assert float(recolouring_hinge(matching, others, has_colour, 1.0)) == (0 + 1.5) / 2
    assert float(recolouring_hinge(matching, others, torch.zeros(3, dtype=torch.bool), 1.0)) == 0
