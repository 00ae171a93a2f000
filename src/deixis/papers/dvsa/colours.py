"""Colours of things in training captions, which retrieval among random pictures hardly needs.

Of a hundred random pictures about three show a bus, so "red" in "red bus" decides nothing. Two settings of the
aligner's recipe make it count, neither of them in the paper: batches with several captions that name the same coloured
thing (`group`), and captions with other colours as negatives of their own picture (`colour_weight`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from deixis.metrics.captioning_protocol import COLOURS
from deixis.model import Tokens
from deixis.papers.dvsa.snippet_queries import EMPTY
from deixis.text.vocabulary import Vocabulary
from deixis.training.sampling import Indices


def coloured_things(captions: Sequence[Tokens]) -> Indices:
    """`(captions,)`: a number for the first thing of each caption that has a colour; −1 where there is none.

    >>> coloured_things([("a", "red", "bus"), ("a", "bus"), ("the", "yellow", "bus")]).tolist()
    [0, -1, 0]
    """
    numbers: dict[str, int] = {}
    thing_of = np.full(len(captions), -1, np.int64)
    for row, caption in enumerate(captions):
        things = (thing for colour, thing in pairwise(caption) if colour in COLOURS and thing not in EMPTY)
        thing = next(things, None)
        if thing is not None:
            thing_of[row] = numbers.setdefault(thing, len(numbers))
    return thing_of


def grouped(things: Indices, size: int, random: np.random.Generator) -> Indices:
    """A random order of all captions in which those of one thing come in runs of at most `size`.

    Args:
        things: `(captions,)` as `coloured_things` gives them; captions without a thing (−1) make runs, too.
    """
    order = random.permutation(len(things))
    by_thing = order[np.argsort(things[order], kind="stable")]
    bounds = np.flatnonzero(np.diff(things[by_thing])) + 1
    runs = [
        run
        for rows in np.split(by_thing, bounds)
        for run in np.split(rows, np.arange(size, len(rows), size))
        if len(run)
    ]
    return np.concatenate([runs[index] for index in random.permutation(len(runs))])


def colour_ids(vocabulary: Vocabulary) -> Indices:
    """The ids of the colours that a vocabulary has; "grey" is left out, since it is another spelling of "gray"."""
    known = [colour for colour in COLOURS if colour in vocabulary and colour != "grey"]
    return np.array(vocabulary.encode(known), np.int64)


def recoloured(ids: Tensor, colours: Tensor, shifts: Tensor) -> Tensor:
    """Fragments `(captions, longest, width)` with every colour replaced by another one.

    Args:
        colours: `(colours,)` their ids.
        shifts: `(captions,)` from 1 to the number of colours − 1: how far along the list the new colour is.
    """
    is_colour = ids[..., None] == colours  # (captions, longest, width, colours)
    # The third column of an edge is its relation.
    is_colour[..., 2:, :] = False
    other = colours[(is_colour.int().argmax(-1) + shifts[:, None, None]) % len(colours)]
    return torch.where(is_colour.any(-1), other, ids)
