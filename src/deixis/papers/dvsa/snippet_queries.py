"""Do snippets that differ in a colour find different things ("red bus", "yellow bus")? Measured with captions alone.

The supplement shows examples (Figs. 2 and 3). A query is a colour and the word after it in a caption. It ranks the
pictures whose captions have that word with any colour, by their best region; those with this colour are relevant. For
comparison: the same ranking by the word without its colour, and chance.
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

#: Minimum number of pictures of a coloured thing.
LEAST = 5
#: Average precision of the query, of the thing without its colour, and of chance.
FIGURES = ("colour_and_thing", "thing_alone", "chance")
#: Words that may follow a colour and name nothing.
EMPTY = frozenset({"and", "or", "in", "on", "with", "is", "are", "at", "of", "to", "for", "as", "the", "a", *COLOURS})


def snippet_queries(model: AlignmentModel, pictures: Pictures, **fields: Unpack[ResultFields]) -> Result | None:
    """Average precision in percent for things with at least two colours: the mean, and by thing and colour.

    None if there are no such things.
    """
    start = time.monotonic()
    things = colours_of_things(pictures.images)
    if not things:
        return None
    queries = [(colour, thing) for thing, colours in things.items() for colour in colours]
    texts = [*queries, *((thing,) for thing in things)]
    scores = np.asarray(model.best_regions(pictures.all_features(), texts), float)
    columns = {text: scores[:, column] for column, text in enumerate(texts)}
    figures: dict[str, dict[str, dict[str, float]]] = {thing: {} for thing in things}
    for thing, colours in things.items():
        ranked_images = sorted(set().union(*colours.values()))
        for colour, images in colours.items():
            relevant = np.isin(ranked_images, sorted(images))
            scored = np.stack([columns[colour, thing][ranked_images], columns[thing,][ranked_images]], 1)
            precision = concept_precision(scored, np.repeat(relevant[:, None], 2, 1))
            values = (float(precision[0]), float(precision[1]), 100 * float(relevant.mean()))
            figures[thing][colour] = dict(zip(FIGURES, values, strict=True))
    every_query = [query for by_colour in figures.values() for query in by_colour.values()]
    return make_result(
        Protocol("snippet queries", TIES, {**pictures.parameters, "least": LEAST}),
        {
            "snippet_queries": {name: float(np.mean([query[name] for query in every_query])) for name in FIGURES},
            "by_thing": figures,
        },
        duration=time.monotonic() - start,
        corpus=pictures.reference,
        counts={"queries": len(queries), "things": len(things)},
        box_supervision=pictures.box_supervision(),
        **fields,
    )


def colours_of_things(images: Sequence[Image]) -> Mapping[str, Mapping[str, frozenset[int]]]:
    """By thing and colour, the indices of the images whose captions mention it; things with at least two colours."""
    mentioned: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for index, image in enumerate(images):
        for caption in image.captions:
            for colour, thing in pairwise(tokens_of(caption)):
                if colour in COLOURS and thing.isalpha() and thing not in EMPTY:
                    mentioned[thing][colour].add(index)
    frequent = {
        thing: {colour: frozenset(indices) for colour, indices in sorted(colours.items()) if len(indices) >= LEAST}
        for thing, colours in sorted(mentioned.items())
    }
    return {thing: colours for thing, colours in frequent.items() if len(colours) > 1}
