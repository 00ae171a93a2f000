"""Whether pieces of text that differ by a colour find different things ("red bus", "yellow bus"; Figs. 2 and 3 of paper
4's supplement, which shows examples), measured by captions alone.

A query is a colour and the word after it, as captions have them. It ranks the pictures whose captions say that word
with some colour by their best region; right are those with this colour. Beside it stand the same ranking by the word
without its colour, and chance.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Unpack

import numpy as np

from deixis.corpus.records import Image
from deixis.metrics.captioning_protocol import COLOURS
from deixis.metrics.concept_prediction import concept_precision
from deixis.metrics.protocols import Pictures, ResultFields
from deixis.metrics.ranking import TIES
from deixis.metrics.results import Protocol, Result, make_result
from deixis.papers.dvsa.model import AlignmentModel
from deixis.text.tokens import tokens_of

#: Pictures that a colour of a thing must have to be asked for.
LEAST = 5
#: Average precision by the colour and the thing, by the thing without its colour, and by chance.
FIGURES = ("colour_and_thing", "thing_alone", "chance")
#: What may follow a colour and names nothing.
EMPTY = frozenset({"and", "or", "in", "on", "with", "is", "are", "at", "of", "to", "for", "as", "the", "a", *COLOURS})


def snippet_queries(model: AlignmentModel, pictures: Pictures, **fields: Unpack[ResultFields]) -> Result | None:
    """Average precision in percent, of queries with at least two colours of a thing: the mean, and by thing and colour.

    None where there are none.
    """
    start = time.monotonic()
    asked = colours_of_things(pictures.images)
    if not asked:
        return None
    queries = [(colour, thing) for thing, own in asked.items() for colour in own]
    texts = [*queries, *((thing,) for thing in asked)]
    scores = np.asarray(model.best_regions(pictures.all_features(), texts), float)
    columns = {text: scores[:, column] for column, text in enumerate(texts)}
    figures: dict[str, dict[str, dict[str, float]]] = {thing: {} for thing in asked}
    for thing, own in asked.items():
        among = sorted(set().union(*own.values()))
        for colour, images in own.items():
            right = np.isin(among, sorted(images))
            ranked = np.stack([columns[colour, thing][among], columns[thing,][among]], 1)
            precision = concept_precision(ranked, np.repeat(right[:, None], 2, 1))
            told_of = (float(precision[0]), float(precision[1]), 100 * float(right.mean()))
            figures[thing][colour] = dict(zip(FIGURES, told_of, strict=True))
    every = [each for own in figures.values() for each in own.values()]
    return make_result(
        Protocol("snippet queries", TIES, {**pictures.parameters, "least": LEAST}),
        {
            "snippet_queries": {name: float(np.mean([each[name] for each in every])) for name in FIGURES},
            "by_thing": figures,
        },
        duration=time.monotonic() - start,
        corpus=pictures.reference,
        counts={"queries": len(queries), "things": len(asked)},
        box_supervision=pictures.box_supervision(),
        **fields,
    )


def colours_of_things(images: Sequence[Image]) -> Mapping[str, Mapping[str, frozenset[int]]]:
    """The numbers of the images of which a caption says a thing with a colour; things with two such colours or more."""
    found: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for number, image in enumerate(images):
        for caption in image.captions:
            for colour, thing in pairwise(tokens_of(caption)):
                if colour in COLOURS and thing.isalpha() and thing not in EMPTY:
                    found[thing][colour].add(number)
    kept = {
        thing: {colour: frozenset(numbers) for colour, numbers in sorted(own.items()) if len(numbers) >= LEAST}
        for thing, own in sorted(found.items())
    }
    return {thing: own for thing, own in kept.items() if len(own) > 1}
