"""Fitting where the list ends if an example picture is given beside words (`deixis.search.relevance`).

Queries are pairs of a validation picture and a noun that its captions do not have. A picture matches if its captions
have that noun and the noun that most captions of the example have. Captions leave things out, so precision by them is a
lower bound; the end is the one with the best F1 by them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import structs

from deixis.adapters.bundles import Threshold
from deixis.adapters.phrasing import FUNCTION_WORDS, KINDS, NUMBERS, phrasing
from deixis.adapters.search_model import Pictures, SearchModel
from deixis.corpus import Image
from deixis.search.asked_collections import Asked, query_scores
from deixis.search.caption_queries import Bools, is_name
from deixis.search.list_end_calibration import fit_end
from deixis.search.relevance import Known, mean_of_best
from deixis.text.chunker import Chunker
from deixis.text.plurals import singular
from deixis.text.tokens import tokens_of
from deixis.text.vocabulary import Vocabulary

#: Queries of a corpus at most, and pictures that must match one.
QUERIES, LEAST = 600, 3
#: How many pictures' captions must have a noun, and how often the model must have read it.
NOUN_PICTURES, NOUN_COUNT = 8, 50


class ExampleQuery(NamedTuple):
    #: The number of the example among the images.
    example: int
    #: The noun that most of its captions have, and the one that is asked for.
    noun: str
    wanted: str


def fit_end_with_example(
    model: SearchModel,
    vocabulary: Vocabulary,
    pictures: Sequence[Pictures],
    images: Sequence[Sequence[Image]],
    end: Threshold,
    random: np.random.Generator,
) -> Threshold | None:
    """What the last match must reach; None where the corpora have too few such queries.

    Args:
        end: the same for words alone; all queries here are single nouns, so what several words add is taken from it.
    """
    collections = [
        asked
        for own_pictures, own_images in zip(pictures, images, strict=True)
        if (asked := ask_with_examples(model, vocabulary, own_pictures, own_images, random)) is not None
    ]
    return structs.replace(fit_end(collections, LEAST), several=end.several) if collections else None


def ask_with_examples(
    model: SearchModel, vocabulary: Vocabulary, pictures: Pictures, images: Sequence[Image], random: np.random.Generator
) -> Asked | None:
    """The queries of a collection with their scores and matches."""
    queries, matches = example_queries(vocabulary, images, random)
    if not queries:
        return None
    nouns = sorted({query.wanted for query in queries})
    phrasings = [phrasing(noun, model) for noun in nouns]
    rows = [nouns.index(query.wanted) for query in queries]
    examples = [query.example for query in queries]
    scores = query_scores(model, phrasings, pictures)[rows] + pictures.embeddings[examples] @ pictures.embeddings.T
    # The example itself is not asked for.
    scores[np.arange(len(queries)), examples] = scores.min()
    return Asked(
        scores,
        matches,
        matches,
        np.zeros(len(queries), np.int64),
        mean_of_best(scores, len(images)),
        Known.of([phrasings[row] for row in rows]),
    )


def example_queries(
    vocabulary: Vocabulary, images: Sequence[Image], random: np.random.Generator
) -> tuple[list[ExampleQuery], Bools]:
    """One query for each picture that has one, and which images match it `(queries, images)`, the example excluded."""
    nouns = caption_nouns(images)
    having = defaultdict[str, set[int]](set)
    for image_index, counts in enumerate(nouns):
        for noun in counts:
            if vocabulary.count(noun) >= NOUN_COUNT and noun not in KINDS:
                having[noun].add(image_index)
    frequent = sorted(noun for noun, pictures_with in having.items() if len(pictures_with) >= NOUN_PICTURES)
    queries: list[ExampleQuery] = []
    for image_index, counts in enumerate(nouns):
        noun, count = counts.most_common(1)[0] if counts else ("", 0)
        if noun not in having or 2 * count <= len(images[image_index].captions):
            continue
        fitting = [
            other
            for other in frequent
            if other != noun and image_index not in having[other] and len(having[noun] & having[other]) >= LEAST
        ]
        if fitting:
            queries.append(ExampleQuery(image_index, noun, fitting[random.integers(len(fitting))]))
    queries = [queries[index] for index in random.permutation(len(queries))[:QUERIES]]
    matches = np.zeros((len(queries), len(images)), bool)
    for row, query in zip(matches, queries, strict=True):
        row[list(having[query.noun] & having[query.wanted])] = True
    return queries, matches


def caption_nouns(images: Sequence[Image]) -> list[Counter[str]]:
    """For each image the last words of its captions' noun phrases, in the singular, and how many captions have each."""
    sentences = [(index, tokens_of(caption)) for index, image in enumerate(images) for caption in image.captions]
    spans = Chunker.load().phrases_of([tokens for _, tokens in sentences])
    nouns = [Counter[str]() for _ in images]
    for (image_index, tokens), phrase_spans in zip(sentences, spans, strict=True):
        last = {tokens[end - 1] for start, end in phrase_spans if end > start}
        # Sorted, since the first of equally frequent nouns counts: the order of a set changes from run to run.
        nouns[image_index].update(sorted({singular(word) for word in last if is_name(word)} - FUNCTION_WORDS - NUMBERS))
    return nouns
