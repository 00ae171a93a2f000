"""Whether search with an example picture and words calls the right pictures matches; `photo_search.py` runs it.

A query is a picture of the split and words that it does not show; a match shows the example's main thing and the words.

boxes       COCO's pictures: the main thing is the class of the largest box (at least 15% of the picture), the words are
            another class; at least five other pictures show both. The truth is complete.
captions    the main thing is the noun that most captions have, the words are a noun that none of them has; captions of
            at least three other pictures have both. Captions leave things out, so precision is a lower bound.

F1 is that of what is called a match, `best_f1` that of the best cut of the same ranking, which knows the truth of each
query, and `best_count_f1` that of the best number of pictures for all queries alike. `nothing` is the share of
queries without any match, and `nothing_although_good` that among queries with three right pictures or more in the first
five.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from photo_collections import Bools, Collection, Trial

from deixis.search.example_calibration import ExampleQuery, example_queries
from deixis.search.queries import parse_query

#: Queries of each kind at most, pictures that must match by boxes, and the least area of the example's main thing.
QUERIES, LEAST, LARGE = 400, 5, 0.15
#: The most pictures that are compared as the same number for all queries.
LONGEST = 100


def measure(trial: Trial) -> dict[str, Any]:
    record: dict[str, Any] = {"end_with_example": trial.model.relevance.end_with_example}
    for asked in trial.whole:
        queries, matches = example_queries(trial.model.vocabulary, asked.images, np.random.default_rng(0))
        record[f"captions, {asked.corpus.name}"] = judge(asked, queries[:QUERIES], matches[:QUERIES])
    queries, matches = box_queries(trial, np.random.default_rng(0))
    record[f"boxes, {trial.corpora[1].name}"] = judge(trial.whole[1], queries[:QUERIES], matches[:QUERIES])
    return record


def judge(asked: Collection, queries: Sequence[ExampleQuery], matches: Bools) -> dict[str, Any]:
    figures, curves = [], []
    for query, own in zip(queries, matches, strict=True):
        example = asked.pictures.embeddings[query.example]
        terms = asked.engine.terms([parse_query(query.wanted)], [example])
        (ranking,) = asked.engine.rank(terms, len(asked.images))
        others = ranking.ids != query.example
        columns, called = ranking.ids[others], int((ranking.odds[others] >= 0).sum())
        total, hits = own.sum(), np.cumsum(own[columns])
        by_count = 2 * hits / (np.arange(1, len(columns) + 1) + total)
        curves.append(by_count[:LONGEST])
        right = hits[called - 1] if called else 0
        figures.append(
            {
                "precision_at_5": hits[4] / 5,
                "best_f1": by_count.max(),
                "f1": 2 * right / (called + total),
                "precision": right / max(called, 1),
                "recall": right / total,
                "called": called,
                "nothing": called == 0,
            }
        )
    good = [each["nothing"] for each in figures if each["precision_at_5"] >= 0.6]
    means = {name: round(float(np.mean([each[name] for each in figures])), 4) for name in figures[0]}
    return {
        "pictures": len(asked.images),
        "queries": len(figures),
        **means,
        "best_count_f1": round(float(np.mean(curves, 0).max()), 4),
        "good": len(good),
        "nothing_although_good": round(float(np.mean(good)), 4) if good else None,
    }


def box_queries(trial: Trial, random: np.random.Generator) -> tuple[list[ExampleQuery], Bools]:
    """Queries by COCO's classes, and what matches them `(queries, images)`, the example excluded."""
    shown, boxes = trial.shown, trial.boxes
    together = shown.astype(int) @ shown.T.astype(int)
    queries, matches = [], []
    for number in random.permutation(list(trial.boxed)).tolist():
        own = trial.boxed[number]
        corners = boxes["boxes"][own].astype(float) / 65535
        areas = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
        if not len(areas) or areas.max() < LARGE:
            continue
        main_class = int(boxes["classes"][own][areas.argmax()])
        fitting = np.flatnonzero(~shown[:, number] & (together[main_class] >= LEAST))
        if len(fitting):
            wanted = int(random.choice(fitting))
            queries.append(ExampleQuery(number, trial.classes[main_class], trial.classes[wanted]))
            matches.append(shown[main_class] & shown[wanted])
    return queries, np.array(matches)
